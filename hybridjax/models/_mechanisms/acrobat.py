import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.automaton import HybridAutomaton, Transition
from ..._systems.parameter import parameter
from ...mechanics import IndexOne, Multibody, Penalty


def acrobat(
    length: ArrayLike = 1.0,
    mass: ArrayLike = 2.0,
    rail: ArrayLike = -1.6,
    curvature: ArrayLike = 0.3,
    release: ArrayLike = 0.6,
    gravity: ArrayLike = 9.81,
    formulation: IndexOne | Penalty | None = None,
) -> HybridAutomaton:
    r"""A stiff acrobat who swings on a bar, lets go, and lands on a rail.

    A uniform rod from the hands, $q_1$, to the feet, $q_2$, in a vertical plane. Its
    constraints change from mode to mode:

    | mode | constraints beside $\lvert q_2 - q_1 \rvert = \ell$ | degrees of freedom |
    | --- | --- | --- |
    | `"swinging"` | $q_1 = 0$ | 1 |
    | `"flying"` | none | 3 |
    | `"sliding"` | $y_2 = h + \kappa x_2^2 / 2$ | 2 |

    The acrobat lets go where the feet, on their way forward, are at $x_2 = r$: only
    accelerations change. Where the feet reach the rail they stay on it: a plastic
    impact. If they do while the acrobat swings, the bar slips from the hands in that
    instant.

    **Arguments:**

    - `length`: $\ell$, in m.
    - `mass`: in kg.
    - `rail`: $h$, its height below the bar, in m (negative).
    - `curvature`: $\kappa$, in 1/m.
    - `release`: $r$, in m.
    - `gravity`: in m/s².
    - `formulation`: `hj.mechanics.IndexOne` or
        `hj.mechanics.Penalty`; `None` is the first.

    **Returns:**

    A `hj.HybridAutomaton` whose modes are
    `hj.mechanics.Multibody`s. Its state is the pair `(q, v)` of the
    coordinates $(x_1, y_1, x_2, y_2)$, in m, and their velocities, in m/s. Transition 0
    is the release, 1 and 2 are landings from `"flying"` and from `"swinging"`.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, Definition 19 and (54): constraints that change.
    """
    rod = _Rod(
        parameter(length),
        parameter(mass),
        parameter(rail),
        parameter(curvature),
        parameter(release),
        parameter(gravity),
    )
    formulation = IndexOne() if formulation is None else formulation
    body = lambda constraints: Multibody(
        rod.mass_matrix, rod.effort, constraints, formulation
    )
    sliding = body(rod.on_rail)
    modes = {"swinging": body(rod.on_bar), "flying": body(rod.alone)}
    return HybridAutomaton(
        {**modes, "sliding": sliding},
        [
            Transition("swinging", "flying", rod.lets_go),
            Transition("flying", "sliding", rod.lands, sliding.plastic_impact),
            Transition("swinging", "sliding", rod.lands, sliding.plastic_impact),
        ],
    )


class _Rod(eqx.Module):
    length: Float[Array, ""]
    mass: Float[Array, ""]
    rail: Float[Array, ""]
    curvature: Float[Array, ""]
    release: Float[Array, ""]
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args):
        ends = np.kron(np.array([[2.0, 1.0], [1.0, 2.0]]), np.eye(2)) / 6
        return self.mass * jnp.asarray(ends, q.dtype)

    def effort(self, t, q, v, args):
        weight = jnp.asarray([0.0, -0.5, 0.0, -0.5], q.dtype)
        return self.mass * self.gravity * weight

    def alone(self, t, q, args):
        return (jnp.sum((q[2:] - q[:2]) ** 2) - self.length**2)[None]

    def on_bar(self, t, q, args):
        return jnp.concatenate([self.alone(t, q, args), q[:2]])

    def on_rail(self, t, q, args):
        return jnp.append(self.alone(t, q, args), self.above_rail(q))

    def above_rail(self, q):
        return q[3] - self.rail - self.curvature * q[2] ** 2 / 2

    def lands(self, t, x, args):
        return self.above_rail(x[0])

    def lets_go(self, t, x, args):
        return self.release - x[0][2]
