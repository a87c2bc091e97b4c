import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._systems.automaton import HybridAutomaton, Transition
from ..._systems.parameter import parameter
from ...mechanics import IndexOne, Multibody, Penalty


def five_bar(
    natural_lengths: ArrayLike | None = None,
    restitution: ArrayLike = 1.0,
    ground: ArrayLike = -2.35,
    stiffness: ArrayLike = 100.0,
    gravity: ArrayLike = 9.81,
    formulation: IndexOne | Penalty | None = None,
) -> HybridAutomaton:
    r"""A five-bar mechanism on two springs, whose lowest point bounces on the ground.

    Uniform bars join A and 1 (1 kg), 1 and 2 (1.5 kg), 2 and 3 (1.5 kg), 3 and B (1
    kg), in a vertical plane; A = (-0.5, 0) and B = (0.5, 0) are fixed. One spring is
    between B and point 1, the other between B and point 2. The four lengths are
    constraints,

    $$\Phi = \big(|q_1 - q_A|^2 - 2,\ |q_2 - q_1|^2 - \tfrac{13}{4},\
    |q_3 - q_2|^2 - \tfrac{13}{4},\ |q_B - q_3|^2 - 2\big) = 0.$$

    Where point 2 touches the ground, its vertical velocity, which is independent, is
    reversed, $\dot y_2^+ = -e \dot y_2^-$, and its horizontal one, the other
    independent one, stays; those of points 1 and 3 follow.

    **Arguments:**

    - `natural_lengths`: of the springs, of shape `(2,)`, in m. `None` is those at which
        neither pulls at the start, $(\sqrt 5, \sqrt{17} / 2)$.
    - `restitution`: $e$.
    - `ground`: its height, in m.
    - `stiffness`: of the springs, in N/m.
    - `gravity`: in m/s².
    - `formulation`: `hj.mechanics.IndexOne` or
        `hj.mechanics.Penalty`; `None` is the first.

    **Returns:**

    A `hj.HybridAutomaton` with one mode, `"moving"`, a
    `hj.mechanics.Multibody`, and one transition, the impact. Its state is
    the pair `(q, v)` of the coordinates $(x_1, y_1, x_2, y_2, x_3, y_3)$, in m, and
    their velocities, in m/s: see `hj.models.five_bar_start`.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, Section 7, (65). It does not say where the springs attach,
        nor what gravity and the initial configuration are: these are a consistent
        choice. With `Penalty(1e5)` errors of the constraints are those of Fig. 3(b).
    """
    if natural_lengths is None:
        natural_lengths = np.sqrt([5.0, 4.25])
    lengths = parameter(natural_lengths)
    if lengths.shape != (2,):
        raise ValueError(
            "Argument `natural_lengths` must have shape (2,), one for each spring, but "
            f"it has shape {lengths.shape}."
        )
    bars = _Bars(lengths, parameter(stiffness), parameter(gravity))
    body = Multibody(
        bars.mass_matrix,
        bars.effort,
        bars.constraints,
        IndexOne() if formulation is None else formulation,
    )
    floor = _Floor(body, parameter(restitution), parameter(ground))
    impact = Transition("moving", "moving", floor.height, floor.bounce)
    return HybridAutomaton({"moving": body}, [impact])


def five_bar_start() -> tuple[Float[Array, "6"], Float[Array, "6"]]:
    """The initial state of `hj.models.five_bar`, at rest: `(q, v)`, in m and
    m/s."""
    return jnp.array([-1.5, -1.0, 0.0, -2.0, 1.5, -1.0]), jnp.zeros(6)


def five_bar_links(q: Float[Array, "6"]) -> Float[Array, "4 2 2"]:
    """Where the four bars of `hj.models.five_bar` are, from A to B, to be drawn by
    `ax.plot(*links.T)`. For several configurations: `jax.vmap`.

    **Returns:**

    For each bar two points, in m.
    """
    points = _points(q)
    return jnp.stack([points[:-1], points[1:]], axis=1)


_MASSES = np.array([1.0, 1.5, 1.5, 1.0])
_LENGTHS_SQUARED = np.array([2.0, 3.25, 3.25, 2.0])
_LEFT, _RIGHT = np.array([-0.5, 0.0]), np.array([0.5, 0.0])


def _points(q):
    return jnp.concatenate([_LEFT, q, _RIGHT]).reshape(5, 2)


class _Bars(eqx.Module):
    natural_lengths: Float[Array, "2"]
    stiffness: Float[Array, ""]
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args):
        # The kinetic energy of a uniform bar: m (|a|² + a b + |b|²) / 6, of the
        # velocities of its ends.
        ends = (_MASSES[:-1] + _MASSES[1:]) / 3
        coupled = _MASSES[1:-1] / 6
        points = np.diag(ends) + np.diag(coupled, 1) + np.diag(coupled, -1)
        return jnp.asarray(np.kron(points, np.eye(2)), q.dtype)

    def effort(self, t, q, v, args):
        one, two, three = q.reshape(3, 2)
        weights = -self.gravity * (_MASSES[:-1] + _MASSES[1:]) / 2

        def spring(point, natural_length):
            r = point - _RIGHT
            length = jnp.sqrt(r @ r)
            return -self.stiffness * (length - natural_length) / length * r

        forces = [
            spring(one, self.natural_lengths[0]),
            spring(two, self.natural_lengths[1]),
            jnp.zeros_like(three),
        ]
        weights = jnp.stack([jnp.zeros_like(weights), weights], axis=1)
        return (jnp.stack(forces) + weights).reshape(6)

    def constraints(self, t, q, args):
        points = _points(q)
        bars = points[1:] - points[:-1]
        return jax.vmap(jnp.dot)(bars, bars) - _LENGTHS_SQUARED


class _Floor(eqx.Module):
    body: Multibody
    restitution: Float[Array, ""]
    ground: Float[Array, ""]

    def height(self, t, x, args):
        return x[0][3] - self.ground

    def bounce(self, t, x, args):
        q, v = x
        after = jnp.stack([v[2], -self.restitution * v[3]])
        return q, self.body.complete_velocity(t, q, (2, 3), after, args)
