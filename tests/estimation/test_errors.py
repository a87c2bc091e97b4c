"""What is refused, and what the message says."""

import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def hopper():
    """A fall onto a spring."""
    flight = lambda t, x, args: jnp.stack([x[1], -jnp.ones_like(x[0])])
    stance = lambda t, x, args: jnp.stack([x[1], -30 * x[0]])
    return hj.HybridAutomaton(
        {"flight": flight, "stance": stance},
        [hj.Transition("flight", "stance", lambda t, x, args: x[0])],
    )


GIVEN = dict(
    system=hopper(),
    t0=0.0,
    ts=np.array([0.1, 0.2]),
    ys=np.zeros((2, 1)),
    x0=jnp.array([1.0, 0.0]),
    root0=np.eye(2),
    mode0="flight",
    measurement=lambda t, x, mode, args: x[:1],
    measurement_root=np.eye(1),
)
HEIGHT = lambda t, x, args: x[:1]
SIZES = [lambda t, x, args: x[:1], lambda t, x, args: x]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(measurement={"flight": HEIGHT, "stance": lambda t, x, args: x}),
            r"`measurement` must return an array of shape \(1,\), as `ys` has 1 "
            r"entries at each time, but it returned shape \(2,\) in mode 'stance'. A "
            "measurement has the same entries in all modes: where one is not measured, "
            "return any number, and put NaN into `ys`",
        ),
        (
            dict(
                measurement=lambda t, x, mode, args: jax.lax.switch(
                    mode, SIZES, t, x, args
                )
            ),
            "`measurement` could not be evaluated. A measurement has the same entries",
        ),
        (
            dict(measurement={"flight": HEIGHT}),
            r"`measurement` must be a callable, or, for a `hj.HybridAutomaton`, have "
            r"an entry for each mode: \['flight', 'stance'\], but it has \['flight'\]",
        ),
        (
            dict(measurement=lambda t, x, mode, args: x),
            r"`measurement` must return .* but it returned shape \(2,\)",
        ),
        (dict(measurement=3), "`measurement` must be a callable .* but it is a int"),
        (
            dict(measurement_root=0.1),
            r"`measurement_root` must be a matrix, .* a row for each of the 1 entries "
            r".* its shape is \(\). For a standard deviation of `sigma` in each, pass "
            r"`sigma \* jnp.eye\(1\)`; for a covariance, its `jnp.linalg.cholesky`",
        ),
        (
            dict(measurement_root=np.zeros((1, 1))),
            r"`measurement_root` must have linearly independent rows, so that the "
            r"covariance of the noise is positive definite, but it is \[\[0.0\]\]",
        ),
        (
            dict(root0=np.ones(2)),
            r"`root0` must be a matrix, a square root of a covariance, with a row for "
            r"each of the 2 entries of the raveled state, but its shape is \(2,\)",
        ),
        (
            dict(process_root=lambda t, x, mode, args: jnp.eye(3)),
            r"`process_root` must be a matrix, .* but its shape is \(3, 3\)",
        ),
        (
            dict(diffusion=np.ones(2)),
            r"`diffusion` must be a matrix, .* but its shape is \(2,\)",
        ),
        (
            dict(ts=np.array([0.2, 0.1])),
            "`ts` must be in ascending order, and begin no earlier than `t0`, which is "
            "0.0, but there is 0.2 before 0.1. Sort the measurements by time",
        ),
        (dict(t0=0.15), "`ts` must be .* which is 0.15, but there is 0.15 before 0.1"),
        (dict(ts=np.array([0.1, np.nan])), "`ts` must be finite, but it is not"),
        (dict(ts=0.1), r"`ts` must be a vector .* its shape is \(\). Pass `jnp.array"),
        (
            dict(ys=np.zeros(2)),
            r"`ys` must have shape \(2, m\), a row of m entries for each of the times "
            r"`ts`, but it is \(2,\). Pass `ys\[:, None\]`",
        ),
        (dict(mode0="air"), "mode must be one of"),
        (dict(x0=jnp.array([1, 0])), "`x0` must be a pytree of floating-point arrays"),
    ],
)
def test_refused(change, message):
    given = {**GIVEN, **change}
    with pytest.raises(ValueError, match=message):
        hj.estimation.kalman_filter(**given)
    if not change.keys() & {"measurement_root", "measurement"}:
        return
    with pytest.raises(ValueError, match=message):
        hj.estimation.particle_filter(**given, key=jax.random.key(0), num_particles=3)


def test_smoother_wants_a_filter():
    with pytest.raises(
        ValueError, match="`filtered` must be what `hj.estimation.kalman"
    ):
        hj.estimation.kalman_smoother(np.zeros(3))  # pyright: ignore


def test_second_derivatives():
    def value(height):
        given = {**GIVEN, "x0": jnp.stack([height, jnp.zeros(())])}
        return hj.estimation.kalman_filter(**given).log_likelihood

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.eval_shape(jax.jacfwd(jax.jacfwd(value)), jnp.ones(()))


def test_failures():
    # Outside of `jax.jit`, as messages; the noise is not known beforehand.
    noise = lambda t, x, mode, args: args * jnp.eye(1, dtype=x.dtype)
    given = {**GIVEN, "ts": np.array([0.5, 2.0]), "measurement_root": noise}
    run = lambda scale, **options: hj.estimation.kalman_filter(
        **{**given, "root0": scale * np.eye(2), **options},
        args=jnp.asarray(scale),
        max_steps=5,
    )
    # Until 0.5 it falls; in flight a few steps are enough.
    with pytest.raises(hj.SimulationError) as error:
        run(1.0)
    assert "`max_steps`, which is 5" in str(error.value)
    assert "time 2, that of measurement 1" in str(error.value)
    out = run(1.0, throw=False)
    assert out.result == hj.estimation.RESULTS.max_steps_reached
    np.testing.assert_allclose(out.predicted_xs[0], [0.875, -0.5], atol=1e-8)
    np.testing.assert_allclose(out.nis[0], 0.875**2 / 2.25, atol=1e-8)
    assert np.all(np.isnan(out.xs[1])) and np.isnan(out.log_likelihood)
    out = run(0.0, throw=False)
    assert out.result == hj.estimation.RESULTS.singular_innovation
