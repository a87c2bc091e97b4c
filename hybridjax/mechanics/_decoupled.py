from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._jax.diagonal import diagonal
from ._contacts.kinematics import point
from ._contacts.some_contacts import SomeContacts
from ._mechanical import MechanicalSystem


class Decoupling(eqx.Module):
    r"""What `hj.mechanics.decoupled` found. As a `bool` it is whether the
    limbs are decoupled through the body: `orthogonal and through_body`.

    - `coupling`: of shape `(n_contacts, n_contacts)`: the cosines of the angles between
        the constraints, in the metric of the mass matrix.
    - `orthogonal`: whether they are zero, (6): an impact of one contact does not change
        the normal velocity of another, so that outcomes are continuous.
    - `through_body`: whether Assumption 3 holds here: the mass matrix falls into blocks
        with at most one limb each, and no limb acts on another one, nor on the body in
        a way that depends on another one. Then outcomes are differentiable.
    """

    coupling: Float[Array, "n n"]
    orthogonal: Bool[Array, ""]
    through_body: Bool[Array, ""]

    def __bool__(self) -> bool:
        return bool(self.orthogonal & self.through_body)


@eqx.filter_jit
def decoupled(
    system: MechanicalSystem,
    q: Float[Array, " d"],
    args: Any = None,
    *,
    v: Float[Array, " d"] | None = None,
    t: Any = 0.0,
) -> Decoupling:
    r"""Are the limbs inertially decoupled, at this configuration?

    If they are, then where several contacts close in one instant, the final state is a
    differentiable function of the initial one. If not even $\mathrm D a_i M^{-1}
    \mathrm D a_j^\top = 0$, it is in general discontinuous.

    The *limb* of contact $j$ are the coordinates on which its gap depends, and those
    that share a block of the mass matrix with them; the others are the *body*. What
    Assumption 3 says of functions is tested by their derivatives at this point (zero
    to rounding): those of the mass matrix and, in $q$ and $v$, the first and second
    ones of the effort, and the first ones of the restitution.

    **Arguments:**

    - `system`: a `hj.mechanics.MechanicalSystem`.
    - `q`: configuration, of shape `(d,)`.
    - `args`: as passed to `hj.simulate`.
    - `v`: velocity, of shape `(d,)`. `None` is ones: in general position.
    - `t`: time.

    **Returns:**

    A `hj.mechanics.Decoupling`, which is true or false.

    **Raises:**

    - `ValueError` if the system has bilateral constraints, a `velocity_to_qdot`, or
      `dry_friction`.

    ??? cite "Reference"

        Pace, Burden, *Decoupled limbs yield differentiable trajectory outcomes through
        intermittent contact in locomotion and manipulation*, (6), Assumption 3 and
        Theorem 1.
    """
    if system.constraints is not None:
        raise ValueError(
            "Argument `system` must have no bilateral constraints: they bind limbs to "
            "each other in ways that are not looked at here. Use independent "
            "coordinates."
        )
    if system.velocity_to_qdot is not None:
        raise ValueError(
            "Argument `system` must have velocities that are the rates of its "
            "configuration, as limbs are looked for in coordinates. Use angles in "
            "place of `velocity_to_qdot`."
        )
    if system.dry:
        raise ValueError(
            "Argument `system` must have no `dry_friction`: forces that jump where a "
            "velocity turns are not looked at here."
        )
    v = jnp.ones_like(q) if v is None else v
    t = jnp.asarray(t, q.dtype)
    n, d = system.n_contacts, q.shape[0]
    tol = 64 * jnp.finfo(q.dtype).eps
    p = point(SomeContacts(system, q.dtype), t, q, v, args)
    W = p.W[:n, :n]
    norms = jnp.sqrt(diagonal(W))
    coupling = W / jnp.outer(norms, norms)
    off = ~jnp.eye(n, dtype=bool)
    orthogonal = jnp.all(jnp.where(off, jnp.abs(coupling), 0) <= tol)

    # Which coordinates belong together: blocks of the mass matrix, as a graph.
    def mass(q):
        M = system.mass_matrix(q, args)
        return jnp.diag(M) if M.ndim == 1 else M

    M = mass(q)
    size = jnp.sqrt(diagonal(M))
    linked = jnp.abs(M) > tol * jnp.outer(size, size)
    for _ in range(max(d - 1, 1).bit_length()):
        linked = jnp.matmul(linked.astype(q.dtype), linked.astype(q.dtype)) > 0
    touched = jnp.abs(p.jacobian[:n]) > tol * jnp.max(jnp.abs(p.jacobian[:n]))
    limbs = jnp.matmul(touched.astype(q.dtype), linked.astype(q.dtype)) > 0  # (n, d)
    apart = jnp.all(jnp.sum(limbs, axis=0) <= 1)

    # No block may change with a coordinate of another one.
    change = jnp.abs(jax.jacfwd(mass)(q))  # (d, d, d)
    foreign = jnp.broadcast_to(~linked[:, None, :], change.shape)
    own_mass = jnp.all(jnp.where(foreign, change, 0) <= tol * jnp.max(jnp.abs(M)))

    # Nor may a limb feel another one, nor the body feel two of them together.
    def effort(x):
        q, v = x[:d], x[d:]
        force = system.effort(t, q, v, args)
        return force if system.bias is None else force - system.bias(q, v, args)

    x = jnp.concatenate([q, v])
    first = jnp.abs(jax.jacfwd(effort)(x))  # (d, 2d)
    second = jnp.abs(jax.jacfwd(jax.jacfwd(effort))(x))  # (d, 2d, 2d)
    of = jnp.concatenate([limbs, limbs], axis=1).astype(q.dtype)  # (n, 2d)
    other = jnp.sum(of, axis=0, keepdims=True) - of  # coordinates of other limbs
    bounce = lambda x: system.restitution(x[:d], x[d:], args)
    strange = jnp.sum(jnp.abs(jax.jacfwd(bounce)(x)) * (1 - of))
    felt = jnp.einsum("nd,de,ne->", limbs.astype(q.dtype), first, other)
    body = 1 - jnp.clip(jnp.sum(limbs, axis=0), 0, 1).astype(q.dtype)
    mixed = jnp.einsum("d,def,ne,nf->", body, second, of, other)
    apart = (
        apart & own_mass & (strange <= tol) & (felt <= tol * jnp.max(first, initial=0))
    )
    apart = apart & (mixed <= tol * jnp.max(second, initial=0))
    return Decoupling(coupling, orthogonal, apart)
