"""What `saveat` asks for, at the edges."""

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax.models import BouncingBall

from ..helpers import bouncing_ball


_ball = BouncingBall()


def test_three_subs():
    # A tuple of three is not the triple of times, states and modes.
    subs = (
        dfx.SubSaveAt(t0=True),
        dfx.SubSaveAt(t1=True, fn=lambda t, x, args: (x[0], x[1], t)),
        dfx.SubSaveAt(ts=jnp.array([0.2, 0.7])),
    )
    sol = hj.simulate(
        _ball, 0.0, 1.0, jnp.array([1.0, 0.0]), 0, saveat=dfx.SaveAt(subs=subs)
    )
    truth = lambda t: bouncing_ball(1.0, 0.8, t)
    assert [ts.tolist() for ts in sol.ts] == [[0.0], [1.0], [0.2, 0.7]]
    assert [modes.shape for modes in sol.modes] == [(1,), (1,), (2,)]
    start, end, between = sol.xs
    np.testing.assert_array_equal(start, [[1.0, 0.0]])
    np.testing.assert_allclose(jnp.concatenate(end), [*truth(1.0), 1.0], atol=1e-8)
    np.testing.assert_allclose(between, [truth(0.2), truth(0.7)], atol=1e-8)


@pytest.mark.parametrize("t0", [0.0, 1.7])
def test_no_time_at_all(t0):
    # The start is the end: in the air, and on the floor, where it bounces at once.
    for x0, x1 in (([1.0, 0.3], [1.0, 0.3]), ([0.0, -1.0], [0.0, 0.8])):

        def outcome(x0, t):
            saveat = dfx.SaveAt(t0=True, ts=jnp.stack([t0 + 0 * t]), t1=True)
            sol = hj.simulate(_ball, t0, t, x0, 0, saveat=saveat)
            return sol.xs, sol.evaluate(t0), sol.ts

        (xs, x, ts), jacobian = (
            f(jnp.array(x0), t0) for f in (outcome, jax.jacfwd(outcome))
        )
        np.testing.assert_array_equal(ts, [t0] * 3)
        np.testing.assert_allclose(xs, [x1] * 3, atol=1e-12)
        np.testing.assert_allclose(x, x1, atol=1e-12)
        backward = jax.jacrev(outcome)(jnp.array(x0), t0)
        by_x0, by_t = jacobian[0], jax.jacfwd(outcome, 1)(jnp.array(x0), t0)[0]
        for k in (0, 2):
            np.testing.assert_allclose(backward[0][k], by_x0[k], atol=1e-12)
        if x0 == x1:
            np.testing.assert_allclose(by_x0, [np.eye(2)] * 3, atol=1e-12)
            # Only the end moves with `t1`.
            np.testing.assert_allclose(by_t[2], [x1[1], -9.81], atol=1e-12)
            np.testing.assert_allclose(by_t[0], [0.0, 0.0], atol=1e-12)
