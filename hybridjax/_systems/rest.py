from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Bool, Float

from .._jax.tracing import stop_gradient
from .parameter import parameter


def identity(t, x, args):
    """The reset that changes nothing."""
    del t, args
    return x


def as_speed(name: str, value: ArrayLike | None) -> Float[Array, ""] | None:
    """A speed that a user gave, if any.

    **Raises:**

    - `ValueError` if it is not a number.
    """
    if value is None:
        return None
    speed = parameter(value)
    if speed.shape != ():
        raise ValueError(
            f"Argument `{name}` must be a number, but it has shape {speed.shape}."
        )
    return speed


def rest_speed(given: Float[Array, ""] | None, dtype) -> Float[Array, ""]:
    """The least speed of a bounce: `given`, or `eps ** (1/3)`.

    Its height is of the order of the square of that: less than the tolerances of a
    solver, and yet far above rounding.
    """
    return jnp.asarray(
        float(jnp.finfo(dtype).eps) ** (1 / 3) if given is None else given, dtype
    )


class Rest(eqx.Module):
    r"""Where the events of a `hj.Transition` lead when they accumulate (a
    Zeno point), as the bounces of a ball do that comes to rest.

    An event after which the guard would move no faster than `speed`, and be on its way
    back, leads to this mode, with this reset, in place of those of the transition.

    **Arguments:**

    - `target`: name of the mode to which the accumulation leads.
    - `reset`: callable `(t, x, args) -> x`, as that of a transition: it has to put the
        state where the accumulation would end, for example to set a speed to zero.
    - `speed`: in units of the guard per unit of time. `None` is the cube root of the
        rounding error, 6.1e-6 in float64 and 4.9e-3 in float32.

    !!! note "The error"

        If each event leaves a share $e < 1$ of the speed $v$ of the guard, and its
        acceleration is $a$, then those that are left out would take a time
        $2 v / (a (1 - e))$. So much is the time of the rest too early, where $v$ is at
        most `speed`; and the guard would have reached $v^2 / (2 a)$ in that time.

    !!! example

        ```python
        stop = lambda t, x, args: jnp.zeros_like(x)
        rest = hj.Rest("table", stop)
        bounce = hj.Transition("flight", "flight", height, reflect, rest=rest)
        ```

    **Raises:**

    - `ValueError` if `speed` is not a number; and, from
        `hj.HybridAutomaton`, if there is no such mode.
    """

    target: str = eqx.field(static=True)
    reset: Callable = identity
    speed: ArrayLike | None = eqx.field(
        default=None, converter=lambda speed: as_speed("speed", speed)
    )

    def replaces(
        self, guard: Callable, field: Callable, t, x, args, watched: bool
    ) -> Bool[Array, ""]:
        """Does this replace an event of a guard that leads to `(t, x)`, where the
        vector field is `field`, and the guard `watched` again?"""
        # Nothing of it is differentiated: the mode is discrete.
        guard, field, t, x, args, speed = stop_gradient(
            (guard, field, t, x, args, self.speed)
        )

        def along(f):
            """The derivative of a function of `(t, x)` along the flow."""

            def rate(t, x):
                dx = jtu.tree_map(
                    lambda d, like: jnp.asarray(d, like.dtype), field(t, x, args), x
                )
                return jax.jvp(f, (t, x), (jnp.ones_like(t), dx))[1]

            return rate

        rate = along(lambda t, x: guard(t, x, args))
        moves, bends = rate(t, x), along(rate)(t, x)
        # One that is watched, and falls, would fire at once.
        back = bends < 0 if watched else moves * bends <= 0
        return back & (jnp.abs(moves) <= rest_speed(speed, moves.dtype))
