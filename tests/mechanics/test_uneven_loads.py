"""Bodies on feet of which each carries another load, pulled along the floor."""

import diffrax
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode
from hybridjax.models import body_on_plane
from scipy.optimize import minimize, root_scalar


_g, _height, _t1 = 9.81, 0.01, 3.0
_upright = np.array([0, 0, _height, 1, 0, 0, 0])
_departs = 2


class _Pulled(eqx.Module):
    """An effort that grows, or swings, beside that of the body."""

    effort: object

    def __call__(self, t, q, v, args):
        pull, growth, swing = args
        along = growth * t + swing * jnp.sin(2 * jnp.pi * t / _t1)
        return self.effort(t, q, v, None) + pull * along  # pyright: ignore


def _body(feet, mu):
    body = body_on_plane(feet, inertia=[0.1] * 3, friction=mu, rest_speed=1e-5)
    return eqx.tree_at(lambda b: b.effort, body, _Pulled(body.effort))


@jax.jit
def _run(feet, mu, pull, growth, swing, change):
    """The last velocity, its derivative by what pulls, and the events."""

    def final(growth, swing):
        sol = hj.simulate(
            _body(feet, mu),
            0.0,
            _t1,
            (_upright, jnp.zeros(6)),
            jnp.full(feet.shape[0], int(ContactMode.STICKING)),
            args=(pull, growth, swing),
            stepsize_controller=diffrax.PIDController(rtol=1e-7, atol=1e-7),
            max_events=64,
            throw=False,
        )
        return sol.x1[1], (sol.result, sol.events)

    return jax.jvp(final, (growth, swing), change, has_aux=True)


def _bodies(count):
    """Three feet around the centre, friction, and a pull of one newton on the floor."""
    rng = np.random.default_rng(0)
    while count:
        angle = np.sort(rng.uniform(0, 2 * np.pi, 3))
        if np.max(np.diff(angle, append=angle[0] + 2 * np.pi)) > 2.8:
            continue
        arms = rng.uniform(0.1, 0.6, 3) * np.stack([np.cos(angle), np.sin(angle)])
        feet = np.concatenate([arms.T, np.full((3, 1), -_height)], axis=1)
        way = rng.uniform(0, 2 * np.pi)
        pull = np.array([np.cos(way), np.sin(way), 0.0])
        pull = np.concatenate([pull, np.cross([0, 0, -_height], pull)])
        yield feet, rng.uniform(0.2, 0.6), pull, rng.uniform(1.2, 1.6)
        count -= 1


def _off(got, expected):
    return np.max(np.abs(np.asarray(got) - expected))


def test_through_the_centre():
    # All feet slide as one, and so what they carry does not matter: as a puck.
    for feet, mu, pull, size in _bodies(6):
        grip = mu * _g
        growth = float(size * grip / _t1)
        v, dv, (result, _) = _run(feet, mu, pull, growth, 0.0, (1.0, 0.0))
        assert result == hj.RESULTS.successful
        left = _t1 - grip / growth
        assert _off(v[:2], growth * left**2 / 2 * pull[:2]) < 1e-4
        assert _off(dv[:2], (left**2 / 2 + left * grip / growth) * pull[:2]) < 1e-4
        assert _off(v[2:], 0) < 1e-4


def test_all_begin_to_slip():
    # The pull is hardly more than friction, and feet hardly move, somehow. They go
    # along; that one goes back, and the body turns, is no solution.
    @jax.jit
    def accelerations(feet, mu, pull, growth, t, vs):
        slipping = jnp.full(3, int(ContactMode.SLIPPING))
        flow = lambda v: _body(feet, mu).flow(
            t, (_upright, v), slipping, (pull, growth, 0.0)
        )
        return jax.vmap(flow)(vs)[1]

    rng = np.random.default_rng(1)
    feet, mu, pull, size = next(_bodies(1))
    grip = mu * _g
    growth = float(size * grip / _t1)
    for late in (1e-4, 1e-3, 5e-3):
        for off in (1e-8, 1e-7, 1e-6):
            vs = np.zeros((400, 6))
            vs[:, [0, 1, 5]] = off * rng.normal(size=(400, 3))
            vs[:, :2] += growth * late**2 / 2 * pull[:2]
            given = feet, mu, pull, growth, grip / growth + late, vs
            assert _off(accelerations(*given)[:, 5], 0) < 1e-2


def _after_half_a_swing(force, grip):
    """The speed of a puck that was at rest at first, and its slope by the force."""
    w, half = 2 * np.pi / _t1, _t1 / 2
    begins = np.arcsin(grip / force) / w
    slope = lambda t: (np.cos(w * begins) - np.cos(w * t)) / w
    speed = lambda t: force * slope(t) - grip * (t - begins)
    ends = root_scalar(speed, bracket=(begins + 0.05, _t1)).root
    assert ends < half + begins
    return (speed(half), slope(half)) if ends > half else (0.0, 0.0)


def test_to_and_fro():
    # What has slipped sticks again, and slips to the other side: the second half of the
    # swing is as the first one.
    moved = set()
    for feet, mu, pull, size in _bodies(6):
        force = float(size * mu * _g)
        v, dv, (result, _) = _run(feet, mu, pull, 0.0, force, (0.0, 1.0))
        assert result == hj.RESULTS.successful
        speed, slope = _after_half_a_swing(force, mu * _g)
        assert _off(v[:2], -speed * pull[:2]) < 1e-4
        assert _off(dv[:2], -slope * pull[:2]) < 1e-4
        moved.add(speed > 0)
    assert moved == {True, False}


def _limit(feet, mu, pull):
    """The largest pull that forces within the friction cones could hold. By the
    kinematic theorem of limit analysis, the least resistance to a motion."""
    loads = np.linalg.solve([np.ones(3), *feet[:, :2].T], [_g, 0.0, 0.0])
    force = pull[np.array([0, 1, 5])]
    least, rest = force / (force @ force), np.linalg.svd(force[None])[2][1:]

    def resistance(z):
        v = least + z @ rest
        slip = v[:2] + v[2] * np.stack([-feet[:, 1], feet[:, 0]], axis=1)
        return mu * np.sum(loads * np.linalg.norm(slip, axis=1))

    options = dict(xatol=1e-10, fatol=1e-12, maxiter=4000)
    return minimize(resistance, [1.0, 1.0], method="Nelder-Mead", options=options).fun


def test_pulled_beside_the_centre():
    for k, (feet, mu, pull, _) in enumerate(_bodies(6)):
        pull[5] += (-1) ** k * 0.1 * (1 + k)
        limit = _limit(feet, mu, pull)
        growth = float(1.5 * limit / _t1)
        _, _, (result, log) = _run(feet, mu, pull, growth, 0.0, (1.0, 0.0))
        assert result == hj.RESULTS.successful
        count = int(log.count)
        t, event = np.asarray(log.t[:count]), np.asarray(log.event[:count])
        before = np.asarray(log.mode_before)[np.arange(count), event % 3]
        leaves = t[before == int(ContactMode.STICKING)]
        departs = t[event // 3 == _departs]
        # What leaves its cone first is held by the others, until none can; and then it
        # takes a while until it is as fast as what slides.
        assert np.min(leaves) < limit / growth - 0.01
        assert 0 < np.min(departs) - limit / growth < 0.03
