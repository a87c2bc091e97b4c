"""What blocks on a belt have in common."""

from ..core import DURATION, Parameter, START


BLOCK = (
    START,
    DURATION,
    Parameter("position", 1, 0),
    Parameter("speed", 1, -1),
    Parameter("stiffness", 0, -2),
    Parameter("damping", 0, -1),
)


def draw_block(rng, n, longest, damping):
    """The values of these, and the speed of the belt, which is faster."""
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.5, longest, n)
    belt = rng.uniform(0.1, 1, n)
    x, v = rng.uniform(-1, 1, n), belt - rng.uniform(0.05, 1.5, n)
    k, c = rng.uniform(0.5, 6, n), rng.uniform(*damping, n)
    return (t0, duration, x, v, k, c), belt
