import subprocess
import sys
from pathlib import Path

import pytest


pytestmark = pytest.mark.documents

# As `python path` does, but looks for garbage less often: see `conftest.py`.
_PROGRAM = """
import gc, os, runpy, sys
gc.set_threshold(100_000, 50, 100)
sys.path[0] = os.path.dirname(sys.argv[1])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_examples = sorted((Path(__file__).parent.parent / "examples").glob("[!_]*.py"))


def test_there_are_examples():
    assert len(_examples) > 0


@pytest.mark.parametrize("path", _examples, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout
