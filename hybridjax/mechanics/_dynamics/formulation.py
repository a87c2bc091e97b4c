"""How bilateral constraints become part of the equations of motion."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._jax.diagonal import diagonal
from ..._systems.parameter import parameter
from ..._systems.stabilization import stabilization
from .dot import dot
from .inertia import accelerate
from .least_solve import least_solve


class Constraints(eqx.Module):
    """Bilateral constraints at one point of the state space."""

    residual: Float[Array, " m"]  # of the positions
    rate: Float[Array, " m"]  # of the velocities
    jacobian: Float[Array, "m d"]
    target: Float[Array, " m"]  # C of (31c): what the jacobian times v̇ must be


class AbstractFormulation(eqx.Module):
    """How bilateral constraints become part of the equations of motion."""

    @abc.abstractmethod
    def __call__(
        self, mass, constraints: Constraints, forces: Float[Array, "d k"]
    ) -> tuple[Float[Array, "d k"], Float[Array, "m k"]]:
        """Accelerations and multipliers: the first column for the first column of
        `forces`, the others are what the others add."""


class IndexOne(AbstractFormulation):
    r"""Constraints as equations for the accelerations: the index-1 formulation.

    $$\begin{pmatrix} M & \Phi_q^\top \\ \Phi_q & 0 \end{pmatrix}
    \begin{pmatrix} \dot v \\ \lambda \end{pmatrix}
    = \begin{pmatrix} F \\ C - 2 \alpha \dot\Phi - \alpha^2 \Phi \end{pmatrix}$$

    Redundant constraints are allowed, if they agree with each other; their multipliers
    are then the smallest ones.

    **Arguments:**

    - `stabilization`: rate $\alpha$, in 1/time, at which errors of the constraints
        decay, as in Baumgarte (1972). These terms are zero for exact solutions, and not
        differentiated (docs/concepts/contact.md): derivatives are those of the
        equations without them.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (34).
    """

    stabilization: Float[Array, ""] = eqx.field(converter=parameter, default=5.0)

    def __call__(self, mass, constraints, forces):
        G, rate = constraints.jacobian, self.stabilization
        solved = accelerate(mass, jnp.concatenate([forces, G.T], axis=1))
        k = forces.shape[1]
        free, response = solved[:, :k], solved[:, k:]
        errors = 2 * rate * constraints.rate + rate**2 * constraints.residual
        target = constraints.target - stabilization(errors)
        S = dot(G, response)
        missing = dot(G, free) - _first(target, k)
        multipliers = least_solve(S, missing, diagonal(S))
        return free - dot(response, multipliers), multipliers


class Penalty(AbstractFormulation):
    r"""Constraints enforced by inertia, springs and dampers: the penalty formulation.

    $$(M + \Phi_q^\top \alpha \Phi_q) \dot v = F + \Phi_q^\top \alpha (C
    - 2 \xi \omega \dot\Phi - \omega^2 \Phi), \qquad
    \lambda^* = \alpha (\ddot\Phi + 2 \xi \omega \dot\Phi + \omega^2 \Phi).$$

    Constraints are violated by about their forces, over $\alpha \omega^2$.

    **Arguments:**

    - `penalty`: $\alpha$, a number or one for each constraint, in units of mass over
        those of $\Phi_q$ squared.
    - `damping_ratio`: $\xi$.
    - `frequency`: $\omega$, in 1/time.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (40). Definition 17 swaps the names of $\xi$ and $\omega$.
    """

    penalty: Float[Array, "..."] = eqx.field(converter=parameter, default=1e4)
    damping_ratio: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    frequency: Float[Array, ""] = eqx.field(converter=parameter, default=10.0)

    def __call__(self, mass, constraints, forces):
        n = constraints.residual.shape[0]
        if self.penalty.shape not in ((), (n,)):
            raise ValueError(
                "Argument `penalty` must be a number or have one entry for each of "
                f"the {n} constraints, but it has shape {self.penalty.shape}."
            )
        G, w = constraints.jacobian, self.frequency
        errors = 2 * self.damping_ratio * w * constraints.rate
        errors = errors + w**2 * constraints.residual
        penalty = jnp.broadcast_to(self.penalty, (n,))
        weighted = penalty[:, None] * G
        mass = jnp.diag(mass) if mass.ndim == 1 else mass
        target = constraints.target - errors
        columns = forces.shape[1]
        forces = forces + _first(dot(weighted.T, target), columns)
        accelerations = accelerate(mass + dot(G.T, weighted), forces)
        moved = dot(G, accelerations) - _first(target, columns)
        return accelerations, penalty[:, None] * moved


def _first(column, columns: int):
    """A matrix of so many columns, of which the others are zero."""
    return jnp.pad(column[:, None], ((0, 0), (0, columns - 1)))
