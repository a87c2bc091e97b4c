import importlib
from typing import Any


def pyplot() -> Any:
    """**Raises:**

    - `ImportError` where there is no matplotlib.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "`hj.plot` needs matplotlib, which is not installed: "
            "`pip install 'hybridjax[plot]'`."
        ) from error
    return plt


def axes_or_current(ax: Any) -> Any:
    """`ax`, or those that pyplot draws into."""
    return pyplot().gca() if ax is None else ax


def text_colour() -> Any:
    """What is neither of a component nor of a mode is in the colour of the text."""
    return pyplot().rcParams["text.color"]


def transforms() -> Any:
    """matplotlib's; for where there is one."""
    return importlib.import_module("matplotlib.transforms")
