"""The figures of the concepts are those that their program draws."""

import runpy
from pathlib import Path

import pytest

from .pictures import same


_PROGRAM = Path(__file__).parent.parent / "docs" / "figures.py"


def _check(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names
    for name in names:
        stored = _PROGRAM.parent / "images" / name
        assert same((folder / name).read_bytes(), stored.read_bytes()), name


def test_figures_of_one_motion(tmp_path):
    program = runpy.run_path(str(_PROGRAM))
    runs = program["swings"]()
    for name in ("one_event", "tape", "finding_events"):
        program[name](runs, tmp_path)
    _check(tmp_path)


@pytest.mark.thorough
def test_figures_of_other_motions(tmp_path):
    program = runpy.run_path(str(_PROGRAM))
    for name in ("contact", "sliding", "friction"):
        program[name](tmp_path)
    _check(tmp_path)
