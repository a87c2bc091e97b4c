from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from .._jax.tracing import stop_gradient
from .parameter import parameter


def identity(t, x, args):
    """The reset that changes nothing."""
    del t, args
    return x


# Bounces are left out that would rise no higher than this share of the absolute
# tolerance, or than so many rounding errors of their place.
_SHARE, ROUNDING = 0.01, 4


class RestSpeed(eqx.Module):
    """How slow a bounce has to be to be the last: what a user gave, or where that is
    `None` so slow that it would not rise above a `height`."""

    given: Float[Array, ""] | None
    height: Float[Array, ""] | None = None

    def __call__(self, acceleration: Array, rounding: ArrayLike = 0.0) -> Array:
        """The speed, where that is the acceleration, and heights up to `rounding` mean
        nothing."""
        if self.given is not None:
            return self.given.astype(acceleration.dtype)
        height = 0.0 if self.height is None else self.height
        return jnp.sqrt(2 * jnp.maximum(height, rounding) * jnp.abs(acceleration))


def as_rest_speed(name: str, given: ArrayLike | None) -> RestSpeed:
    """
    **Raises:**

    - `ValueError` if what was given is not a number.
    """
    if given is None:
        return RestSpeed(None)
    speed = parameter(given)
    if speed.shape != ():
        raise ValueError(
            f"Argument `{name}` must be a number, but it has shape {speed.shape}."
        )
    return RestSpeed(speed)


def at_tolerance(system: PyTree, atol: ArrayLike | None) -> PyTree:
    """Each `RestSpeed` in it, if none was given, as the absolute tolerance has it.

    The unit of that is a length, that of time is in the acceleration: so it does not
    depend on units.
    """
    if atol is None:
        return system
    is_speed = lambda node: isinstance(node, RestSpeed)

    def at(node):
        if not is_speed(node):
            return node
        # (It may be one for each component of the state.)
        return RestSpeed(node.given, _SHARE * jnp.min(jnp.asarray(atol)))

    return jtu.tree_map(at, system, is_leaf=is_speed)


class Rest(eqx.Module):
    r"""Where the events of a `hj.Transition` lead when they accumulate (a
    Zeno point), as the bounces of a ball do that comes to rest.

    An event after which the guard would move no faster than `speed`, and be on its way
    back, leads to this mode, with this reset, in place of those of the transition.

    **Arguments:**

    - `target`: name of the mode to which the accumulation leads.
    - `reset`: callable `(t, x, args) -> x`, as that of a transition: it has to put the
        state where the accumulation would end, for example to set a speed to zero.
    - `speed`: in units of the guard per unit of time. `None`: where the guard would not
        rise by more than a hundredth of the absolute tolerance of the step size
        controller, with its acceleration, or by more than a few rounding errors.

    !!! note "The error"

        If each event leaves a share $e < 1$ of the speed $v$ of the guard, and its
        acceleration is $a$, then those that are left out would take a time
        $2 v / (a (1 - e))$. So much is the time of the rest too early, where $v$ is at
        most `speed`; and the guard would have reached $v^2 / (2 a)$ in that time. By
        default that is 1e-10, and with $a$ = 9.81 the speed is 4.4e-5.

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
    reset: Callable
    speed: RestSpeed

    def __init__(
        self, target: str, reset: Callable = identity, speed: ArrayLike | None = None
    ):
        self.target, self.reset = target, reset
        self.speed = as_rest_speed("speed", speed)

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

        value = lambda t, x: guard(t, x, args)
        rate = along(value)
        moves, bends = rate(t, x), along(rate)(t, x)
        # One that is watched, and falls, would fire at once.
        back = bends < 0 if watched else moves * bends <= 0
        # What the guard is the difference of.
        slopes = jax.grad(value, (0, 1))(t, x)
        parts = jtu.tree_map(lambda a, b: jnp.sum(jnp.abs(a * b)), slopes, (t, x))
        size = sum(jtu.tree_leaves(parts), jnp.zeros_like(bends))
        rounding = ROUNDING * jnp.finfo(bends.dtype).eps * size
        return back & (jnp.abs(moves) <= speed(bends, rounding))
