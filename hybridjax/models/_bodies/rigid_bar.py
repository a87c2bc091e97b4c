import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ..._systems.system import AbstractHybridSystem, UNWATCHED


class RigidBar(AbstractHybridSystem):
    r"""A rigid bar that falls on frictionless ground with both of its ends.

    The height of end $i$ is $\phi_i = z + s_i a \sin\theta$ with $s = (-1, +1)$: end 0
    is the left one, end 1 the right one. With $q = (z, \theta)$, $M = \mathrm{diag}(m,
    I)$, and $J$ of rows $J_i = D\phi_i = (1, s_i a \cos\theta)$,

    $$M \ddot q = (-m g, 0) + J^\top \lambda, \qquad
    \dot q^+ = \dot q^- + M^{-1} J^\top p.$$

    $\lambda_i$ and $p_i$ are zero at an end that has no contact. At the others
    $\lambda$ keeps $\ddot\phi = 0$, and $p$ makes the end that hits leave with
    $\dot\phi^+ = -e \, \dot\phi^-$ while the other contact holds. The motion along the
    ground is uniform, and left out.

    If $e = 0$ an end that has landed stays on the ground for good; two landed ends are
    at rest. If $e > 0$ an end never stays.

    An impulse at one end changes the speed of the other in proportion to

    $$J_0 M^{-1} J_1^\top = \frac{1}{m} - \frac{a^2 \cos^2\theta}{I}.$$

    So in a flat landing, $\theta = 0$, both ends hit at once, and:

    - `inertia = mass * half_length**2` (a dumbbell: all mass in the ends): the ends are
        inertially decoupled, and the order of the impacts does not matter.
    - Another inertia, and $e > 0$: the orders have different outcomes, and the flow is
        discontinuous there. No derivative exists.
    - Another inertia, and $e = 0$: both orders end at rest, so that the flow is
        continuous, although the states between the two impacts differ.
    - `inertia > mass * half_length**2`, $e = 0$ and `release=True`: the end that hits
        last stays, and the other takes off. The flow is discontinuous.

    !!! warning

        A contact that holds can pull. It does so between impacts where the bar stands
        on one end and $z \omega^2 > g$ (`RigidBar.contact_forces` tells), and, if
        not `release`, in an impact if `inertia > mass * half_length**2`. A real bar
        would take off.

    **Arguments:**

    - `mass`: $m$, in kg.
    - `half_length`: $a$, from the centre of mass to each end, in m.
    - `inertia`: $I$, about the centre of mass, in kg m². `None` is that of a uniform
        bar, $m a^2 / 3$.
    - `gravity`: $g$, in m/s².
    - `restitution`: $e$, from 0 to 1.
    - `release`: whether a contact that would have to pull in an impact lets go: then
        its $p_i$ is zero, and it has no contact afterwards.

    **State:** an array of shape `(4,)`: the height $z$ of the centre (m), the angle
    $\theta$ to the ground (rad, positive when the right end is up), and their rates
    $\dot z$ (m/s) and $\omega$ (rad/s).

    **Mode:** an integer array of shape `(2,)`: entry $i$ is 1 if end $i$ has landed,
    else 0.

    **Guards:** guard $i$ is $\phi_i$, watched where end $i$ has not landed.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, (63) and (69). Pace, Burden, *Decoupled
        limbs yield differentiable trajectory outcomes through intermittent contact in
        locomotion and manipulation*, for the condition of decoupling.
    """

    mass: Float[Array, ""]
    half_length: Float[Array, ""]
    inertia: Float[Array, ""]
    gravity: Float[Array, ""]
    restitution: Float[Array, ""]
    release: bool = eqx.field(static=True)

    def __init__(
        self,
        mass: ArrayLike = 1.0,
        half_length: ArrayLike = 0.5,
        inertia: ArrayLike | None = None,
        gravity: ArrayLike = 9.81,
        restitution: ArrayLike = 0.0,
        release: bool = False,
    ):
        self.mass = parameter(mass)
        self.half_length = parameter(half_length)
        if inertia is None:
            inertia = self.mass * self.half_length**2 / 3
        self.inertia = parameter(inertia)
        self.gravity = parameter(gravity)
        self.restitution = parameter(restitution)
        self.release = release

    def contact_forces(self, t, x, mode, args) -> Float[Array, "2"]:
        r"""The forces $\lambda$ (N) of the ground on the ends, positive upwards."""
        _, theta, _, omega = x
        lift = self._ends(jnp.sin(theta))
        return self._multipliers(theta, mode == 1, self.gravity + lift * omega**2)

    def flow(self, t, x, mode, args):
        _, theta, vz, omega = x
        forces = self.contact_forces(t, x, mode, args)
        az, alpha = self._accelerations(theta, forces)
        return jnp.stack([vz, omega, az - self.gravity, alpha])

    def guards(self, t, x, mode, args):
        heights = x[0] + self._ends(jnp.sin(x[1]))
        return jnp.where(mode == 0, heights, UNWATCHED)

    def jump(self, t, x, mode, event, args):
        z, theta, vz, omega = x
        hits = jax.nn.one_hot(event, 2, dtype=bool)
        speeds = vz + self._ends(jnp.cos(theta)) * omega
        change = jnp.where(hits, -(1 + self.restitution) * speeds, -speeds)
        impulses = self._multipliers(theta, hits | (mode == 1), change)
        if self.release:
            # Between ends that are decoupled there is only rounding.
            rounding = 64 * jnp.finfo(impulses.dtype).eps * jnp.sum(jnp.abs(impulses))
            pulls = impulses < -rounding
            alone = self._multipliers(theta, hits, change)
            impulses = jnp.where(jnp.any(pulls), alone, impulses)
            mode = jnp.where(pulls, 0, mode)
        dvz, domega = self._accelerations(theta, impulses)
        stays = hits & (self.restitution == 0)
        x_plus = jnp.stack([z, theta, vz + dvz, omega + domega])
        return x_plus, jnp.where(stays, 1, mode)

    def _ends(self, value):
        return jnp.stack([-value, value]) * self.half_length

    def _accelerations(self, theta, forces):
        moment = jnp.sum(self._ends(jnp.cos(theta)) * forces)
        return jnp.sum(forces) / self.mass, moment / self.inertia

    def _multipliers(self, theta, active, change):
        # The forces at the active ends that change their accelerations by `change`:
        # J M⁻¹ Jᵀ = [[own, other], [other, own]], restricted to the active ends.
        turn = (self.half_length * jnp.cos(theta)) ** 2 / self.inertia
        own = 1 / self.mass + turn
        other = jnp.where(jnp.all(active), 1 / self.mass - turn, 0.0)
        determinant = (own - other) * (own + other)
        solved = (own * change - other * change[::-1]) / determinant
        return jnp.where(active, solved, 0.0)
