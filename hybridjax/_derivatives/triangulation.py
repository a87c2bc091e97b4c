"""The triangulation of the flow near a corner without resets, by Council, Revzen and
Burden."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._events.firing import fires_at_once
from .corner_point import CornerPoint


# The triangulation has 2**n vertices.
_MAX_VERTICES = 16


def sample_corner(
    point: CornerPoint, numbers: list[int]
) -> tuple[Float[Array, "n d"], Float[Array, "b d"]]:
    """Normals Dh of the guards at zero, shape `(n, d)`, and the vector fields F_b,
    shape `(2**n, d)`; or a `ValueError`."""
    n = len(numbers)
    if n > _MAX_VERTICES:
        raise ValueError(
            f"The triangulation of a corner of {n} guards has 2**{n} vertices, and "
            f"more than 2**{_MAX_VERTICES} are not computed. Call the `BDerivative` "
            "with the tangents of interest, or use its `matrix(order)`."
        )
    sampled = _sample(point, np.asarray(numbers, np.int32), _sign_vectors(n))
    normals, in_time, fields, resets, once = sampled
    reason = None
    if bool(resets):
        reason = "a reset changes the state"
    elif not bool(once):
        reason = "not just each of the guards at zero fires, once"
    elif bool(jnp.any(in_time != 0)):
        reason = (
            "a guard depends on time explicitly (make time a state, with the "
            "derivative 1)"
        )
    elif int(jnp.linalg.matrix_rank(normals)) < n:
        reason = "the normals of the guards are linearly dependent"
    if reason is not None:
        raise ValueError(
            f"There is no triangulation of the flow at this corner: {reason}. Call the "
            "`BDerivative` with the tangents of interest, or use its `matrix(order)`."
        )
    return normals, fields


def vertices(normals, fields) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
    """(33), (35): before the corner and after it."""
    after = _sign_vectors(normals.shape[0])
    speeds = jnp.where(after, 0, _dot(fields, normals.T))
    z_minus = -_dot(speeds, jnp.linalg.pinv(normals).T)
    return z_minus, z_minus + fields


def generators(normals, fields, order: Int[np.ndarray, " n"]) -> Float[Array, "k d"]:
    """(58): of the cone of tangents that take an order."""
    z_minus, _ = vertices(normals, fields)
    points = z_minus[np.cumsum(2**order)[:-1]]
    # The tangents that meet all guards at once, and are orthogonal to ker Dh.
    common = _dot(jnp.linalg.pinv(normals), _dot(normals, fields[0]))
    common = common / jnp.linalg.norm(common)
    return points - jnp.outer(_dot(points, common), common)


def _sign_vectors(n: int) -> Bool[np.ndarray, "b n"]:
    """All `b`, as rows: whether they are +1."""
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) == 1


def _dot(a, b):
    # A default-precision product has ten bits on some accelerators.
    return jnp.matmul(a, b, precision="highest")


@eqx.filter_jit
def _sample(point: CornerPoint, numbers, chosen):
    """What Council's sampled system is made of, and whether it exists.

    **Returns:**

    The normals of the guards `numbers`, their derivatives in time, the vector fields
    after the guards of each row of `chosen` have fired, whether a reset changes the
    state or its tangents, and whether each of the guards, and no other, fires once.
    """
    system, x, _ = point.flatten()
    t = point.t
    guards = lambda t, x: system.guards(t, x, point.mode)[numbers]
    normals = -jax.jacrev(guards, argnums=1)(t, x)
    in_time = -jax.jacfwd(guards, argnums=0)(t, x)
    identity = jnp.eye(x.shape[0], dtype=x.dtype)

    def fire(carry, inputs):
        mode, resets = carry
        j, fires = inputs
        jump = lambda t, x: system.jump(t, x, mode, j)
        x_plus, mode_plus = jump(t, x)
        by_time, by_x = jax.jacfwd(lambda t, x: jump(t, x)[0], argnums=(0, 1))(t, x)
        same = jnp.all(x_plus == x) & jnp.all(by_x == identity) & jnp.all(by_time == 0)
        mode = jtu.tree_map(lambda a, b: jnp.where(fires, a, b), mode_plus, mode)
        return (mode, resets | (fires & ~same)), None

    def one(chosen):
        init = (point.mode, jnp.asarray(False))
        (mode, resets), _ = lax.scan(fire, init, (numbers, chosen))
        flow = system.flow(t, x, mode)
        g, rate = system.guard_rates(t, x, mode, flow)
        left = jnp.zeros_like(g, bool).at[numbers].set(~chosen)
        once = jnp.all(fires_at_once(g, rate, point.tol) == left)
        return flow, resets, once

    fields, resets, once = jax.vmap(one)(chosen)
    return normals, in_time, fields, resets.any(), once.all()
