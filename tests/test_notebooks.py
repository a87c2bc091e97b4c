from pathlib import Path

import nbclient
import nbformat
import pytest


_notebooks = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert len(_notebooks) > 0


@pytest.mark.parametrize("path", _notebooks, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, monkeypatch):
    # A notebook shows its figures inline; `conftest.py` asks for no display at all.
    monkeypatch.delenv("MPLBACKEND")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    # Raises the first error of a cell, with the cell and its traceback.
    client.execute()
