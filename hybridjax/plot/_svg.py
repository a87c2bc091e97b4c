import io

from ._axes import pyplot
from ._trajectory import trajectory


def svg(sol, number: int) -> str:
    """So many first components of a solution over time, for a notebook."""
    # Not one of pyplot, which a notebook would show a second time.
    figure = pyplot().Figure(figsize=(6.4, 2.8), layout="constrained")
    trajectory(sol, range(number), ax=figure.subplots())
    file = io.StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]
