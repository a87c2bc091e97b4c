from collections.abc import Iterable
from typing import Any

import numpy as np

from ._axes import pyplot


def mode_colours(names: Iterable[str]) -> dict[str, Any]:
    """Of each mode: pale ones, on which text can be read."""
    names = list(dict.fromkeys(names))
    # The darkest ones are not seen on black.
    colours = pyplot().get_cmap()(np.linspace(0.2, 1, len(names)))
    colours[:, 3] = 0.4
    return dict(zip(names, colours, strict=True))
