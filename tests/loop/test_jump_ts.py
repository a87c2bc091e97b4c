"""Times at which the vector field jumps, as a step size controller knows them."""

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


_TIMES = (0.5, 0.8)


class _Switched(hj.AbstractHybridSystem):
    """Grows, shrinks from 0.5 on, and grows again from 0.8 on; a guard at 0.6."""

    sides: str = eqx.field(static=True)

    def flow(self, t, x, mode, args):
        first, second = _TIMES
        # The value at the very time does not matter.
        after = (lambda s: t > s) if self.sides == "left" else (lambda s: t >= s)
        return jnp.where(after(first) & ~after(second), -2.0, 1.0) * x

    def guards(self, t, x, mode, args):
        return jnp.stack([jnp.where(mode == 0, 0.6 - t, hj.UNWATCHED)])

    def jump(self, t, x, mode, event, args):
        return 3 * x, jnp.ones_like(mode)


def _factor(t1):
    exponent = min(t1, 0.5) - 2 * np.clip(t1 - 0.5, 0, 0.3) + max(t1 - 0.8, 0)
    return np.exp(exponent) * (3.0 if t1 > 0.6 else 1.0)


@pytest.mark.parametrize("sides", ["left", "right"])
def test_jump_ts(sides):
    controller = dfx.ClipStepSizeController(
        dfx.PIDController(rtol=1e-8, atol=1e-8), jump_ts=jnp.array(_TIMES)
    )

    @jax.jit
    def outcome(x0, t1):
        sol = hj.simulate(
            _Switched(sides), 0.0, t1, x0, 0, stepsize_controller=controller
        )
        return sol.x1, sol.stats["num_accepted_steps"]

    for t1 in (0.3, 0.5, 0.55, 0.7, 0.8, 1.1):
        x0, t1 = jnp.array([2.0]), jnp.asarray(t1)
        still = (jnp.ones_like(x0), jnp.zeros_like(t1))
        (x1, steps), (dx, _) = jax.jvp(outcome, (x0, t1), still)
        expected = _factor(float(t1))
        np.testing.assert_allclose(x1, 2 * expected, rtol=1e-8)
        np.testing.assert_allclose(dx, expected, rtol=1e-8)
        # Without being told, it takes several times as many to find a jump.
        assert steps < 40
