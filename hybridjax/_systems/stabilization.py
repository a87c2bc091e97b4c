"""Terms of a vector field that are zero for exact solutions."""

import contextlib
import contextvars

import diffrax as dfx
import jax.lax as lax
from jaxtyping import Array, Float


_differentiated = contextvars.ContextVar("hybridjax_stabilization", default=False)


def stabilization(terms: Float[Array, " n"]) -> Float[Array, " n"]:
    """Terms that are zero for exact solutions, and so are their derivatives.

    They are not differentiated. Where a state is at rest, steps are longer than their
    time scale, and explicit solvers, whose errors are controlled for the state only,
    would amplify the rounding of their derivatives. Implicit solvers do not do that,
    and need these derivatives to solve for their stages.
    """
    return terms if _differentiated.get() else lax.stop_gradient(terms)


@contextlib.contextmanager
def stabilized_for(solver: dfx.AbstractSolver | None):
    """While a vector field is traced: which solver it is for."""
    token = _differentiated.set(_is_implicit(solver))
    try:
        yield
    finally:
        _differentiated.reset(token)


def _is_implicit(solver) -> bool:
    if isinstance(solver, dfx.AbstractWrappedSolver):
        return _is_implicit(solver.solver)
    return isinstance(solver, dfx.AbstractImplicitSolver)
