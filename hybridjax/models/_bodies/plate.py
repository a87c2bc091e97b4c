import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter
from ...mechanics import soft_contacts
from .planar_body import PlanarBody


def plate_on_springs(
    n: int,
    mass: ArrayLike = 1.0,
    inertia: ArrayLike = 1.0,
    stiffness: ArrayLike | None = None,
    damping: ArrayLike | None = None,
    rest_length: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
) -> EventSelectedSystem:
    r"""A plate in the vertical plane, that falls on a bed of `n` springs with dampers.

    The springs are vertical, massless and without friction, at $x_i$ from -1 m to 1 m
    (at 0, if there is one only); the plate is so long that it is above each of them.
    Spring $i$ would be pressed in by

    $$h_i = L_0 + \tan\theta \, (x - x_i) - z$$

    and acts where that is positive, with the force $F_i = k h_i + c \dot h_i$ (just
    before it lets go, it can pull):

    $$m \ddot x = -\sum_i F_i \tan\theta, \qquad
    m \ddot z = \sum_i F_i - m g, \qquad
    I \ddot\theta = -\sum_i F_i \frac{x - x_i}{\cos^2\theta}.$$

    The state does not jump, but the force does, as $c \dot h_i$ is not zero at
    touchdown.

    **Arguments:**

    - `n`: number of springs.
    - `mass`: $m$, in kg.
    - `inertia`: $I$, about the centre of mass, in kg m².
    - `stiffness`: $k$ of a spring, in N/m, a number or one for each. `None` is 1000 N/m
        divided by `n`.
    - `damping`: $c$ of a damper, in N s/m, a number or one for each. `None` is
        30 N s/m divided by `n`.
    - `rest_length`: $L_0$, in m.
    - `gravity`: $g$, in m/s².

    **Returns:**

    The system of `hj.mechanics.soft_contacts` with the gaps $-h_i$. The
    configuration is $(x, z, \theta)$ in m and rad.

    ??? cite "Reference"

        Anderson, Revzen, *Rapid integrator for a class of multi-contact systems*,
        Section 5.2, which does not give the numbers: they are those of problem P6 of
        the benchmarks.
    """
    places = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    plate = PlanarBody(parameter(mass), parameter(inertia), parameter(gravity))
    return soft_contacts(
        plate.mass_matrix,
        plate.effort,
        _Clearance(parameter(places), parameter(rest_length)),
        n,
        stiffness=1000.0 / n if stiffness is None else stiffness,
        damping=30.0 / n if damping is None else damping,
    )


class _Clearance(eqx.Module):
    places: Float[Array, " n"]
    rest_length: Float[Array, ""]

    def __call__(self, q, args):
        x, z, theta = q
        return z - self.rest_length - jnp.tan(theta) * (x - self.places)
