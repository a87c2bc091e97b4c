import nbformat
import numpy as np
import pytest

from .store_notebooks import execute, NOTEBOOKS, pixels


# The side of a square of pixels, of which the mean colours are compared: dots of ink at
# the edges of lines differ by the palette.
_SIDE = 8


def _means(picture):
    colours = pixels(picture)
    m, n = (length // _SIDE for length in colours.shape[:2])
    squares = colours[: m * _SIDE, : n * _SIDE].reshape(m, _SIDE, n, _SIDE, 3)
    return colours.shape, squares.mean((1, 3))


def _apart(stored, fresh):
    """How two pictures differ: not in size, and by the colour of some square."""
    (size, a), (fresh_size, b) = _means(stored), _means(fresh)
    assert size == fresh_size
    return np.max(np.abs(a - b))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) > 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    fresh = execute(path, str(tmp_path))
    stored = nbformat.read(path, as_version=4)
    for cell, again in zip(stored.cells, fresh.cells, strict=True):
        if cell.cell_type != "code":
            continue
        for old, new in zip(cell.outputs, again.outputs, strict=True):
            picture = old.get("data", {}).get("image/png")
            if picture is None:
                assert new == old
            else:
                # 128 colours are as far from all of them as 0.03; a curve that is wrong
                # by three or four per cent makes 0.08 or more.
                assert _apart(picture, new.data["image/png"]) < 0.05
