import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.event_selected import EventSelectedSystem
from ..._systems.parameter import parameter


def spring_hopper(
    mass: ArrayLike = 1.0,
    stiffness: ArrayLike = 100.0,
    rest_length: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
) -> EventSelectedSystem:
    r"""A mass on a massless spring leg that hops on the spot.

    $$\ddot z = \begin{cases}
    -g & \text{flight} \\
    -g + (k / m)(L_0 - z) & \text{stance}
    \end{cases}$$

    The state does not jump. The force is continuous at touchdown and liftoff (only its
    slope is not), and the energy is conserved:
    $m v^2 / 2 + m g z$, in stance plus $k (L_0 - z)^2 / 2$.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `stiffness`: $k$, in N/m.
    - `rest_length`: $L_0$, in m.
    - `gravity`: $g$, in m/s².

    **Returns:**

    A `hj.EventSelectedSystem`.

    - Its state has shape `(2,)`: the height $z$ (m) and the speed $\dot z$ (m/s),
        positive upwards.
    - Its mode has shape `(2,)`: (-1, +1) in flight, (+1, -1) in stance.
    - Event function 0 is touchdown, $L_0 - z$; number 1 is liftoff, $z - L_0$. Each
        re-arms the other.

    ??? cite "Reference"

        Anderson, Revzen, *Rapid integrator for a class of multi-contact systems*,
        Section 5.1; the numbers are those of problem P2 of the benchmarks.
    """
    hopper = _Hopper(
        parameter(mass),
        parameter(stiffness),
        parameter(rest_length),
        parameter(gravity),
    )
    return EventSelectedSystem(
        hopper, _Contact(hopper.rest_length), np.array([[False, True], [True, False]])
    )


def spring_hopper_flow(
    t: ArrayLike,
    height: ArrayLike,
    mass: ArrayLike = 1.0,
    stiffness: ArrayLike = 100.0,
    rest_length: ArrayLike = 1.0,
    gravity: ArrayLike = 9.81,
) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
    r"""The exact flow of `hj.models.spring_hopper`, dropped from rest.

    A parabola in flight, a harmonic oscillation in stance. It is periodic, and
    differentiable.

    **Arguments:**

    - `t`: the time since the release, a scalar.
    - `height`: from which it is released, above `rest_length`.
    - `mass`, `stiffness`, `rest_length`, `gravity`: as for the system.

    **Returns:**

    Height and speed at `t`, and the times of the first touchdown and liftoff; the
    period is the sum of these two.
    """
    t, height, mass, stiffness, rest_length, gravity = map(
        parameter, (t, height, mass, stiffness, rest_length, gravity)
    )
    fall = jnp.sqrt(2 * (height - rest_length) / gravity)
    speed = gravity * fall
    # In stance, z = L - h + h cos(w s) - (speed / w) sin(w s), with h = g / w².
    w = jnp.sqrt(stiffness / mass)
    h = gravity / w**2
    stance = 2 * (jnp.pi - jnp.arctan2(speed / w, h)) / w
    # Since the last liftoff.
    s = jnp.mod(t + fall, 2 * fall + stance)
    flight = jnp.stack(
        [rest_length + speed * s - gravity * s**2 / 2, speed - gravity * s]
    )
    later = s - 2 * fall
    cos, sin = jnp.cos(w * later), jnp.sin(w * later)
    contact = jnp.stack(
        [
            rest_length - h + h * cos - speed / w * sin,
            -h * w * sin - speed * cos,
        ]
    )
    state = jnp.where(s < 2 * fall, flight, contact)
    return state, jnp.stack([fall, fall + stance])


class _Hopper(eqx.Module):
    mass: Float[Array, ""]
    stiffness: Float[Array, ""]
    rest_length: Float[Array, ""]
    gravity: Float[Array, ""]

    def __call__(self, t, x, b, args):
        z, v = x
        push = self.stiffness / self.mass * (self.rest_length - z)
        stance = (b[0] > 0) & (b[1] < 0)
        return jnp.stack([v, jnp.where(stance, push, 0.0) - self.gravity])


class _Contact(eqx.Module):
    rest_length: Float[Array, ""]

    def __call__(self, t, x, args):
        below = self.rest_length - x[0]
        return jnp.stack([below, -below])
