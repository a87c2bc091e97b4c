import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter
from ...mechanics import soft_contacts
from .._bodies.planar_body import PlanarBody


def soft_biped(
    mass: ArrayLike = 1.0,
    inertia: ArrayLike = 1.0,
    leg_length: ArrayLike = 1.0,
    spread: ArrayLike = math.pi / 5,
    stiffness: ArrayLike = 10.0,
    damping: ArrayLike = 1.0,
    single_support: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
) -> EventSelectedSystem:
    r"""A body with two rigid massless legs, that falls on a soft hill.

    The feet are at the angles $\theta - \psi$ (right) and $\theta + \pi + \psi$ (left)
    from the centre of mass, the hill has the height $-X^2$ at $X$:

    $$a_1 = y + \ell \sin(\theta - \psi) + (x + \ell \cos(\theta - \psi))^2, \qquad
    a_2 = y - \ell \sin(\theta + \psi) + (x - \ell \cos(\theta + \psi))^2.$$

    At $x = \theta = 0$ both are reached in the same instant. The damping of both feet
    is $\beta$ while both are in the ground, and $\beta_1$ while one is. If they are
    equal, the flow is continuously differentiable there. If not, the two orders of
    touchdown have different saltation matrices, and the flow is only piecewise
    differentiable.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `inertia`: $J$, about the centre of mass, in kg m².
    - `leg_length`: $\ell$, in m.
    - `spread`: $\psi$, the angle of the legs below the horizontal, in rad.
    - `stiffness`: $\kappa$ of the ground, in N/m.
    - `damping`: $\beta$ of the ground, in N s/m; 0 makes it conservative.
    - `single_support`: $\beta_1 / \beta$. 1, or 1/2 in Figure 4 (right) of the paper.
    - `gravity`: $g$, in m/s².

    **Returns:**

    The system of `hj.mechanics.soft_contacts` with the gaps $a_1$ (right
    foot) and $a_2$ (left foot). The configuration is $(x, y, \theta)$ in m and rad.

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*, Section
        3.2.4 and Figure 4. Equation (18) is corrected: as printed, the feet never touch
        in the same instant.
    """
    body = PlanarBody(parameter(mass), parameter(inertia), parameter(gravity))
    return soft_contacts(
        body.mass_matrix,
        body.effort,
        _Feet(parameter(leg_length), parameter(spread)),
        2,
        stiffness=stiffness,
        damping=_Damping(parameter(damping), parameter(single_support)),
    )


class _Feet(eqx.Module):
    leg_length: Float[Array, ""]
    spread: Float[Array, ""]

    def __call__(self, q, args):
        x, y, theta = q
        angles = jnp.stack([theta - self.spread, theta + jnp.pi + self.spread])
        across = x + self.leg_length * jnp.cos(angles)
        return y + self.leg_length * jnp.sin(angles) + across**2


class _Damping(eqx.Module):
    damping: Float[Array, ""]
    single_support: Float[Array, ""]

    def __call__(self, active):
        alone = jnp.sum(active) == 1
        return self.damping * jnp.where(alone, self.single_support, 1.0)
