import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np

from ..helpers import ball_outcome


def test_jumps_are_of_events():
    # Lanes without an event wait for those that have one, and for the loops in their
    # jump, of which one from anywhere may take for ever.
    seen = []

    class Watched(hj.models.BouncingBall):
        def jump(self, t, x, mode, event, args):
            jax.debug.callback(lambda x: seen.append(float(x[0])), x)
            return super().jump(t, x, mode, event, args)

    system = Watched(restitution=0.8)
    x0s = jnp.stack([jnp.linspace(0.5, 1.5, 4), jnp.zeros(4)], axis=1)

    def height(x0):
        sol = hj.simulate(system, 0.0, 1.0, x0, 0, throw=False)
        return sol.x1[0], sol.events.count

    @jax.jit
    def all_lanes(x0s):
        lanes = lambda fn: jax.vmap(jax.vmap(fn))(x0s)
        along = lambda x0: jax.jvp(lambda x0: height(x0)[0], (x0,), (jnp.ones(2),))[1]
        return lanes(jax.grad(height, has_aux=True)), lanes(along)

    (slopes, counts), pushed = all_lanes(x0s.reshape(2, 2, 2))
    jax.effects_barrier()
    assert np.all(np.asarray(counts) > 0)
    assert seen and np.max(np.abs(seen)) < 1e-6
    slopes, counts = slopes.reshape(4, 2), counts.ravel()
    for x0, bounces, slope in zip(x0s, counts, slopes, strict=True):
        z = jnp.append(x0, jnp.array([system.gravity, system.restitution]))
        end = lambda z, bounces=int(bounces): ball_outcome(z, bounces, t1=1.0)[0]
        np.testing.assert_allclose(slope, jax.grad(end)(z)[:2], rtol=1e-6)
    np.testing.assert_allclose(pushed.ravel(), slopes.sum(axis=1), rtol=1e-9)
