from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ...mechanics import MechanicalSystem
from .planar_body import PlanarBody


def rod(
    mass: ArrayLike = 1.0,
    half_length: ArrayLike = 0.5,
    inertia: ArrayLike | None = None,
    friction: ArrayLike = 0.0,
    static_friction: ArrayLike | None = None,
    restitution: ArrayLike | Callable = 0.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A rod that falls on the ground, with a contact at each end.

    With the centre of mass at $(x, z)$ and the angle $\theta$ to the ground, the ends
    are at $(x, z) \mp a (\cos\theta, \sin\theta)$:

    $$m \ddot x = \sum_i \lambda_{t,i}, \qquad
    m \ddot z = \sum_i \lambda_{n,i} - m g, \qquad
    I \ddot\theta = \sum_i \pm a \left(\lambda_{n,i} \cos\theta
    - \lambda_{t,i} \sin\theta\right).$$

    **Arguments:**

    - `mass`: $m$, in kg.
    - `half_length`: $a$, in m.
    - `inertia`: $I$, about the centre of mass, in kg m². `None` is that of a uniform
        rod, $m a^2 / 3$.
    - `friction`, `static_friction`: $\mu_k$ and $\mu_s$; `None` is the same.
    - `restitution`: $e$, from 0 to 1, or a function: see
        `hj.mechanics.MechanicalSystem`.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(x, z,
    \theta)$ in m and rad; contact 0 is the left end, 1 the right one.
    """
    mass, half_length = parameter(mass), parameter(half_length)
    if inertia is None:
        inertia = mass * half_length**2 / 3
    return _on_corners(
        PlanarBody(mass, parameter(inertia), parameter(gravity)),
        half_length * np.array([[-1.0, 0.0], [1.0, 0.0]]),
        friction=friction,
        static_friction=static_friction,
        restitution=restitution,
        **kwargs,
    )


def rocking_block(
    half_width: ArrayLike = 0.1,
    half_height: ArrayLike = 0.5,
    mass: ArrayLike = 1.0,
    friction: ArrayLike = 1.0,
    restitution: ArrayLike | Callable = 0.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A uniform rectangular block that rocks on its two lower corners.

    The corners are at $(\mp b, -h)$ from the centre of mass in the frame of the block,
    and $I = m (b^2 + h^2) / 3$. While it turns about one corner, with $R = \sqrt{b^2 +
    h^2}$ and $\alpha = \arctan(b / h)$,

    $$\tfrac43 m R^2 \ddot\theta = -m g R \sin(\alpha - |\theta|)
    \operatorname{sign}\theta,$$

    and where the other corner lands, the first one lifts off in the same instant, with
    $\dot\theta^+ = (1 - \tfrac32 \sin^2\alpha)\, \dot\theta^-$, if friction keeps it
    from slipping: Housner's law, here the outcome of the contact laws.

    **Arguments:**

    - `half_width`, `half_height`: $b$ and $h$, in m.
    - `mass`: $m$, in kg.
    - `friction`: $\mu$, static and kinetic.
    - `restitution`: $e$ of the corners, from 0 to 1, or a function, as in
        `hj.mechanics.MechanicalSystem`. Housner's law is that of 0.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(x, z,
    \theta)$ of the centre of mass, in m and rad; contact 0 is the left corner.

    ??? cite "Reference"

        Housner, *The behavior of inverted pendulum structures during earthquakes*
        (1963).
    """
    b, h = parameter(half_width), parameter(half_height)
    mass = parameter(mass)
    body = PlanarBody(mass, mass * (b**2 + h**2) / 3, parameter(gravity))
    corners = jnp.stack([jnp.stack([-b, -h]), jnp.stack([b, -h])])
    return _on_corners(
        body, corners, friction=friction, restitution=restitution, **kwargs
    )


def rimless_wheel(
    spokes: int = 8,
    slope: ArrayLike = 0.08,
    length: ArrayLike = 1.0,
    mass: ArrayLike = 1.0,
    inertia: ArrayLike = 0.1,
    friction: ArrayLike = 2.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A wheel without a rim, that rolls down a slope on its spokes.

    In coordinates along the slope (downhill) and normal to it. While it turns about the
    tip of one spoke, at the angle $\phi$ to the normal (positive past it, downhill),

    $$(m \ell^2 + I) \ddot\phi = m g \ell \sin(\phi + \gamma),$$

    and where the next one lands, $2\alpha = 2\pi/n$ further, the first one is released
    in the same instant, with

    $$\dot\phi^+ = \frac{m \ell^2 \cos 2\alpha + I}{m \ell^2 + I}\, \dot\phi^-,$$

    if friction keeps the tips from slipping.

    **Arguments:**

    - `spokes`: $n$, at least 5.
    - `slope`: $\gamma$, in rad.
    - `length`: $\ell$ of a spoke, in m.
    - `mass`: $m$, in kg.
    - `inertia`: $I > 0$ about the centre, in kg m².
    - `friction`: $\mu$, static and kinetic.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $(x, z,
    \theta)$ of the centre, in m and rad, $\theta$ positive anticlockwise (uphill). With
    $\theta = 0$ spoke 0 points straight into the slope, and spoke $j$ is $2\alpha j$
    further in the direction of rolling.

    ??? cite "Reference"

        McGeer, *Passive dynamic walking* (1990), Section 2.
    """
    angles = 2 * np.pi / spokes * np.arange(spokes)
    tips = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    body = PlanarBody(parameter(mass), parameter(inertia), parameter(gravity))
    return _on_corners(
        body,
        parameter(length) * tips,
        effort=_OnSlope(body, parameter(slope)),
        friction=friction,
        **kwargs,
    )


def _on_corners(
    body: PlanarBody, corners, *, effort: Callable | None = None, **kwargs
) -> MechanicalSystem:
    points = _Corners(corners)
    return MechanicalSystem(
        body.mass_matrix,
        body.effort if effort is None else effort,
        points.gap,
        corners.shape[0],
        tangents=points.tangents,
        **kwargs,
    )


class _Corners(eqx.Module):
    """Points of a planar body, given in its frame, above level ground."""

    corners: Float[Array, "n 2"]

    def place(self, q):
        cos, sin = jnp.cos(q[2]), jnp.sin(q[2])
        across, up = self.corners[:, 0], self.corners[:, 1]
        return q[0] + cos * across - sin * up, q[1] + sin * across + cos * up

    def gap(self, q, args):
        return self.place(q)[1]

    def tangents(self, q, args):
        return jax.jacfwd(lambda q: self.place(q)[0])(q)


class _OnSlope(eqx.Module):
    body: PlanarBody
    slope: Float[Array, ""]

    def __call__(self, t, q, v, args):
        weight = self.body.mass * self.body.gravity
        down = jnp.stack([jnp.sin(self.slope), -jnp.cos(self.slope)])
        return jnp.concatenate([weight * down, jnp.zeros_like(q[2:])])
