import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._systems.parameter import parameter
from ...mechanics import MechanicalSystem


def paddle_juggler(
    restitution: ArrayLike = 0.6,
    amplitude: ArrayLike = 0.05,
    frequency: ArrayLike = 2.0,
    gravity: ArrayLike = 9.81,
    **kwargs,
) -> MechanicalSystem:
    r"""A ball on a heavy paddle that swings up and down.

    $$\ddot q = -g + \lambda, \qquad q \ge p(t) = A \sin(2 \pi f t), \qquad
    v^+ - \dot p = -e (v^- - \dot p).$$

    Where its bounces die down, and if $e = 0$ at once, the ball rides on the paddle,
    and is thrown where that decelerates faster than it falls, $\ddot p = -g$. If $e >
    0$, and $A$ is large enough, there is a periodic juggle: one impact in $N$ swings,
    $T = N / f$, at the phase where $\dot p = \tfrac{g T}{2} \frac{1 - e}{1 + e}$, with
    $v^+ = g T / 2$.

    **Arguments:**

    - `restitution`: $e$, from 0 to 1.
    - `amplitude`: $A$, in m.
    - `frequency`: $f$, in Hz.
    - `gravity`: $g$, in m/s².
    - `kwargs`: passed to `hj.mechanics.MechanicalSystem`.

    **Returns:**

    A `hj.mechanics.MechanicalSystem` with the configuration $q$, of shape
    `(1,)`, in m, and one contact. (`hj.models.BallOnPaddle` is the same
    without the mode in which the ball rides.)

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Section V-D, names it.
    """
    paddle = _Paddle(parameter(amplitude), parameter(frequency))
    ball = _Ball(parameter(gravity))
    return MechanicalSystem(
        ball.mass_matrix,
        ball.effort,
        ball.gap,
        1,
        surface=paddle,
        restitution=restitution,
        **kwargs,
    )


class _Ball(eqx.Module):
    gravity: Float[Array, ""]

    def mass_matrix(self, q, args):
        return jnp.ones_like(q)

    def effort(self, t, q, v, args):
        return -self.gravity[None]

    def gap(self, q, args):
        return q


class _Paddle(eqx.Module):
    amplitude: Float[Array, ""]
    frequency: Float[Array, ""]

    def __call__(self, t, args):
        return (self.amplitude * jnp.sin(2 * jnp.pi * self.frequency * t))[None]
