"""The contact modes at the start: found, or checked."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._jax.deferred import deferred
from ..._jax.shared import Shared
from .._dynamics.coordinates import qdot
from .._dynamics.dot import dot
from .._dynamics.multibody import drift_tolerance
from .complementarity import Active, force_size
from .contact_mode import ContactMode
from .creep import with_creep
from .dry_friction import with_dry
from .forces import active_in, is_closed
from .guards import watched_values
from .impact import closing, stopping
from .kinematics import little, Point, point, slick
from .settling import settle
from .tangential import along, in_space, norm, unit


# What can be wrong with contact {0}, from 1 on; the last one is `CROWDED`.
FAULTS = (
    "Argument `x0` is below ground: the gap of contact {0} is negative. Start with "
    "gaps that are positive or zero.",
    "Argument `mode0` says that contact {0} is closed, but in `x0` its gap is not "
    "zero. Start with it free, or leave `mode0` out.",
    "Argument `x0` moves against `mode0`: contact {0} is closed, but its normal "
    "velocity is not zero. Start with it free (it then touches down at once), or leave "
    "`mode0` out.",
    "Argument `x0` moves against `mode0`: the tangential velocity of contact {0} "
    "is not zero, although it sticks, or has the wrong sign. Leave `mode0` out.",
    "Argument `mode0` has a mode of sliding for contact {0} that it does not have: "
    "with two tangential directions these are `SLIDING` and `SLIPPING`, with one those "
    "with `FORWARD` and `BACKWARD`. Take one of them, or leave `mode0` out.",
    "Argument `mode0` says that contact {0} is open, but it is dry friction, which "
    "sticks or slides. Leave `mode0` out.",
    "Argument `normals` is not the derivative of `gap`: times a velocity it is not the "
    "rate of gap {0}. Its rows are with respect to `v`. Correct it, or leave it out.",
    "Argument `most_closed` is less than the number of contacts that are closed at the "
    "start, contact {0} among them. Pass a larger number, or `None`.",
)


def start_contacts(
    system, t, x, mode, args
) -> tuple[tuple, Int[Array, " n"], Int[Array, " n"]]:
    """The state, with closed contacts closed; the mode, found if it is `None`, or not
    what the forces allow; and for each contact the number of its fault, or 0."""
    return _start(Shared.of((system, t, x, mode, args)))


@eqx.filter_jit
def _start(shared):
    return deferred(_start_contacts, *shared.tree())


def _start_contacts(system, t, x, mode, args):
    q, v = x
    n = system.n_contacts
    p = point(system, t, q, v, args)
    tol = jnp.finfo(q.dtype).eps ** 0.375
    length, speed = (1 + jnp.max(jnp.abs(a)) for a in (q, v))
    normal = p.velocity[:n]
    slip = p.velocity[n:] if system.tangents is not None else jnp.zeros_like(normal)
    slip_speed = norm(slip, n)
    spatial = in_space(p.c.shape[0], n)
    none = jnp.zeros((n,), bool)
    closed, stick = none, none  # by the given mode
    if mode is None:
        touching = jnp.abs(normal) <= tol * speed
        touching = touching & (jnp.abs(p.gap) <= tol * length)
        at_rest = tol * speed
        if system.whole.dry:
            # What has dry friction may move as slowly as it likes.
            rounding = jnp.finfo(q.dtype).eps ** 0.75 * (speed - 1)
            at_rest = jnp.where(system.is_dry, rounding, at_rest)
        resting = touching & (slip_speed <= at_rest)
        guess = Active(touching, resting, unit(slip, n))
        mode = jnp.full((n,), int(ContactMode.FREE), jnp.int32)
        if system.apex:
            mode = jnp.where(normal > 0, int(ContactMode.RISING), mode)
        changes = jnp.asarray(True)
        may_be_off = tol
        of_mode = [none] * 5
    else:
        mode = with_creep(system, p, mode) if spatial else mode
        guess = active_in(system, p, mode)
        closed, stick = guess.closed, guess.stick
        wrong = jnp.where(stick, slip_speed, -along(guess.direction, slip, n))
        of_space = (mode == ContactMode.SLIDING) | (mode == ContactMode.SLIPPING)
        of_plane = closed & ~stick & ~of_space
        rubs = closed & ~slick(system)
        # The forces may jump with what drives them, from one simulation to the next:
        # then contacts open, or slip. Their guards do not fire, as they may be rising.
        changes = _disagree(system, p, guess, mode).any()
        may_be_off = jnp.where(closed, drift_tolerance(q.dtype), tol)
        of_mode = [
            closed & (jnp.abs(p.gap) > may_be_off * length),
            closed & (jnp.abs(normal) > may_be_off * speed),
            rubs & (wrong > may_be_off * speed),
            of_plane if spatial else of_space,
            ~closed & system.is_dry,
        ]
    settled, _ = settle(
        system, p, mode, guess, none, jnp.asarray(False), none, drifts=False
    )
    mode = jnp.where(changes, settled, mode)
    mode = with_creep(system, p, mode) if spatial else mode
    # Those of the given mode begin on their surface, and at rest, also where they open.
    begins = Active(
        closed | is_closed(mode),
        stick | (mode == ContactMode.STICKING),
        guess.direction,
    )
    below = p.gap < -may_be_off * length
    normals = _other_normals(system.whole, q, v, args, tol)
    faults = [below, *of_mode, normals, _crowded(system.whole, mode)]
    first = jnp.stack([none, *faults]).argmax(axis=0).astype(jnp.int32)
    sound = ~first.any()
    q = q + jnp.where(sound, closing(system, q, p, begins), 0)
    v = v + jnp.where(sound, stopping(system, p, begins), 0)
    return (q, v), mode, first


def _disagree(system, p: Point, active: Active, mode):
    """Which modes are not those of their forces and accelerations?"""
    guards = watched_values(system, p, active, mode).reshape(-1, mode.shape[0])
    force = force_size(p.W, p.size, jnp.zeros_like(p.c))
    force = jnp.finfo(p.c.dtype).eps ** 0.6 * force
    of_normal = jnp.where(active.closed, force, little(p))
    of_tangent = jnp.where(active.stick, force, little(p))
    tolerance = jnp.stack([of_normal] + [of_tangent] * (guards.shape[0] - 1))
    moves = active.closed | (mode == ContactMode.LIFTING)
    disagree = (guards < -tolerance).any(axis=0)
    if system.tangents is not None:
        # Whether there is a solution is a number, without a unit.
        disagree = disagree | (guards[-1] <= 0)
    return moves & disagree


def _crowded(system, mode):
    """Which contacts take part where more do than may?"""
    taking_part = mode != ContactMode.FREE
    if system.most_closed is None:
        return jnp.zeros_like(taking_part)
    return taking_part & (jnp.sum(taking_part) > system.most_closed)


def _other_normals(system, q, v, args, tol):
    """Which gaps have another rate than `normals` says?"""
    if system.normals is None:
        return jnp.zeros((system.n_contacts,), bool)
    velocity = jnp.cos(jnp.arange(v.shape[0], dtype=q.dtype))
    dq = qdot(system.velocity_to_qdot, q, velocity)
    _, rate = jax.jvp(lambda q: system.gap(q, args), (q,), (dq,))
    normals = system.normals(q, args)
    size = dot(jnp.abs(normals), jnp.abs(velocity)) + jnp.abs(rate)
    return with_dry(system, jnp.abs(dot(normals, velocity) - rate) > tol * size)
