import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np


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

    @eqx.filter_jit
    def count(x0s):
        run = lambda x0: hj.simulate(system, 0.0, 1.0, x0, 0, throw=False)
        return jax.vmap(jax.vmap(run))(x0s).events.count

    counts = count(x0s.reshape(2, 2, 2))
    jax.effects_barrier()
    assert np.all(np.asarray(counts) > 0)
    assert seen and np.max(np.abs(seen)) < 1e-6
