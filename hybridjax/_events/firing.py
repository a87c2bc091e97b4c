import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def fires_at_once(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"], tol
) -> Bool[Array, " n_guards"]:
    """Which guards fire here and now.

    Those that are in their guard set (`g <= 0`) and are not leaving it, and those that
    enter it within the time `tol`.
    """
    inside = (g <= 0) & (rate <= 0)
    about_to = (g > 0) & (rate < 0) & (g <= tol * -rate)
    return inside | about_to


def crossing_times(
    g: Float[Array, " n_guards"], rate: Float[Array, " n_guards"]
) -> Float[Array, " n_guards"]:
    """After which time each guard fires, to first order; infinite if it never does."""
    falls = rate < 0
    return jnp.where(falls, jnp.maximum(g, 0) / jnp.where(falls, -rate, 1), jnp.inf)


def max_firings(n_guards: int) -> int:
    """How often one guard may fire in one instant. A shock that travels to and fro
    among bodies in contact passes between two of them about as often as there are
    others, and what is far over a threshold falls below it in several steps."""
    return n_guards + 8
