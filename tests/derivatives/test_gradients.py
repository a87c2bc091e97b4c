"""First derivatives of simulations, against an independent reference.

The reference flows in closed form (or by many small steps of SciPy's DOP853), in NumPy
with complex numbers: with inputs z + i h v, the imaginary part of everything is h times
the derivative along v, without an error of truncation or cancellation. Event times are
complex numbers too, found by Newton's method.
"""

import diffrax as dfx
import equinox as eqx
import hybridjax as hj
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hybridjax import models
from jaxtyping import Array
from scipy.integrate import DOP853

from ..helpers import error


_STEP = 1e-40
_CONTROLLER = dfx.PIDController(rtol=1e-10, atol=1e-10)


#
# The reference
#


class _Run:
    """What the reference found: complex times and states, with one column for each
    direction in the last axis."""

    def __init__(self, oracle, p, x0, t0, t1, events, guesses):
        self.oracle, self.p = oracle, p
        t, x, mode = t0, x0, oracle.mode0
        self.pieces = [(t, x, mode)]
        self.t, self.before, self.after, self.speed = [], [], [], []
        for event, guess in zip(events, guesses, strict=True):
            at = guess + 0 * t
            for _ in range(7):
                x_at = oracle.phi(p, mode, t, at - t, x)
                g, rate = oracle.guard(p, mode, event, at, x_at)
                at = at - g / rate
            x_at = oracle.phi(p, mode, t, at - t, x)
            # Found where it was expected, falling, and with no other event before.
            assert np.max(np.abs(at - guess)) < 1e-7
            assert np.all(oracle.guard(p, mode, event, at, x_at)[1].real < 0)
            self._check_between(t, at, x, mode)
            self.t.append(at)
            self.before.append(x_at)
            self.speed.append(oracle.guard(p, mode, event, at, x_at)[1])
            x, mode = oracle.jump(p, mode, event, at, x_at)
            t = at
            self.after.append(x)
            self.pieces.append((t, x, mode))
        self._check_between(t, t1, x, mode)
        self.end = oracle.phi(p, mode, t, t1 - t, x)

    def _check_between(self, start, end, x, mode):
        for s in np.linspace(0.02, 0.98, 25):
            dt = (s * (end - start)).real
            at = self.oracle.phi(self.p, mode, start, dt + 0j, x)
            for event in self.oracle.watched(mode):
                g = self.oracle.guard(self.p, mode, event, start + dt, at)[0]
                assert np.all(g.real > 0)

    def at(self, s):
        """The state at a time: after the event, at the time of one."""
        s = s + 0 * self.pieces[0][0]
        here = [p for p in self.pieces if np.all(p[0].real <= s.real + 1e-8)]
        t, x, mode = here[-1]
        return self.oracle.phi(self.p, mode, t, s - t, x)


def _directions(values):
    """A real vector of inputs with a perturbation of each in turn, as columns."""
    values = np.asarray(values, float)
    return values[:, None] + 1j * _STEP * np.eye(values.size)


def _derivative(values):
    return np.imag(np.stack(values)) / _STEP


class _Ball:
    """A ball above a floor; parameters are gravity and restitution, and the amplitude
    and the frequency of the floor."""

    mode0 = 0

    def watched(self, mode):
        return [0]

    def phi(self, p, mode, t, dt, x):
        return np.stack([x[0] + x[1] * dt - p[0] * dt**2 / 2, x[1] - p[0] * dt])

    def guard(self, p, mode, event, t, x):
        rate = 2 * np.pi * p[3]
        return (
            x[0] - p[2] * np.sin(rate * t),
            x[1] - p[2] * rate * np.cos(rate * t),
        )

    def jump(self, p, mode, event, t, x):
        rate = 2 * np.pi * p[3]
        w = p[2] * rate * np.cos(rate * t)
        return np.stack([x[0], w - p[1] * (x[1] - w)]), mode


