import io

import jax.tree_util as jtu
import numpy as np

from ._axes import pyplot
from ._trajectory import trajectory


def svg(sol, most: int) -> str:
    """The first components of a solution over time, for a notebook."""
    size = sum(np.size(leaf) for leaf in jtu.tree_leaves(sol.x1))
    # Not one of pyplot, which a notebook would show a second time.
    figure = pyplot().Figure(figsize=(6.4, 2.8), layout="constrained")
    trajectory(sol, range(min(size, most)), ax=figure.subplots())
    file = io.StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]
