"""The flow from a state on a tape to a time between two of them, differentiable."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, PyTree

from .._jax.reduce import all_of
from .._steps.method import TangentTolerance
from .._steps.stages import explicit_tableau
from .._steps.step import flow_for, solver_step
from .._steps.variation import pull_flow, push_flow, scale_of
from .._systems.flat import FlatSystem
from .recording import AbstractRecording, Inputs, Outputs
from .replay import push


class _Step(AbstractRecording):
    """A part of a solver step."""

    system: FlatSystem
    solver: Any
    tangent_tol: TangentTolerance | None
    t: Float[Array, ""]
    dt: Float[Array, ""]
    x: Float[Array, " n"]
    mode: PyTree
    x_end: Float[Array, " n"]

    @property
    def end(self):
        return self.t, self.x_end

    @property
    def smooth_twice(self) -> Bool[Array, ""]:
        return jnp.asarray(True)

    def like_outputs(self) -> Outputs:
        return _only(self.x_end)

    def push(self, inputs: Inputs, twice: bool) -> Outputs:
        dx = jnp.zeros_like(self.x_end) if inputs.x0 is None else inputs.x0
        dx = push_flow(
            self.solver,
            self.system,
            inputs.system,
            self.t,
            self.dt,
            self.x,
            self.mode,
            dx,
            self.tangent_tol,
            scale_of(dx, inputs.system, self.system),
        )
        return _only(dx)

    def pull(self, cts: Outputs, wanted: Inputs, twice: bool) -> Inputs:
        moving, fixed = self.split(wanted)
        ct_system, ct = pull_flow(
            self.solver,
            lambda moving: eqx.combine(moving, fixed),
            moving,
            self.t,
            self.dt,
            self.x,
            self.mode,
            cts.x_end,
            jtu.tree_map(jnp.zeros_like, moving),
            self.tangent_tol,
            scale_of(cts),
            twice,
        )
        return Inputs(ct_system, None if wanted.x0 is None else ct, None, None)


def _only(x_end) -> Outputs:
    return Outputs(x=None, x_pre=None, x_end=x_end, t_event=None, t_end=None)


@eqx.filter_custom_jvp
def along(
    system: FlatSystem, x, *, t, dt, mode, solver, tangent_tol, exists
) -> Float[Array, " n"]:
    """The state a time `dt` after that of `x`, of which no derivative with respect to
    `t` and `dt` is taken; with respect to the others it is that of `x` where the flow's
    does not exist. NaN where an implicit step fails."""
    if explicit_tableau(solver) is not None:
        return flow_for(solver, system, t, dt, x, mode)
    # A part of a recorded step has stages of its own: not all may be where the field
    # has a derivative, without which what an implicit step returns is something else.
    flow = system.flow(t, x, mode)
    step = solver_step(solver, system, t, dt, x, flow, mode)
    return jnp.where(step.okay | (dt == 0), step.x, jnp.nan)


@along.def_jvp
def _along_jvp(primals, tangents, *, t, dt, mode, solver, tangent_tol, exists):
    (system, x), (t_system, t_x) = primals, tangents
    x_end = along(
        system,
        x,
        t=t,
        dt=dt,
        mode=mode,
        solver=solver,
        tangent_tol=tangent_tol,
        exists=exists,
    )
    dt, known = jnp.where(exists, dt, 0), jnp.ones((), x.dtype)
    if explicit_tableau(solver) is None:
        there = all_of(jnp.isfinite(x_end))
        dt, known = jnp.where(there, dt, 0), jnp.where(there | ~exists, known, jnp.nan)
    step = _Step(system, solver, tangent_tol, t, dt, x, mode, x_end)
    t_end: Any = push(Inputs(t_system, t_x, None, None), step).x_end
    # Not a `where`, whose transpose would be zero.
    return x_end, known * t_end
