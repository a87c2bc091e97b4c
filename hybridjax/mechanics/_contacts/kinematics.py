"""What the contacts look like in a state, whatever their mode."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._jax.tracing import stop_gradient
from ..._systems.parameter import in_dtype
from ..._systems.rest import RestSpeed, ROUNDING
from .._dynamics.coordinates import pull_back, qdot, spans
from .._dynamics.dot import dot
from .dry_friction import pressed, with_dry, with_slips
from .tangential import in_space, norm, rows_of


class Point(eqx.Module):
    """Kinematics and dynamics of all contacts: normal rows, then tangential ones."""

    every_gap: Float[Array, " every"]  # also of contacts that are in no slot
    gap: Float[Array, " n"]
    velocity: Float[Array, " rows"]
    jacobian: Float[Array, "rows d"]
    multipliers: Float[Array, "m columns"]  # without contact, then by contact forces
    unconstrained: Float[Array, " d"]  # the acceleration without contact
    response: Float[Array, "d rows"]  # of it to contact forces: M^-1 J^T
    W: Float[Array, "rows rows"]
    c: Float[Array, " rows"]  # accelerations of gaps and slips without contact
    # Of what gaps, velocities and accelerations are the sums of: in relation to it,
    # what cancels is rounding. They have derivatives: guards are offset by them, and
    # have to move as their rates say.
    length: Float[Array, ""]
    speed: Float[Array, ""]
    size: Float[Array, ""]


def point(system, t, q, v, args) -> Point:
    """What the contacts look like in a state, whatever their mode."""
    whole = system.whole

    def rows(q):
        a, normals = gaps(whole, q, v, args)
        if whole.tangents is None:
            return normals, a
        tangents = whole.tangents(q, args)
        if whole.dry:
            a, normals = with_dry(whole, a), with_dry(whole, normals)
            tangents = with_slips(whole, tangents)
        return jnp.concatenate([normals, rows_of(tangents)]), a

    dq = qdot(whole.velocity_to_qdot, q, v)
    jacobian, turning, a = jax.jvp(rows, (q,), (dq,), has_aux=True)
    rate, bias = dot(jacobian, v), dot(turning, v)
    if whole.surface is not None:
        n, one = whole.n_contacts, jnp.ones_like(t)
        surface = lambda t: with_dry(whole, whole.surface(t, args))
        along = lambda t: jax.jvp(surface, (t,), (one,))
        (s, s_rate), (_, s_bias) = jax.jvp(along, (t,), (one,))
        a = a - s
        less = lambda a, s: jnp.concatenate([a[:n] - s, a[n:]])
        rate, bias = less(rate, s_rate), less(bias, s_bias)
    of_some = system.take_rows(jacobian)
    solved, multipliers = system.body.solve(t, q, v, args, of_some.T)
    moved = dot(of_some, solved)
    W, c = moved[:, 1:], moved[:, 0] + system.take_rows(bias)
    heaviest = 0
    if whole.dry:
        masses, weights = pressed(system, W)
        W, c, heaviest = W + masses, c + weights, jnp.max(jnp.abs(weights))
    # Of all contacts: how exact they are does not change with which are chosen.
    sizes = _sizes(whole, q, v, a, rate, bias, jacobian, solved[:, 0], heaviest)
    point = Point(
        every_gap=a,
        gap=system.take(a),
        velocity=system.take_rows(rate),
        jacobian=of_some,
        multipliers=multipliers,
        unconstrained=solved[:, 0],
        response=solved[:, 1:],
        W=W,
        c=c,
        **sizes,
    )
    return in_dtype(point, q.dtype)


def _sizes(system, q, v, gap, rate, bias, jacobian, unconstrained, heaviest):
    lengths = spans(system.velocity_to_qdot, *stop_gradient((q, v)))
    columns = jnp.stack([lengths, v, unconstrained], axis=1)
    heights, speeds, accelerations = dot(jnp.abs(jacobian), jnp.abs(columns)).T
    largest = lambda a: jnp.max(jnp.abs(a))
    return dict(
        length=largest(gap) + largest(heights[: system.n_contacts]),
        speed=largest(rate) + largest(speeds),
        size=largest(bias) + largest(accelerations) + heaviest,
    )


def gaps(system, q, v, args) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """And how velocities change them."""
    if system.normals is not None:
        return system.gap(q, args), system.normals(q, args)
    a, pull = jax.vjp(lambda q: system.gap(q, args), q)
    (by_q,) = jax.vmap(pull)(np.eye(a.shape[0], dtype=a.dtype))
    pull_row = lambda row: pull_back(system.velocity_to_qdot, q, v, row)
    return a, jax.vmap(pull_row)(by_q)


def still(system, p: Point):
    """Contacts whose tangential velocity is zero up to errors: those of a rigid
    body stop together."""
    n = system.n_contacts
    if system.tangents is None:
        return jnp.ones((n,), bool)
    if in_space(p.c.shape[0], n):
        return norm(p.velocity[n:], n) <= 2 * stop_speed(system, p)
    stopping_time = 10 * jnp.sqrt(jnp.finfo(p.c.dtype).eps) / (1 + system.stabilization)
    return jnp.abs(p.velocity[n:]) <= stopping_time * p.size


def stop_speed(system, p: Point) -> Float[Array, ""]:
    """The speed at which a slide in space ends: see `docs/concepts/friction.md`."""
    given, least = system.rest_speed.given, _least_speed(system, p)
    return least if given is None else jnp.maximum(least, given)


def onset_speeds(system, p: Point) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The speeds from which on what slips in space turns to its slip, and slides: see
    there."""
    # An error goes with the square of the second one, which follows the tolerance.
    slow = 4 * stop_speed(system, p)
    return slow, jnp.maximum(slow, _ONSET * _least_speed(system, p))


def _least_speed(system, p: Point) -> Float[Array, ""]:
    height, limits = system.rest_speed.height, jnp.finfo(p.c.dtype)
    limit = RestSpeed(None, None if height is None else _SHARE * height)
    return limit(p.size + limits.tiny, ROUNDING * limits.eps * p.length)


# Of the height of a bounce that is left out: the rest of a slide.
_SHARE = 0.01

# How many times faster a slide begins than it ends.
_ONSET = 40


def little(p: Point):
    """An acceleration that is zero, up to errors."""
    return jnp.finfo(p.c.dtype).eps ** 0.6 * (jnp.finfo(p.c.dtype).tiny + p.size)


def slick(system) -> Bool[Array, " n_contacts"]:
    """Contacts without friction: their sliding has no direction."""
    if system.tangents is None:
        return jnp.ones((system.n_contacts,), bool)
    return (system.friction == 0) & (system.static_friction == 0)
