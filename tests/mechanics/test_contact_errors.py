"""Bad input and bad luck, in contact: errors and results that name the contact."""

from typing import Any

import diffrax as dfx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybridjax import models
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..helpers import on_end


_rod = models.rod(friction=0.3)
_still = jnp.zeros(3)
_flat = jnp.zeros(3)


def _start(q, v, mode, system=_rod):
    hj.simulate(system, 0.0, 0.1, (jnp.asarray(q), jnp.asarray(v)), mode, max_steps=64)


@pytest.mark.parametrize(
    "q, v, mode, message",
    [
        ([0.0, 0.1, 0.5], _still, None, "`x0` is below ground.*contact 0"),
        ([0.0, 0.1, -0.5], _still, [0, 0], "`x0` is below ground.*contact 1"),
        ([0.0, 0.1, 0.0], _still, [0, 1], "contact 1 is closed, but .*gap is not zero"),
        (_flat, [0.0, -0.1, 0.0], [1, 1], "contact 0 is closed, but its normal"),
        (_flat, [0.1, 0.0, 0.0], [2, 1], "tangential velocity of contact 1"),
        (_flat, [0.1, 0.0, 0.0], [3, 2], "tangential velocity of contact 0"),
        (_flat, _still, [1], "must be a vector of 2 integers"),
        (_flat, _still, [1.0, 1.0], "must be a vector of 2 integers"),
        (_flat, jnp.zeros(2), None, "3 entries in its configuration and 2"),
    ],
)
def test_inconsistent_start(q, v, mode, message):
    mode = None if mode is None else jnp.asarray(mode)
    with pytest.raises(ValueError, match=message):
        _start(q, v, mode)


def _ball(effort=(0.0, -9.81), mass=(1.0, 1.0), n=1, **kwargs):
    options: dict[str, Any] = dict(
        effort=lambda t, q, v, args: jnp.asarray(effort),
        gap=lambda q, args: q[1:],
        tangents=lambda q, args: jnp.array([[1.0, 0.0]]),
        friction=0.5,
    )
    options.update(kwargs)
    matrix = lambda q, args: jnp.array(mass)
    return MechanicalSystem(matrix, n_contacts=n, **options)


@pytest.mark.parametrize(
    "ball, mode, message",
    [
        (_ball(mass=(1.0, 0.0)), [0], "`mass_matrix` .*positive definite"),
        (
            _ball(mass=((1.0, 1.0), (1.0, 1.0))),
            [0],
            "`mass_matrix` .*positive definite",
        ),
        (_ball(mass=(1.0, 1.0, 1.0)), [0], "`mass_matrix` must return"),
        (_ball(gap=lambda q, args: q), [0], "`gap` must return an array of shape"),
        (_ball(tangents=lambda q, args: q), [0], "`tangents` must return"),
        (_ball((1.0,)), [0], "`effort` must return"),
    ],
)
def test_unsuitable_functions(ball, mode, message):
    with pytest.raises(ValueError, match=message):
        _start(jnp.zeros(2), jnp.zeros(2), jnp.array(mode), ball)


def test_unsuitable_parameters():
    with pytest.raises(ValueError, match="`friction` must be a number or have one"):
        models.rod(friction=jnp.ones(3))
    with pytest.raises(ValueError, match="`friction` must be finite.*`static_frict"):
        models.rod(friction=jnp.inf)
    with pytest.raises(ValueError, match="`rest_speed` must be a number, but it has"):
        models.rod(rest_speed=jnp.ones(2))


def test_modes_are_found():
    zero, up = jnp.zeros(2), jnp.array([0.0, 1.0])
    back, pull = jnp.array([-1.0, 0.0]), jnp.array([6.0, -9.81])
    weight = jnp.array([0.0, -9.81])
    find = lambda f, q, v: _ball(f).start(jnp.asarray(0.0), (q, v), None, None)[1][0]
    efforts = jnp.stack([weight, weight, weight, pull, up])
    states = (
        jnp.stack([up, zero, zero, zero, zero]),
        jnp.stack([zero, zero, back, zero, zero]),
    )
    modes = jax.jit(jax.vmap(find))(efforts, *states)
    C = ContactMode
    want = [C.FREE, C.STICKING, C.BACKWARD, C.SLIPPING_FORWARD, C.LIFTING]
    np.testing.assert_array_equal(modes, want)