def _oscillate(omega, centre, x, dt):
    u, c, s = x[0] - centre, np.cos(omega * dt), np.sin(omega * dt)
    return np.stack(
        [centre + u * c + x[1] / omega * s, x[1] * c - omega * u * s],
    )


class _Hopper:
    """Parameters are mass, stiffness, rest length and gravity."""

    mode0 = 0

    def watched(self, mode):
        return [mode]

    def phi(self, p, mode, t, dt, x):
        m, k, length, g = p
        if mode == 0:
            return np.stack([x[0] + x[1] * dt - g * dt**2 / 2, x[1] - g * dt])
        return _oscillate(np.sqrt(k / m), length - m * g / k, x, dt)

    def guard(self, p, mode, event, t, x):
        sign = 1 - 2 * mode
        return sign * (x[0] - p[2]), sign * x[1]

    def jump(self, p, mode, event, t, x):
        return x, 1 - mode


class _Hammer:
    """The closed form of `Hammer`; the parameters are its fields and `args`."""

    mode0 = 0

    def watched(self, mode):
        return [0]

    def phi(self, p, mode, t, dt, x):
        omega, force = p[0], p[4]
        size = force / (omega**2 - 1)
        driven = lambda t: np.stack([size * np.cos(t), -size * np.sin(t)])
        return driven(t + dt) + _oscillate(omega, 0, x - driven(t), dt)

    def guard(self, p, mode, event, t, x):
        return (
            x[0] - p[1] - p[5] * np.sin(3 * t),
            x[1] - 3 * p[5] * np.cos(3 * t),
        )

    def jump(self, p, mode, event, t, x):
        return np.stack([x[0], -p[2] * x[1] + p[3] * np.cos(t)]), mode


class Hammer(hj.AbstractHybridSystem):
    """A driven oscillator that bounces off a swaying stop, and is kicked there.

    `omega` appears only in the flow, `stop` only in the guard, `restitution` and `kick`
    only in the reset; `args` has one number for the flow and one for the guard.
    """

    omega: Array
    stop: Array
    restitution: Array
    kick: Array

    def flow(self, t, x, mode, args):
        push = args["force"] * jnp.cos(t)
        return jnp.stack([x[1], push - self.omega**2 * x[0]])

    def guards(self, t, x, mode, args):
        return (x[0] - self.stop - args["sway"] * jnp.sin(3 * t))[None]

    def jump(self, t, x, mode, event, args):
        v = -self.restitution * x[1] + self.kick * jnp.cos(t)
        return jnp.stack([x[0], v]), mode


class _Legs:
    """`models.TwoLegs` again, from the statement of problem P3."""

    mode0 = (0, 0)

    def watched(self, mode):
        return [0, 1]

    def feet(self, p, theta):
        sides = np.stack([p[2], -p[2]])
        c, s = np.cos(theta), np.sin(theta)
        return c * sides + s * p[3], s * sides - c * p[3]

    def field(self, p, mode, x):
        m, inertia, _, _, k, damping, tangential, g = p
        _, z, theta, vx, vz, omega = x
        rx, rz = self.feet(p, theta)
        touches = np.array(mode)[:, None]
        fz = touches * (-k * (z + rz) - damping * (vz + omega * rx))
        fx = touches * -tangential * (vx - omega * rz)
        torque = (rx * fz - rz * fx).sum(0)
        return np.stack(
            [vx, vz, omega, fx.sum(0) / m, fz.sum(0) / m - g, torque / inertia]
        )

    def phi(self, p, mode, t, dt, x):
        n = int(np.ceil(np.max(np.abs(dt)) / 0.02)) or 1
        h = dt / n
        for _ in range(n):
            ks = [self.field(p, mode, x)]
            for row in DOP853.A[1:]:
                shift = sum(a * k for a, k in zip(row, ks, strict=False) if a != 0)
                ks.append(self.field(p, mode, x + h * shift))
            x = x + h * sum(b * k for b, k in zip(DOP853.B, ks, strict=True))
        return x

    def guard(self, p, mode, event, t, x):
        rx, rz = self.feet(p, x[2])
        sign = 1 - 2 * mode[event]
        return sign * (x[1] + rz[event]), sign * (x[4] + x[5] * rx[event])

    def jump(self, p, mode, event, t, x):
        changed = list(mode)
        changed[event] = 1 - changed[event]
        return x, tuple(changed)


