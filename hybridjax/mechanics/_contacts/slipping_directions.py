"""Directions in which contacts at rest begin to slip.

As after impacts, but others that stick may hold a contact whose force has left its
cone: then its slip does not say where it would go. What says it is how far the others
give way, however little that is: see `docs/concepts/friction.md`.
"""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._jax.reduce import any_of, largest
from ..._jax.tracing import stop_gradient
from .complementarity import Active, weights_of
from .sliding_directions import aims, own, turns
from .tangential import along, norm, of_contacts, unit


def slipping_directions(
    W, c, active: Active, free, friction, slips_so=None
) -> tuple[Active, Float[Array, " n"]]:
    """`active` with directions of the contacts `free` in which they slip from rest, or
    would slip if others gave way; and how fast they do, as `slips_onward`.

    Those whose direction is zero, and so their friction, keep that. The search begins
    with the directions of those that have a slip, `slips_so`. Only in space. They have
    no derivative: that is `turning`, with what they `give`.
    """
    W, c, active, friction = stop_gradient((W, c, active, friction))
    n = friction.shape[0]
    closed, stick, u = active.closed, active.stick, active.direction
    free = turns(active, free)
    slips_so = jnp.zeros_like(free) if slips_so is None else slips_so
    tol, little, w = jnp.finfo(c.dtype).eps ** 0.375, give(c.dtype), own(W, n)

    def step(carry):
        i, u, kappa, *_ = carry
        # At first, where the forces push that it would take to stick, if it has no slip
        # that is near the root. One that pulls goes where it would without friction.
        rubs = jnp.where(of_contacts((kappa > 0) | ~free | slips_so, 2 * n), u, 0)
        at_u = Active(closed, stick | (free & ~slips_so & (i == 0)), u)
        active = eqx.tree_at(lambda a: a.direction, at_u, rubs)
        z, forces, moves, inverse = aims(W, c, active, friction, kappa, little)
        # A slip against its direction is taken for none. So the equations stay regular,
        # and such a root repels, unless it is that of a slip which ends.
        onward = along(u, moves[n:], n)
        z = z - of_contacts(jnp.minimum(onward, 0), 2 * n) / w * u
        onward = onward + _slack(W, c, at_u, friction, forces, inverse)
        new = jnp.where(of_contacts(free, 2 * n), unit(z, n), u)
        # Not by the size of `z`: what it took to stick is more than its friction, and
        # would hold it as if it slipped fast.
        slip = jnp.maximum(along(new, moves[n:] / w, n), 0)
        press = friction * forces[:n]
        presses = free & (press > 0)
        kappa = jnp.where(presses, press / (jnp.where(presses, press, 1) + slip), 0)
        change = largest(norm(new - u, n))
        # Where one accelerates against its direction, and fast, it is another root.
        back = presses & ~slips_so & (along(new, moves[n:] / w, n) < -press / 4)
        back = back & (i < _STEPS - _LAST)
        new = jnp.where(of_contacts(back, 2 * n), -new, new)
        kappa = jnp.where(back, 0, kappa)
        change = jnp.where(back.any(), jnp.inf, change)
        return i + 1, new, kappa, onward, change

    def going_on(carry):
        i, *_, change = carry
        return (i < _STEPS) & ~((i > 1) & (change <= tol)) & any_of(free)

    none = jnp.zeros_like(c[:n])
    endless = jnp.asarray(jnp.inf, c.dtype)
    init = jnp.asarray(0, jnp.int32), u, none, none, endless
    _, u, _, onward, _ = lax.while_loop(going_on, step, init)
    return eqx.tree_at(lambda a: a.direction, active, u), onward


def give(dtype) -> float:
    """How far contacts give way. With less, rounding would show in the directions of
    what is held."""
    return float(jnp.finfo(dtype).eps) ** 0.43


def slips_onward(W, c, active: Active, friction):
    """Positive for contacts that slip from rest, or would slip if others gave way; and
    not for those whose friction, if they gave way too, would be less than half of it.
    """
    n, little = friction.shape[0], give(c.dtype)
    kappa = jnp.zeros_like(friction)
    _, forces, moves, inverse = aims(W, c, active, friction, kappa, little)
    onward = along(active.direction, moves[n:], n)
    return onward + _slack(W, c, active, friction, forces, inverse)


def _slack(W, c, active: Active, friction, forces, inverse):
    """How far the acceleration of a slip that ends is from zero."""
    n, little = friction.shape[0], give(c.dtype)
    yielding = little * weights_of(W, n)[n : 2 * n]
    # What is held moves by its force no more than it would give way. What is not held,
    # beside others that stick, would not stick where these give way a little.
    x, y = active.direction[:n, None], active.direction[n:, None]
    rows = lambda a: x * a[n : 2 * n] + y * a[2 * n :]
    mobility = jnp.maximum(jnp.sum(rows(W) * rows(inverse.T), axis=1), 0)
    # (Limits of joints have no tangents, and neither.)
    both = jnp.where(yielding > 0, yielding + mobility, 1)
    held = jnp.where(jnp.any(active.closed & active.stick), yielding / both, 0)
    spring = yielding * friction * forces[:n]
    free = 10 * little * largest(jnp.abs(c)) + spring
    return free - held * (free + spring / 2)


# Where several are held, each for another reason, it takes twenty or thirty; and more
# where all are about to move. The last ones do not turn back.
_STEPS, _LAST = 96, 8
