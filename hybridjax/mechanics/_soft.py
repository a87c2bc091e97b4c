from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._systems.event_selected import EventSelectedSystem
from .._systems.parameter import parameter
from ._dynamics.inertia import accelerate, inertia


def soft_contacts(
    mass_matrix: Callable,
    effort: Callable,
    gap: Callable,
    n_contacts: int,
    *,
    stiffness: ArrayLike,
    damping: ArrayLike | Callable[[Bool[Array, " n_contacts"]], Array] = 0.0,
) -> EventSelectedSystem:
    r"""A mechanical system on which unilateral constraints act by springs and dampers.

    $$M(q) \ddot q + C(q, \dot q) \dot q = f(t, q, \dot q)
    - \sum_j \{\alpha_j\, \mathrm D a_j(q)^\top : a_j(q) < 0\},
    \qquad \alpha_j = \kappa_j a_j(q) + \beta_j \mathrm D a_j(q) \dot q.$$

    Without damping the force is continuous and conservative, so that the flow is
    continuously differentiable. With damping the force jumps where a constraint is
    activated, and where it is released (just before, it can pull). Where several
    constraints are activated in one instant the flow is still continuously
    differentiable, if no $\beta_j$ depends on the other constraints, and only
    piecewise so, if one does.

    **Arguments:**

    - `mass_matrix`: callable `(q, args) -> M`, a symmetric positive definite matrix of
        shape `(d, d)`; or the vector of its diagonal, of shape `(d,)`, if the others
        are zero. The Coriolis terms $C \dot q$ are derived from it.
    - `effort`: callable `(t, q, v, args) -> f`, the applied and internal forces, of
        shape `(d,)`.
    - `gap`: callable `(q, args) -> a`, the constraint functions, of shape
        `(n_contacts,)`. They are violated where negative.
    - `n_contacts`: number of constraints.
    - `stiffness`: $\kappa$, a number or one for each constraint: force per unit of
        $a_j$, for a gap in m in N/m.
    - `damping`: $\beta$, a number or one for each constraint (N s/m); or a callable
        `active -> beta` of the vector that says which constraints are active.

    **Returns:**

    A `hj.EventSelectedSystem`.

    - Its state is the pair `(q, v)` of configuration and velocity, each of shape
        `(d,)`.
    - Its mode has shape `(2 * n_contacts,)`: entry `j` is +1 and entry `n_contacts + j`
        is -1 where constraint `j` is active; the other way round where it is not.
    - Event function `j` is the activation of constraint `j`, $-a_j$; number
        `n_contacts + j` is its release, $a_j$. Each re-arms the other.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*, Equation
        (16); without damping, (15).
    """
    if not callable(damping):
        damping = _Constant(parameter(damping))
    field = _SoftContacts(
        mass_matrix, effort, gap, parameter(stiffness), damping, n_contacts
    )
    other = np.roll(np.eye(2 * n_contacts, dtype=bool), n_contacts, axis=1)
    return EventSelectedSystem(field, _Sides(gap), other)


class _SoftContacts(eqx.Module):
    mass_matrix: Callable
    effort: Callable
    gap: Callable
    stiffness: Float[Array, "..."]
    damping: Callable
    n_contacts: int = eqx.field(static=True)

    def __call__(self, t, x, b, args):
        q, v = x
        n = self.n_contacts
        active = (b[:n] > 0) & (b[n:] < 0)
        gap = lambda q: self.gap(q, args)
        a, rate = jax.jvp(gap, (q,), (v,))
        alpha = self.stiffness * a + self.damping(active) * rate
        _, pull_back = jax.vjp(gap, q)
        (push,) = pull_back(jnp.where(active, -alpha, 0.0))
        force = self.effort(t, q, v, args) + push
        mass, gyroscopic = inertia(self.mass_matrix, q, v, args)
        return v, accelerate(mass, force - gyroscopic)


class _Sides(eqx.Module):
    gap: Callable

    def __call__(self, t, x, args):
        a = self.gap(x[0], args)
        return jnp.concatenate([-a, a])


class _Constant(eqx.Module):
    value: Float[Array, "..."]

    def __call__(self, active: Any):
        return self.value