#
# Comparison
#


def _both_modes(fn, z, batched=False):
    """For each vector of `z`, the output of `fn` (a pytree), its Jacobian by forward
    mode, and products of it with random cotangents from the left: by reverse mode, and
    as they should be.

    Without `batched` the vectors go one by one through one compiled program. With one
    simulation, its replay for one tangent and the transpose of that it has as little to
    compile as possible.
    """

    def floats(z):
        out = fn(z)
        return eqx.filter(out, eqx.is_inexact_array), out

    def one(z, tangent, key):
        value, push, out = jax.linearize(floats, z, has_aux=True)
        leaves, treedef = jtu.tree_flatten(value)
        keys = jax.random.split(key, len(leaves))
        cts = [jax.random.normal(k, v.shape) for k, v in zip(keys, leaves, strict=True)]
        (pulled,) = jax.linear_transpose(push, z)(jtu.tree_unflatten(treedef, cts))
        return out, push(tangent), cts, pulled

    stack = lambda trees, axis: jtu.tree_map(lambda *a: np.stack(a, axis), *trees)
    if batched:
        run = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
    else:
        run = jax.jit(one)
    m, n = z.shape
    results = []
    for k in range(n):
        more = np.eye(n)[k], jax.random.key(k)
        lanes = run(z, *more) if batched else stack([run(x, *more) for x in z], 0)
        results.append(jtu.tree_map(np.asarray, lanes))
    jacobian = stack([column for _, column, _, _ in results], -1)
    leaves = jtu.tree_leaves(jacobian)
    forward, reverse = [], []
    for _, _, cts, pulled in results:
        flat = [ct.reshape(m, 1, -1) for ct in cts]
        each = [
            ct @ leaf.reshape(m, -1, n) for ct, leaf in zip(flat, leaves, strict=True)
        ]
        forward.append(np.sum(each, axis=0)[:, 0])
        reverse.append(pulled)
    return results[0][0], jacobian, np.stack(forward), np.stack(reverse)


def _check_events(run, events, jacobian, tol):
    n = int(events.count)
    got = (
        jacobian.t[:n],
        jacobian.x_before[:n],
        jacobian.x_after[:n],
        jacobian.normal_speed[:n],
    )
    expected = (run.t, run.before, run.after, run.speed)
    for g, e in zip(got, expected, strict=True):
        if n > 0:
            assert error(g, _derivative(e)) < tol
    # What is not there does not change.
    for leaf in (jacobian.t, jacobian.x_before, jacobian.x_after):
        assert np.all(leaf[n:] == 0)


def _lane(tree, i):
    return jtu.tree_map(lambda a: np.asarray(a[i]), tree)