# A solver of few stages, which compiles faster.
_OPTIONS: dict[str, Any] = dict(solver=dfx.Bosh3(), max_steps=600, max_events=200)

# Sliding so, it jams: friction 1.5 presses it to the ground.
_slides = on_end(1.0, -3.0, 0.0)


def test_failed_lanes():
    # A rod that jams; chattering that is not ended; a start below ground; and a lane
    # that works.
    def final(p, q, v, mode):
        rod = models.rod(friction=p[0], restitution=p[1], rest_speed=0.0)
        sol = hj.simulate(rod, 0.0, 0.6, (q, v), mode, throw=False, **_OPTIONS)
        return sol.x1[0][0], sol

    p = jnp.array([[1.5, 0.0], [0.3, 0.3], [0.3, 0.0], [0.3, 0.5]])
    q = jnp.stack(
        [
            _slides[0],
            jnp.array([0.0, 0.01, 0.0]),
            -on_end(0.5, 0, 0)[0],
            on_end(0.3, 0, 0)[0],
        ]
    )
    q = q.at[3, 1].add(0.5)
    v = jnp.zeros((4, 3)).at[0].set(_slides[1])
    v = v.at[3, 0].set(1.0)
    mode = jnp.zeros((4, 2), jnp.int32).at[0, 0].set(ContactMode.BACKWARD)
    run = jax.jit(jax.vmap(jax.value_and_grad(final, has_aux=True), (0, 0, 0, 0)))
    (_, sol), slope = run(p, q, v, mode)
    R = hj.RESULTS
    ends = [R.successful, R.zeno, R.nonfinite_state, R.successful]
    for k, end in enumerate(ends):
        assert bool((sol.result == end)[k]), k
    assert int(sol.events.mode_before[0, 0, 0]) == ContactMode.JAMMED
    assert int(sol.mode1[2, 1]) == ContactMode.INCONSISTENT
    assert np.isnan(slope[1:3]).all() and np.isfinite(slope[::3]).all()
    # The lane that works is the same without the others.
    alone = [jnp.broadcast_to(a[3], a.shape) for a in (p, q, v, mode)]
    (_, sol_alone), slope_alone = run(*alone)
    np.testing.assert_allclose(sol.x1[0][3], sol_alone.x1[0][3], rtol=1e-12)
    np.testing.assert_allclose(slope[3], slope_alone[3], rtol=1e-12)


def test_messages():
    @jax.jit
    def run(p, q, v, mode):
        rod = models.rod(friction=p[0], restitution=p[1], rest_speed=0.0)
        return hj.simulate(rod, 0.0, 0.6, (q, v), mode, **_OPTIONS).x1

    with pytest.raises(Exception, match=r"contact [01]: touchdown"):
        high = jnp.array([0.0, 0.01, 0.0])
        run(jnp.array([0.3, 0.3]), high, _still, jnp.zeros(2, int))
    with pytest.raises(Exception, match=r"contact 0: .*Painlevé"):
        _start(high, _still, jnp.array([ContactMode.UNSOLVABLE, 0]))
    # What would jam lifts off where it spins away from the ground: however little the
    # friction is beyond its bound, and however large the accelerations are.
    bound = (1 + 3 * np.cos(1.0) ** 2) / (3 * np.sin(1.0) * np.cos(1.0))
    mode = jnp.array([ContactMode.BACKWARD, 0])
    beyond = models.rod(friction=bound * (1 + 1e-6))
    _, found = beyond.start(jnp.asarray(0.0), on_end(1.0, -3.0, 1e3), mode, None)
    np.testing.assert_array_equal(found, [ContactMode.LIFTING, 0])
