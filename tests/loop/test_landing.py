"""How near to its guard a step ends."""

import diffrax
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array


class _SpringAtAWall(hj.AbstractHybridSystem):
    """A mass on a spring; a wall at -0.5 throws it back with the speed that it had."""

    stiffness: Array

    def flow(self, t, x, mode, args):
        return jnp.stack([x[1], -self.stiffness * x[0]])

    def guards(self, t, x, mode, args):
        return (x[0] + 0.5)[None]

    def jump(self, t, x, mode, event, args):
        return x * jnp.array([1, -1], x.dtype), mode


END = 5.0


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
def test_landings(double):
    dtype = jnp.float64 if double else jnp.float32

    @jax.jit
    @jax.vmap
    def run(stiffness, tol, t1):
        return hj.simulate(
            _SpringAtAWall(stiffness),
            jnp.asarray(0.0, dtype),
            t1,
            jnp.array([1.0, 0.0], dtype),
            0,
            stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol),
            max_steps=512,
            max_events=8,
        )

    tols = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7] if double else [1e-3, 1e-4]
    given = np.meshgrid(np.linspace(1, 9, 41), tols)
    stiffness, tol = (jnp.asarray(a.ravel(), dtype) for a in given)
    sol = run(stiffness, tol, jnp.full_like(tol, END))
    t = sol.events.t[:, 0]
    exact = np.arccos(-0.5) / np.sqrt(stiffness)
    assert (np.abs(t - exact) <= 3 * tol + 1e-6).all()
    # A simulation that ends there makes the same steps up to the last one, which is a
    # whole step of the solver. (There the wall may be hit, or not.)
    ends = run(stiffness, tol, t)
    off = np.abs(np.abs(sol.events.x_before[:, 0]) - np.abs(ends.x1)) / END
    # A hundredth of what counts as one instant, of which float32 has little more than
    # rounding, and a millionth of what steps are off by; times the acceleration.
    share = 1.6e-12 if double else 16 * np.finfo(dtype).eps
    assert (off.max(axis=1) <= (share + 1e-6 * tol) * stiffness).all()