def test_everything_with_respect_to_everything():
    # Final and saved states, event times, states before and after, and normal speeds,
    # with respect to x0, t0, t1, parameters that appear only in the flow, only in the
    # guard or only in the reset, args, and the times at which states are saved.
    def simulate(z):
        x0, (t0, t1), parameters, (force, sway), save_at = (
            z[:2],
            z[2:4],
            z[4:8],
            z[8:10],
            z[10:],
        )
        system = Hammer(*parameters)
        subs = dict(
            steps=dfx.SubSaveAt(steps=True),
            ts=dfx.SubSaveAt(t0=True, ts=save_at, t1=True),
        )
        sol = hj.simulate(
            system,
            t0,
            t1,
            x0,
            0,
            dict(force=force, sway=sway),
            stepsize_controller=_CONTROLLER,
            saveat=dfx.SaveAt(subs=subs),
            max_steps=640,
            max_events=12,
        )
        return dict(x1=sol.x1, ts=sol.ts, xs=sol.xs, events=sol.events)

    lanes = 24
    s = np.linspace(0, 1, lanes)
    z = np.stack(
        [
            0.9 + 0.4 * s,  # x0
            np.cos(7 * s),
            0.2 + 0.1 * np.sin(20 * s),  # t0
            0.8 + 5 * s,  # t1
            2.0 + 2.5 * s,  # omega
            -0.3 + 0.4 * np.cos(11 * s),  # stop
            0.6 + 0.3 * s,  # restitution
            0.7 - 0.3 * s,  # kick
            0.4 - 0.5 * s,  # force
            0.03 + 0.04 * s,  # sway
        ],
        axis=-1,
    )
    t0, t1 = z[:, 2], z[:, 3]
    times = [t0 + f * (t1 - t0) for f in (0.15, 0.45 + 0.5 * s)]
    z = np.concatenate([z, np.stack(times, axis=-1)], axis=-1)
    out, jacobian, forward, reverse = _both_modes(simulate, z, batched=True)
    assert error(reverse, forward) < 1e-10
    counts = set()
    for i in range(lanes):
        o, j = _lane(out, i), _lane(jacobian, i)
        events = o["events"]
        n = int(events.count)
        counts.add(n)
        d = _directions(z[i])
        oracle = _Run(
            _Hammer(), d[4:10], d[:2], d[2], d[3], events.event[:n], events.t[:n]
        )
        assert error(j["x1"], _derivative(oracle.end)) < 1e-7
        _check_events(oracle, events, j["events"], 1e-7)
        saved = [oracle.at(s) for s in (d[2], d[10], d[11])] + [oracle.end]
        assert error(j["xs"]["ts"], _derivative(saved)) < 1e-7
        assert error(j["ts"]["ts"], _derivative(d[[2, 10, 11, 3]])) == 0
        # Steps end at fixed times, but for the last.
        ts = o["ts"]["steps"]
        used = int(np.isfinite(ts).sum())
        assert used > 20
        stepped = [oracle.at(t + 0j) for t in ts[: used - 1]] + [oracle.end]
        assert error(j["xs"]["steps"][:used], _derivative(stepped)) < 1e-7
        assert np.all(j["ts"]["steps"][: used - 1] == 0)
        assert error(j["ts"]["steps"][used - 1], _derivative(d[3:4])[0]) == 0
    # The ranges were wide enough for events to come and go.
    assert len(counts) > 4


def _compare(simulate, z, oracle, split, tol=1e-7):
    """`simulate` maps a vector to `(x1, events)`; `split` the same vector to the
    arguments `p, x0, t0, t1` of the reference. Returns the numbers of events."""
    out, jacobian, forward, reverse = _both_modes(simulate, z)
    assert error(reverse, forward) < 1e-10
    counts = set()
    for i in range(z.shape[0]):
        (_, events), (end, d_events) = _lane(out, i), _lane(jacobian, i)
        n = int(events.count)
        counts.add(n)
        p, x0, t0, t1 = split(_directions(z[i]))
        fired = events.event[:n].tolist()
        run = _Run(oracle, p, x0, t0, t1, fired, events.t[:n])
        assert error(end, _derivative(run.end)) < tol
        _check_events(run, events, d_events, tol)
    return counts


def test_balls():
    # Problem P1, on a floor that rests or swings: then the guard and the reset depend
    # on time. The balls bounce never or several times.
    def simulate(z):
        system = models.BallOnPaddle(*z[:4])
        sol = hj.simulate(
            system,
            z[6],
            z[7],
            z[4:6],
            0,
            stepsize_controller=_CONTROLLER,
            max_steps=256,
            max_events=10,
        )
        return sol.x1, sol.events

    s = np.linspace(0, 1, 20)
    resting = [
        3 + 8 * s,  # gravity
        0.95 - 0.05 * s,  # restitution
        0 * s,  # amplitude
        1 + s,  # frequency
        1.5 - 1.3 * s,  # x0
        1 - 2 * s,
        s - 0.5,  # t0
        0.3 + 2.2 * s,  # t1
    ]
    swinging = [
        9 + s,
        0.9 + 0.05 * np.cos(9 * s),
        0.01 + 0.02 * s,
        1 + s,
        0.1 + 0.9 * s,
        np.sin(8 * s),
        0.3 * s,
        1.2 + 0.6 * s,
    ]
    split = lambda d: (d[:4], d[4:6], d[6], d[7])
    z = np.concatenate([resting, swinging], axis=-1).T
    counts = _compare(simulate, z, _Ball(), split)
    assert min(counts) == 0 and max(counts) > 3 and len(counts) > 4


