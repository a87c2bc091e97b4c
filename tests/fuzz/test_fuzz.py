"""A short part of the fuzzer, the same in every run: nothing is silently wrong."""

import numpy as np
import pytest

from .core import axes, draw, join, judge, VERDICTS, WRONG_DERIVATIVE, WRONG_VALUE
from .families import FAMILIES
from .settings import DEFAULT


# Compilation is what takes the time. Of rigid bodies and contacts it takes longest, and
# of what slides and of clocks, after these: they are left to `python -m tests.fuzz`.
_LONG = {"bars", "joints", "planks", "points", "pucks", "rods", "stacks"}
_LONG |= {"belt", "converter"}
# Of the others, the first has events one by one and in one instant, and outcomes that
# depend on their order; in the second they accumulate.
_SHORT = {"affine", "balls"}
_each = [
    name if name in _SHORT else pytest.param(name, marks=pytest.mark.thorough)
    for name in sorted(set(FAMILIES) - _LONG)
]
_LANES = 6  # of each kind: scales, offsets, ties


@pytest.mark.parametrize("name", _each)
def test_nothing_is_silently_wrong(name):
    family, rng = FAMILIES[name], np.random.default_rng(0)
    parts = [draw(family, DEFAULT, axis, rng, _LANES) for axis in axes(family, DEFAULT)]
    batch = join(parts)
    found = judge(family, DEFAULT, batch, rng)
    wrong = (found.verdict == WRONG_VALUE) | (found.verdict == WRONG_DERIVATIVE)
    report = [
        f"lane {i}: {VERDICTS[found.verdict[i]]}, {found.ratio[i]:.3g} times what is "
        f"still right, of {batch.z[i].tolist()}"
        for i in np.nonzero(wrong)[0]
    ]
    assert report == []
    # It is not that everything is refused.
    assert np.mean(found.successful) > 0.9
