import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.automaton import HybridAutomaton
from ..._systems.parameter import parameter
from ..._systems.sliding_surface import SlidingSurface


def block_on_belt(
    stiffness: ArrayLike = 2.0, friction: ArrayLike = 1.0, speed: ArrayLike = 0.5
) -> HybridAutomaton:
    r"""A block of unit mass on a moving belt, held by a spring, with dry friction.

    $$\dot x = v, \qquad \dot v = -k x - F \operatorname{sign}(v - v_b).$$

    Where it is as fast as the belt, and $|k x| < F$, it sticks. It begins to slip
    where the spring pulls with the force $F$, at $x = F / k$.

    **Arguments:**

    - `stiffness`: $k$, in N/m, of a mass of 1 kg.
    - `friction`: $F$, in N: Coulomb friction, sticking and slipping alike.
    - `speed`: $v_b$ of the belt, in m/s.

    **Returns:**

    A `hj.HybridAutomaton` with the state $(x, v)$, an array of shape `(2,)`,
    the modes `"behind"` ($v < v_b$) and `"ahead"` ($v > v_b$), and a
    `hj.SlidingSurface` between them, which is called `"sticking"`.

    ??? cite "Reference"

        Filippov, *Differential equations with discontinuous righthand sides*,
        Section 4: dry friction.
    """
    belt = _Belt(parameter(stiffness), parameter(friction), parameter(speed))
    return HybridAutomaton(
        {"behind": belt.behind, "ahead": belt.ahead},
        [SlidingSurface("behind", "ahead", belt.slip, "sticking")],
    )


class _Belt(eqx.Module):
    stiffness: Float[Array, ""]
    friction: Float[Array, ""]
    speed: Float[Array, ""]

    def behind(self, t, x, args):
        return jnp.stack([x[1], -self.stiffness * x[0] + self.friction])

    def ahead(self, t, x, args):
        return jnp.stack([x[1], -self.stiffness * x[0] - self.friction])

    def slip(self, t, x, args):
        return x[1] - self.speed
