import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Locate(eqx.Module):
    """Finds events by root finding within each step.

    A step is accepted only if every guard that is watched is represented by a cubic
    well enough to say whether, and where, it crosses zero; otherwise the step is
    shortened. Then a solver step is made that ends there, and corrected until the guard
    is zero at its end.

    **Arguments:**

    - `corner_tol`: guards that are crossed within this time of an event belong to the
        same instant. Relative to `t1 - t0`; a few rounding errors of the time, 16 `eps`
        of the larger of `|t0|` and `|t1|`, are the least. Defaults to 1.6e-10 in
        float64, and to 120 `eps`, 1.4e-5, in float32.
    - `grazing_tol`: an event is grazing if the guard comes to rest there, to this
        tolerance: its rate there over its largest rate in the step. Defaults to
        `32 * sqrt(eps)`: 4.8e-7 in float64, 1.1e-2 in float32.

    ??? note "What cannot be seen"

        Guards are evaluated at both ends of a step and at four points within it. A dip
        much narrower than a tenth of a step, in a guard that is smooth at all these
        points, is not seen. Bound the step length by `PIDController(dtmax=...)` where
        guards vary like that.
    """

    corner_tol: float | None = None
    grazing_tol: float | None = None

    def grazing_tolerance(self, dtype) -> Float[Array, ""]:
        default = 32 * float(jnp.finfo(dtype).eps) ** 0.5
        given = self.grazing_tol
        return jnp.asarray(default if given is None else given, dtype)


def corner_tolerance(given: float | None, dtype) -> Float[Array, ""]:
    # More than the error of a landing, which is a hundredth of it or 256 eps of a step;
    # and in float32 not much more, for the sake of fast clocks.
    default = max(1.6e-10, 120 * float(jnp.finfo(dtype).eps))
    return jnp.asarray(default if given is None else given, dtype)
