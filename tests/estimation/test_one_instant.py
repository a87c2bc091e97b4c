import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np


class Pushed(hj.AbstractHybridSystem):
    """Two counters that run down; the first, at zero, is wound up, and pushes the
    second one below zero, which fires in the same instant."""

    def flow(self, t, x, mode, args):
        return jnp.array([-1.0, -0.3])

    def guards(self, t, x, mode, args):
        return x

    def jump(self, t, x, mode, event, args):
        wound = jnp.stack([x[0] + 5, x[1] - 1])
        return jnp.where(event == 0, wound, jnp.stack([x[0], 2 * x[1] + 3])), mode


def test_event_inside_its_guard_set():
    run = lambda start: hj.estimation.kalman_filter(
        Pushed(),
        0.0,
        jnp.array([1.0]),
        jnp.full((1, 1), jnp.nan),
        start,
        jnp.eye(2),
        0,
        measurement=lambda t, x, mode, args: x[:1],
        measurement_root=jnp.eye(1),
        diffusion=0.5 * jnp.eye(2),
        throw=False,
    )
    run = jax.jit(
        jax.vmap(run), compiler_options=hj.compiler_options("fast_to_compile")
    )
    # The first comes to zero after a time of its own; the third lane has no event.
    starts = jnp.array([[0.4, 0.5], [0.7, 0.9], [1.4, 0.9]])
    out = run(starts)
    first, second = starts[:2].T
    pushed = 2 * (second - 0.3 * first - 1) + 3 - 0.3 * (1 - first)
    expected = np.stack([first + 4, pushed], axis=1)
    np.testing.assert_allclose(out.xs[:2, 0], expected, atol=1e-9)
    # The second time is that of the first counter, whatever the second one was.
    matrix = np.array([[1.0, 0.0], [-0.3, 2.0]])
    P = out.roots[:, 0] @ out.roots[:, 0].swapaxes(1, 2)
    # So it is with the noise on the way to there.
    for got, duration in zip(P, [*first, 1.0], strict=True):
        before, after = (1 + 0.25 * duration) * np.eye(2), 0.25 * (1 - duration)
        xi = matrix if duration < 1 else np.eye(2)
        expected = xi @ before @ xi.T + after * np.eye(2)
        np.testing.assert_allclose(got, expected, atol=1e-9)
