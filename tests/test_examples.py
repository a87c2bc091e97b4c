import subprocess
import sys
from pathlib import Path

import pytest


pytestmark = pytest.mark.documents

_examples = sorted((Path(__file__).parent.parent / "examples").glob("[!_]*.py"))


def test_there_are_examples():
    assert len(_examples) > 0


@pytest.mark.parametrize("path", _examples, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    run = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout
