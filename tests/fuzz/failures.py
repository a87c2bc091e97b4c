"""Failures as scripts that reproduce them."""

from pathlib import Path

import numpy as np

from .core import Batch, judge, reference, run_library, saved_times, VERDICTS


_SCRIPT = '''"""{family}, {setting}: {verdict}.

The error is {ratio:.3g} times what is still right.
Run it in the root of the repository.
"""

import sys

import jax


sys.path.insert(0, "")
jax.config.update("jax_enable_x64", True)

from tests.fuzz.core import Batch
from tests.fuzz.failures import show


lane = Batch(
{lane})
show("{family}", "{setting}", lane)
'''


def write(folder: Path, family, setting, lane: Batch, verdict, ratio) -> Path:
    """A script for one lane."""
    name = f"{family.name}_{setting.name}_{VERDICTS[verdict].replace(' ', '_')}"
    number = len(list(folder.glob(f"{name}_*.py")))
    path = folder / f"{name}_{number:03d}.py"
    text = _SCRIPT.format(
        family=family.name,
        setting=setting.name,
        verdict=VERDICTS[verdict],
        ratio=ratio,
        # All digits.
        lane="".join(f"    {k}={v.tolist()!r},\n" for k, v in lane._asdict().items()),
    )
    path.write_text(text)
    return path


def show(family_name: str, setting_name: str, lane: Batch):
    """One lane: what the library says, and what the reference does."""
    from .families import FAMILIES
    from .settings import settings

    family = FAMILIES[family_name]
    (setting,) = (s for s in settings(family) if s.name == setting_name)
    lane = Batch(*(np.asarray(a)[None] for a in lane))
    value, pushed, pulled, extra = run_library(family, setting, lane)
    expected = reference(family, lane.z, saved_times(setting, lane.z))
    found = judge(family, setting, lane, np.random.default_rng(0))
    rows = value.shape[1]
    jacobian = expected.jacobian[0, :rows]
    np.set_printoptions(linewidth=88, precision=9)
    for parameter, z in zip(family.parameters, lane.z[0], strict=True):
        print(f"{parameter.name:24} {z!r}")
    print("units of length and time", lane.length[0], lane.time[0])
    print("successful              ", extra["ok"][0])
    print("events of the library   ", extra["events"][0], "of", extra["count"][0])
    print("of the reference        ", expected.events[0, : expected.count[0]])
    print("least time between two  ", expected.gap[0])
    print("value of the library\n", value[0])
    print("of the reference\n", expected.value[0, :rows])
    print("jvp of the library\n", pushed[0])
    print("of the reference, in its order of events\n", jacobian @ lane.v[0])
    print("vjp of the library\n", pulled[0])
    print("of the reference, in its order of events\n", lane.w[0] @ jacobian)
    print("verdict:", VERDICTS[found.verdict[0]], f"({found.ratio[0]:.3g})")
