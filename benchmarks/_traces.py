"""How often a solve is traced as its inputs change."""

from collections.abc import Callable, Iterator

import diffrax
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
from _diffrax_loop import DiffraxLoop
from hybridjax.models import BouncingBall


# t1, height, gravity, tolerance: each line changes one of them.
VALUES = (
    (2.0, 1.0, 9.81, 1e-8),
    (2.0, 1.1, 9.81, 1e-8),
    (1.5, 1.1, 9.81, 1e-8),
    (1.5, 1.1, 3.71, 1e-8),
    (1.5, 1.1, 3.71, 1e-6),
)


class _Calls:
    """Counts the Python calls of a flow; hashed by identity, so it may be static."""

    def __init__(self):
        self.count = 0


class _CountedBall(hj.AbstractHybridSystem):
    ball: BouncingBall
    calls: _Calls = eqx.field(static=True)

    def flow(self, t, x, mode, args):
        self.calls.count += 1
        return self.ball.flow(t, x, mode, args)

    def guards(self, t, x, mode, args):
        return self.ball.guards(t, x, mode, args)

    def jump(self, t, x, mode, event, args):
        return self.ball.jump(t, x, mode, event, args)


def _count(calls: _Calls, solve: Callable) -> str:
    counts = []
    for values in VALUES:
        before = calls.count
        jax.block_until_ready(solve(*values))
        counts.append(calls.count - before)
    traces = sum(count > 0 for count in counts)
    return f"{traces} (Python calls of the flow: {', '.join(map(str, counts))})"


def traces_of_hybridjax(max_steps: int, max_events: int) -> Iterator[tuple[str, str]]:
    """What was called, and in how many traces it ran."""

    def solver(calls):
        def solve(t1, height, gravity, tolerance):
            ball = BouncingBall(gravity=gravity, restitution=0.8)
            controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
            sol = hj.simulate(
                _CountedBall(ball, calls),
                0.0,
                t1,
                jnp.stack([jnp.asarray(height, float), jnp.zeros(())]),
                0,
                stepsize_controller=controller,
                max_steps=max_steps,
                max_events=max_events,
            )
            return sol.x1

        return solve

    calls = _Calls()
    yield "`jax.jit`", _count(calls, jax.jit(solver(calls)))
    calls = _Calls()
    yield "plain call, Python floats", _count(calls, solver(calls))


def traces_of_diffrax(loop: DiffraxLoop) -> Iterator[tuple[str, str]]:
    """The same for the diffrax loop."""
    calls = _Calls()

    @jax.jit
    def solve(t1, height, gravity, tolerance):
        ball = _CountedBall(BouncingBall(gravity=gravity, restitution=0.8), calls)
        x0 = jnp.stack([height, 0.0])
        return loop(ball, 0.0, t1, x0, 0, None, tolerance, tolerance)

    yield "`jax.jit`", _count(calls, solve)
