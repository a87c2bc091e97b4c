import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import optimistix as optx
from jaxtyping import Array, PyTree, Real

from .._jax.errors import certify, Messages, Verdict
from .._systems.parameter import in_dtype
from ._dynamics.inertia import apply_mass
from ._dynamics.multibody import close, Multibody
from ._mechanical import MechanicalSystem


def consistent_state(
    system: Multibody | MechanicalSystem,
    t: Real[Array, ""] | float,
    x: PyTree,
    args: PyTree = None,
    *,
    max_steps: int = 256,
    throw: bool = True,
) -> tuple[Array, Array]:
    r"""The state nearest to a guess that satisfies the constraints of a system.

    First the configuration, $\min_q |q - \hat q|^2$ with $\Phi(t, q) = 0$, then the
    velocity, $\min_v |v - \hat v|^2$ with $\Phi_q v + \Phi_t = 0$; both distances are
    those of the mass matrix, at $\hat q$ and at $q$. (With a `velocity_to_qdot`, $q -
    \hat q$ is the velocity that leads from one to the other in a unit of time.)

    Differentiable, also with respect to what is in the constraints, by the implicit
    function theorem.

    **Arguments:**

    - `system`: a `hj.mechanics.Multibody`, or a
        `hj.mechanics.MechanicalSystem` with constraints.
    - `t`: time.
    - `x`: the guess, a pair `(q, v)` of arrays of shape `(d,)`.
    - `args`: as passed to `hj.simulate`.
    - `max_steps`: bound on the number of steps to find the configuration.
    - `throw`: whether a failure raises. If not, the state is then NaN.

    **Returns:**

    The state, a pair `(q, v)`.

    **Raises:**

    - `ValueError` if the system has no constraints, or for wrong shapes.
    - `hj.SimulationError` if `throw` and no such state is found: the guess
        is too far away, or the constraints contradict each other.

    ??? cite "Reference"

        Corner, Sandu, Sandu, *Modeling and sensitivity analysis methodology for hybrid
        dynamical systems*, (31a), (31b), (51); the velocity is that of (54).
    """
    body = system.body if isinstance(system, MechanicalSystem) else system
    if not isinstance(body, Multibody) or body.constraints is None:
        raise ValueError(
            "Argument `system` must be a mechanical system with constraints, such as "
            "`hj.mechanics.Multibody(mass_matrix, effort, constraints)`."
        )
    x = jtu.tree_map(jnp.asarray, x)
    body.check_shapes(t, x, args)
    x, verdict = _project(in_dtype(body, x[0].dtype), t, x, args, max_steps)
    return certify(x, verdict, Messages(_message)) if throw else x


@eqx.filter_jit
def _project(body, t, x, args, max_steps):
    guess, v = x
    dtype = guess.dtype
    t = jnp.asarray(t, dtype)
    m = body.at(t, guess, v, args).residual.shape[0]

    def conditions(y, problem):
        change, multipliers = y
        body, t, guess, args = problem

        def phi(change):
            q = _moved(body, guess, change)
            return body.constraints(t, q, args).astype(dtype)  # pyright: ignore

        residual, pull = jax.vjp(phi, change)
        weight = apply_mass(body.mass_matrix(guess, args), change).astype(dtype)
        return weight + pull(multipliers)[0], residual

    # The multipliers of redundant constraints are not unique; the rest is.
    any_rank = lx.AutoLinearSolver(well_posed=False)
    tol = jnp.finfo(dtype).eps ** 0.75
    found = optx.root_find(
        conditions,
        optx.Newton(rtol=float(tol), atol=float(tol), linear_solver=any_rank),
        (jnp.zeros_like(v), jnp.zeros((m,), dtype)),
        (body, t, guess, args),
        max_steps=max_steps,
        adjoint=optx.ImplicitAdjoint(any_rank),
        throw=False,
    )
    change, _ = found.value
    q = _moved(body, guess, change)
    x = body.plastic_impact(t, (q, v), args)
    (q, v), open_, _, regular = close(body, t, x, args)
    failed = open_.any() | ~regular | ~jnp.isfinite(v).all()
    x = jtu.tree_map(lambda a: jnp.where(failed, jnp.nan, a), (q, v))
    return x, Verdict(failed, jnp.argmax(open_))


def _moved(body: Multibody, q, change):
    """Where a velocity leads in a unit of time, if it does not change."""
    if body.velocity_to_qdot is None:
        return q + change
    term = diffrax.ODETerm(lambda t, q, change: body.qdot(q, change))
    moved = diffrax.diffeqsolve(
        term,
        diffrax.Tsit5(),
        t0=0,
        t1=1,
        dt0=1 / 16,
        y0=q,
        args=change,
        adjoint=diffrax.DirectAdjoint(),  # In both modes, one in the other.
        max_steps=16,
    )
    assert moved.ys is not None
    return moved.ys[0]


def _message(j) -> str:
    return (
        "`consistent_state` found no configuration that satisfies the constraints: "
        f"constraint {int(j)} is violated. Argument `x` may be too far away, or the "
        "constraints contradict each other."
    )
