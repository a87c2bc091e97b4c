import base64

import nbformat
import pytest

from .pictures import same
from .store_notebooks import execute, NOTEBOOKS


pytestmark = pytest.mark.documents


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
                drawn = new.data["image/png"]
                assert same(base64.b64decode(picture), base64.b64decode(drawn)), cell.id
