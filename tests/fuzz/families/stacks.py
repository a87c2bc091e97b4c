"""A load on a cart, both with dry friction, and a force on the cart that changes.

They slide, stop, stick and start, in all combinations, and what one does makes the
acceleration of the other jump. Normal forces are constant: positions are polynomials.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..core import DURATION, Family, Parameter, START
from ..reference import UNWATCHED


def _build(p):
    t0, speeds = p[0], p[2:4]
    cart, load, gravity, force, growth = p[4:9]
    masses = jnp.stack([cart, cart, load, load])

    def effort(t, q, v, args):
        weight = -masses * gravity * jnp.array([0, 1, 0, 1], p.dtype)
        return weight.at[0].add(force + growth * (t - t0))

    system = MechanicalSystem(
        lambda q, args: jnp.diag(masses),
        effort,
        lambda q, args: jnp.stack([q[1], q[3] - q[1]]),
        2,
        tangents=lambda q, args: jnp.array([[1, 0, 0, 0], [-1, 0, 1, 0]], q.dtype),
        friction=p[9:11],
        static_friction=p[11:13],
        stabilization=p[13],
    )
    slips = jnp.stack([speeds[0], speeds[1] - speeds[0]])
    modes = jnp.where(slips > 0, ContactMode.FORWARD, ContactMode.BACKWARD)
    v = jnp.zeros(4, p.dtype).at[::2].set(speeds)
    return system, (jnp.zeros(4, p.dtype), v), modes.astype(jnp.int32)


def _normal(z):
    cart, load, gravity = z[4:7]
    return np.stack([(cart + load) * gravity, load * gravity])


def _solve(z, t, mode):
    """Accelerations of cart and load, and friction on each from below, where contacts
    slip in the directions `mode`, or stick."""
    cart, load = z[4:6]
    force = z[7] + z[8] * t
    slides, apart = mode[0] != 0, mode[1] != 0
    ground, top = (
        -m * mu * n for m, mu, n in zip(mode, z[9:11], _normal(z), strict=True)
    )
    together = np.where(slides, (force + ground) / (cart + load), 0)
    top = np.where(apart, top, load * together)
    ground = np.where(slides, ground, top - force)
    a = np.stack([(force + ground - top) / cart, top / load])
    return a, np.stack([ground, top])


class _Reference:
    def start(self, z):
        zero = 0 * z[2]
        x = np.stack([zero, zero, zero, zero, z[2], zero, z[3], zero])
        slips = [z[2, 0].real, z[3, 0].real - z[2, 0].real]
        return x, np.sign(slips).astype(int)

    def flow(self, z, t, x, mode, dt):
        # Accelerations are linear in time.
        now, then = (_solve(z, s, mode)[0] for s in (t, t + dt))
        zero = np.zeros_like(now[0])
        now, then = (np.stack([a[0], zero, a[1], zero]) for a in (now, then))
        q = x[:4] + x[4:] * dt + (2 * now + then) * dt**2 / 6
        return np.concatenate([q, x[4:] + (now + then) * dt / 2])

    def guards(self, z, t, x, mode):
        _, friction = _solve(z, t, mode)
        limit = z[11:13] * _normal(z)
        slip = x[4], x[6] - x[4]
        g = []
        for m, f, most, v in zip(mode, friction, limit, slip, strict=True):
            g.append(np.where(m == 0, most - f, m * v))
            g.append(np.where(m == 0, most + f, UNWATCHED))
        return np.stack(g)

    def jump(self, z, t, x, mode, event):
        contact, lanes = event // 2, np.arange(event.size)
        fired = np.arange(2)[:, None] == contact
        leaves = fired & (mode == 0)
        known = np.where(leaves, np.where(event % 2 == 0, -1, 1), mode)
        unknown = np.where(fired, ~leaves, mode == 0)
        real, now = z[:, 0].real, t[0].real
        limit = real[11:13] * _normal(real)
        found = np.zeros_like(mode)
        settled = np.zeros(lanes.size, bool)
        # Those that stick first.
        signs = itertools.product((0, 1, -1), repeat=2)
        for some in sorted(signs, key=np.count_nonzero):
            trial = np.where(unknown, np.array(some)[:, None], known)
            a, friction = _solve(real, now, trial)
            slides = trial * np.stack([a[0], a[1] - a[0]]) > 0
            good = np.where(trial == 0, np.abs(friction) <= limit, slides)
            good = (good | ~unknown).all(axis=0) & ~settled
            found = np.where(good, trial, found)
            settled |= good
        stops = fired & ~leaves
        cart = np.where(stops[0], 0, x[4])
        load = np.where(stops[1], cart, x[6])
        return np.stack([*x[:4], cart, x[5], load, x[7]]), found


def _draw(rng, n, gaps):
    cart, load = rng.uniform(0.5, 2, (2, n))
    gravity = rng.uniform(2, 12, n)
    kinetic = rng.uniform(0.1, 0.8, (2, n))
    static = kinetic * rng.uniform(1.05, 1.5, (2, n))
    limit = static[0] * (cart + load) * gravity
    t0, duration = rng.uniform(-1, 1, n), rng.uniform(0.3, 1.5, n)
    force = limit * rng.uniform(-1, 1, n)
    growth = limit / duration * rng.uniform(-4, 4, n)
    speeds = rng.uniform(-2, 2, (2, n))
    rows = [t0, duration, *speeds, cart, load, gravity, force, growth]
    return np.stack([*rows, *kinetic, *static, 5 + 0 * force], axis=1)


STACKS = Family(
    name="stacks",
    parameters=(
        START,
        DURATION,
        Parameter("speed of the cart", 1, -1),
        Parameter("speed of the load", 1, -1),
        Parameter("mass of the cart"),
        Parameter("mass of the load"),
        Parameter("gravity", 1, -2),
        Parameter("force", 1, -2),
        Parameter("growth of the force", 1, -3),
        Parameter("friction of the cart"),
        Parameter("friction of the load"),
        Parameter("static friction of the cart"),
        Parameter("static friction of the load"),
        Parameter("stabilization", 0, -1, moves=False),
    ),
    draw=_draw,
    build=_build,
    reference=_Reference(),
    state=((1, 0),) * 4 + ((1, -1),) * 4,
    n_times=1,
    guards=False,
    ties=False,
    cells=64,
)
