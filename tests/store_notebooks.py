"""Notebooks and their outputs: `python -m tests.store_notebooks` stores them afresh."""

import base64
import io
import os
import tempfile
from pathlib import Path

import nbclient
import nbformat
from PIL import Image


NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def _small(picture: str) -> str:
    # 128 colours take a quarter of the bytes, and the eye does not miss the others.
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    file = io.BytesIO()
    image.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _tidy(output):
    """An output without what differs from run to run."""
    if output.output_type == "stream":
        return output
    if "image/png" in output.data:
        # Beside it is a text, with the size of the figure: nobody sees it.
        data = {"image/png": _small(output.data["image/png"])}
    else:
        data = dict(output.data)
    return nbformat.v4.new_output("display_data", data)


def execute(path: Path, folder: str):
    """A notebook and its outputs, by a fresh execution in `folder`."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    client = nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        record_timing=False,
        # How often a cell is heard of while it prints depends on the machine.
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    # A notebook shows its figures inline, whatever is asked for elsewhere.
    env = {name: os.environ[name] for name in os.environ if name != "MPLBACKEND"}
    # A cell of our own: see `conftest.py`.
    rarely = "import gc; gc.set_threshold(100_000, 50, 100)"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(rarely))
    # Raises the first error of a cell, with the cell and its traceback.
    client.execute(env=env)
    del notebook.cells[0]
    # The version of Python was written into it.
    notebook.metadata = nbformat.from_dict(metadata)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            # On stderr are remarks of JAX on the machine.
            cell.outputs = [
                _tidy(output)
                for output in cell.outputs
                if output.get("name") != "stderr"
            ]
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, folder), path)