@pytest.mark.thorough
def test_hopper():
    # Problem P2, for soft and stiff springs.
    def simulate(z):
        system = models.spring_hopper(*z[:4])
        sol = hj.simulate(
            system,
            z[6],
            z[7],
            z[4:6],
            stepsize_controller=_CONTROLLER,
            max_steps=512,
            max_events=10,
        )
        return sol.x1, sol.events

    s = np.linspace(0, 1, 24)
    z = np.stack(
        [
            1 + 0.3 * s,
            100 * 20**s,
            1 - 0.2 * s,
            9.81 - s,
            1.6 + 0.5 * s,
            np.cos(5 * s),
            0.1 * s,
            0.6 + 2 * s,
        ],
        axis=-1,
    )
    split = lambda d: (d[:4], d[4:6], d[6], d[7])
    counts = _compare(simulate, z, _Hopper(), split)
    assert len(counts) > 2


@pytest.mark.thorough
def test_two_legs():
    # Problem P3, and some others near it.
    def simulate(z):
        system = models.TwoLegs(*z[:8])
        sol = hj.simulate(
            system,
            0.0,
            z[14],
            z[8:14],
            jnp.zeros(2, jnp.int32),
            stepsize_controller=_CONTROLLER,
            max_steps=400,
            max_events=12,
        )
        return sol.x1, sol.events

    p3 = [1, 0.1, 0.3, 0.5, 300, 2, 1, 9.81, 0, 0.9, 0.15, 0.5, 0, -0.2, 1]
    other = [0.9, 0.12, 0.25, 0.5, 400, 3, 2, 9, 0, 0.8, -0.1, -0.3, 0.5, 0.4, 1.1]
    z = np.array([p3, other], float)
    split = lambda d: (d[:8], d[8:14], 0 * d[14], d[14])
    counts = _compare(simulate, z, _Legs(), split)
    assert 7 in counts


@pytest.mark.thorough
def test_ten_balls():
    # Problem P4: 56 impacts.
    def simulate(z):
        system = models.Balls(*z[:2])
        sol = hj.simulate(
            system,
            0.0,
            2.0,
            jnp.concatenate([z[2:], jnp.zeros(10)]),
            0,
            stepsize_controller=_CONTROLLER,
            max_steps=512,
            max_events=64,
        )
        return sol.x1, eqx.filter(sol.events, eqx.is_array)

    z = np.concatenate([[9.81, 0.8], np.linspace(0.40, 0.58, 10)])
    out, jacobian, forward, reverse = _both_modes(simulate, z[None])
    assert error(reverse, forward) < 1e-10
    (_, events), (end, d_events) = _lane(out, 0), _lane(jacobian, 0)
    assert events.count == 56
    d = _directions(z)
    expected = np.zeros((20, 12))
    for ball in range(10):
        mine = events.event == ball
        n = int(mine.sum())
        x0 = np.stack([d[2 + ball], 0 * d[0]])
        guesses = events.t[mine]
        p = np.stack([*d[:2], 0 * d[0], 0 * d[0]])
        run = _Run(_Ball(), p, x0, 0 * d[0], 0 * d[0] + 2, [0] * n, guesses)
        expected[[ball, 10 + ball]] = _derivative(run.end)
        assert error(d_events.t[mine], _derivative(run.t)) < 1e-7
        assert error(d_events.normal_speed[mine], _derivative(run.speed)) < 1e-7
    assert error(end, expected) < 1e-7
