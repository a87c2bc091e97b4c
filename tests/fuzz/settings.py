"""How systems are simulated, and which settings a family has."""

import diffrax as dfx

from .core import Family, Setting


DEFAULT = Setting("default")

_SETTINGS = (
    DEFAULT,
    Setting("float32", tol=1e-5, dtype="float32"),
    Setting("loose", tol=1e-4),
    Setting("tight", tol=1e-11),
    # Explicit solvers: the lower their order, the larger the tolerance they can reach.
    Setting("dopri5", dfx.Dopri5()),
    Setting("dopri8", dfx.Dopri8()),
    Setting("bosh3", dfx.Bosh3(), 1e-6),
    Setting("heun", dfx.Heun(), 1e-5),
    Setting("midpoint", dfx.Midpoint(), 1e-5),
    Setting("ralston", dfx.Ralston(), 1e-5),
    # Implicit ones. (Those for two terms, the KenCarp methods, are refused.)
    Setting("kvaerno3", dfx.Kvaerno3(), 1e-6, exact=False),
    Setting("kvaerno4", dfx.Kvaerno4(), 1e-6, exact=False),
    Setting("kvaerno5", dfx.Kvaerno5(), exact=False),
    Setting("project", how="project"),
    Setting("checkpoints", how="checkpoints"),
    Setting("rollout", how="rollout"),
    Setting("saveat", how="saveat"),
)


def settings(family: Family) -> list[Setting]:
    return [s for s in _SETTINGS if s.how != "project" or family.eps is not None]
