"""A load drops on a cart, both with dry friction, and a force on the cart changes.

They slide, stop, stick and start, in all combinations, and what one does makes the
acceleration of the other jump. Normal forces are constant between events, and positions
are polynomials.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from hybridjax.mechanics import ContactMode, MechanicalSystem

from ..core import DURATION, Family, Parameter, START
from ..reference import UNWATCHED


_FREE = 2  # of the load; others are directions of slip, or zero


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
    slides = jnp.where(speeds[0] > 0, ContactMode.FORWARD, ContactMode.BACKWARD)
    modes = jnp.stack([slides, ContactMode.FREE]).astype(jnp.int32)
    q, v = jnp.zeros(4, p.dtype).at[3].set(p[14]), jnp.zeros(4, p.dtype)
    return system, (q, v.at[::2].set(speeds)), modes


def _solve(z, mode, pushes, normals):
    """What cart and load do, and the friction on each from below, where contacts slip
    in the directions `mode`, or stick: from forces accelerations, or from momentum
    before an impact velocities after it."""
    cart, load = z[4:6]
    slides, apart = mode[0] != 0, mode[1] != 0
    ground, top = (-m * mu * n for m, mu, n in zip(mode, z[9:11], normals, strict=True))
    together = np.where(slides, (pushes[0] + pushes[1] + ground) / (cart + load), 0)
    top = np.where(apart, top, load * together - pushes[1])
    ground = np.where(slides, ground, top - pushes[0])
    speeds = (pushes[0] + ground - top) / cart, (pushes[1] + top) / load
    return np.stack(speeds), np.stack([ground, top])


def _forces(z, t, mode):
    cart, load, gravity = z[4:7]
    on_cart = np.where(mode[1] == _FREE, 0, load * gravity)
    pushes = z[7] + z[8] * t, np.zeros_like(t)
    return pushes, np.stack([cart * gravity + on_cart, on_cart])


def _settled(z, mode, unknown, pushes, normals):
    """Modes, where some are not known, that agree with friction; and how many there
    are: static friction beyond the kinetic one allows for several. `z` is real."""
    limit = z[11:13] * normals
    found, count = np.zeros_like(mode), np.zeros(mode.shape[1:], int)
    for some in itertools.product((0, 1, -1), repeat=2):
        some = np.array(some)[:, None]
        trial = np.where(unknown, some, mode)
        speeds, friction = _solve(z, trial, pushes, normals)
        slides = trial * np.stack([speeds[0], speeds[1] - speeds[0]]) > 0
        good = np.where(trial == 0, np.abs(friction) <= limit, slides)
        good = np.where(unknown, good, some == 0).all(axis=0)
        found = np.where(good, trial, found)
        count += good
    return found, count


class _Reference:
    def start(self, z):
        zero = 0 * z[2]
        x = np.stack([zero, zero, zero, z[14], z[2], zero, z[3], zero])
        cart = np.sign(z[2, 0].real).astype(int)
        return x, np.stack([cart, np.full_like(cart, _FREE)])

    def flow(self, z, t, x, mode, dt):
        # Accelerations are linear in time.
        forces = (_forces(z, s, mode) for s in (t, t + dt))
        now, then = (_solve(z, mode, *f)[0] for f in forces)
        zero, fall = np.zeros_like(now[0]), np.where(mode[1] == _FREE, -z[6], 0)
        now, then = (np.stack([a[0], zero, a[1], fall + zero]) for a in (now, then))
        q = x[:4] + x[4:] * dt + (2 * now + then) * dt**2 / 6
        return np.concatenate([q, x[4:] + (now + then) * dt / 2])

    def guards(self, z, t, x, mode):
        pushes, normals = _forces(z, t, mode)
        _, friction = _solve(z, mode, pushes, normals)
        limit = z[11:13] * normals
        slip = x[4], x[6] - x[4]
        g = []
        for m, f, most, v in zip(mode, friction, limit, slip, strict=True):
            g.append(np.where(m == 0, most - f, m * v))
            g.append(np.where(m == 0, most + f, UNWATCHED))
        g[2] = np.where(mode[1] == _FREE, x[3], g[2])
        return np.stack(g)

    def jump(self, z, t, x, mode, event):
        fired = np.arange(2)[:, None] == event // 2
        lands = fired[1] & (mode[1] == _FREE)
        leaves, stops = fired & (mode == 0), fired & (mode != 0)
        real, now = z[:, 0].real, t[0].real
        # An impact is one of both contacts.
        blow = -z[5] * x[7]
        impulses = np.stack([z[4] * x[4], z[5] * x[6]]), np.stack([blow, blow])
        push, normal = np.real(impulses)[:, :, 0]
        struck, ways = _settled(real, mode, np.ones_like(fired), push, normal)
        unique = ~lands | (ways == 1)
        after, _ = _solve(z, struck, *impulses)
        cart = np.where(lands, after[0], np.where(stops[0], 0, x[4]))
        load = np.where(lands, after[1], np.where(stops[1], x[4], x[6]))
        # What stands still by then, and by its forces does not slip, sticks.
        known = np.where(leaves, np.where(event % 2 == 0, -1, 1), mode)
        known = np.where(lands, struck, known)
        unknown = np.where(lands, struck == 0, np.where(fired, stops, mode == 0))
        forces = _forces(real, now, np.where(unknown, 0, known))
        mode, ways = _settled(real, known, unknown, *forces)
        unique &= ways == 1
        rise, up = (np.where(lands, 0, a) for a in (x[3], x[7]))
        x = np.stack([*x[:3], rise, cart, x[5], load, up])
        # What has several outcomes is left out.
        return np.where(unique, x, np.nan), mode


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
    height = gravity * (duration * rng.uniform(0.01, 0.5, n)) ** 2 / 2
    rows = [t0, duration, *speeds, cart, load, gravity, force, growth]
    return np.stack([*rows, *kinetic, *static, 5 + 0 * force, height], axis=1)


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
        Parameter("height", 1),
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
