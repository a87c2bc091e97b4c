import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax.tracing import is_traced


class Project(eqx.Module):
    r"""Passes events of a `hj.EventSelectedSystem` without root finding.

    Where an event function $h_j$ is within `eps` of zero, the state is projected onto
    its surface along the vector field, by the first-order impact map $x + \tau f(x)$
    with $\tau = -h_j / (\nabla h_j \cdot f)$, and the surface is crossed. Surfaces that
    are near each other are passed one after the other, without a step of the solver in
    between. Everywhere else the solver integrates, in steps that end before a surface
    is reached. The error is of second order in `eps`, also that of derivatives.

    It needs *liveness*, $\nabla h_j \cdot f > 0$ where $h_j$ is zero, on both sides.
    That is tested at each projection. If $\nabla h_j \cdot f$ changes by more than a
    quarter on the way, the solver first goes nearer, so that `eps` may be too large for
    some events. If that does not help, or if the flow beyond leads back, the simulation
    ends with `RESULTS.not_live`, and the error names the surface.

    **Arguments:**

    - `eps`: how near counts, in units of the event functions: a number, or one for
        each event function, of shape `(n,)`. Event functions that move at different
        speeds $\nabla h_j \cdot f$ want different `eps`: a projection takes up to `eps`
        over that speed. May change, and be a batch, without a new compilation.
    - `corner_tol`: surfaces that are reached within this time of each other are crossed
        in the same instant, as for `hj.Locate`.

    **Raises:**

    - `ValueError` if `eps` is not positive, or not a number or a vector of the right
        length.

    ??? cite "Reference"

        Anderson, Revzen, *Rapid integrator for a class of multi-contact systems*,
        Section 3; `eps` for each guard: Section 2.2.
    """

    eps: Float[Array, "..."] = eqx.field(converter=jnp.asarray)
    corner_tol: float | None = None

    def __check_init__(self):
        shape = self.eps.shape
        if len(shape) > 1:
            raise ValueError(
                "Argument `eps` must be a number, or a vector with one entry per event "
                f"function, but its shape is {shape}."
            )
        if not is_traced(self.eps) and not np.all(np.asarray(self.eps) > 0):
            raise ValueError(f"Argument `eps` must be positive, but it is {self.eps}.")

    def thresholds(self, n_guards: int, dtype) -> Float[Array, " n_guards"]:
        if self.eps.shape not in ((), (1,), (n_guards,)):
            raise ValueError(
                f"Argument `eps` of `hj.Project` has {self.eps.shape[0]} entries, but "
                f"the system has {n_guards} event functions."
            )
        return jnp.broadcast_to(self.eps.astype(dtype), (n_guards,))
