"""The cost of a trajectory, stage by stage, and its quadratic model."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._stages import head, jacobians, Rollout, Stages


class Costs(eqx.Module):
    """The sum of `running(t, x, u)` over the knots at which intervals begin, and
    `terminal(t, x)` at the last one."""

    running: Callable | None
    terminal: Callable | None

    def stage(self, stages: Stages, k, x, u) -> Float[Array, ""]:
        if self.running is None:
            return jnp.zeros_like(x[0])
        cost = self.running(stages.time(k, x), stages.state(x), u)
        return _scalar("running", cost, x.dtype)

    def final(self, stages: Stages, x) -> Float[Array, ""]:
        if self.terminal is None:
            return jnp.zeros_like(x[0])
        cost = self.terminal(stages.time(stages.number, x), stages.state(x))
        return _scalar("terminal", cost, x.dtype)

    def total(self, stages: Stages, path: Rollout) -> Float[Array, ""]:
        ks = jnp.arange(stages.number)
        stage = lambda k, x, u: self.stage(stages, k, x, u)
        spent = jax.vmap(stage)(ks, path.xs[:-1], path.us)
        return jnp.sum(spent) + self.final(stages, path.xs[-1])


def _scalar(name, cost, dtype):
    cost = jnp.asarray(cost)
    if cost.shape != () or not jnp.issubdtype(cost.dtype, jnp.floating):
        raise ValueError(
            f"Argument `{name}` must return a floating-point scalar, but it returned "
            f"{cost.dtype} of shape {cost.shape}."
        )
    return cost.astype(dtype)


class Model(eqx.Module):
    """Linear dynamics and quadratic costs of deviations: stage by stage, with `w` the
    state followed by the control; and of the state at the end."""

    A: Float[Array, "N n n"]
    B: Float[Array, "N n m"]
    # By how much the end of an interval is off the state at the knot there.
    gap: Float[Array, "N n"]
    gradient: Float[Array, "N n+m"]
    hessian: Float[Array, "N n+m n+m"]
    end_gradient: Float[Array, " n"]
    end_hessian: Float[Array, "n n"]

    @property
    def n(self) -> int:
        return self.A.shape[-1]


def model_of(stages: Stages, costs: Costs, path: Rollout) -> Model:
    """At a trajectory. Costs that depend on the state after an event know of it as of
    any other: it is that of a knot."""
    n = path.xs.shape[1]
    A, B = jacobians(stages, path.xs, path.modes, path.us)
    ks = jnp.arange(stages.number)
    stage = lambda w, k: costs.stage(stages, k, w[:n], w[n:])
    points = jnp.concatenate([path.xs[:-1], path.us], axis=1)
    final = lambda x: costs.final(stages, x)
    return Model(
        A=A,
        B=B,
        gap=path.ends.x - path.xs[1:],
        gradient=jax.vmap(jax.grad(stage))(points, ks),
        hessian=jax.vmap(jax.hessian(stage))(points, ks),
        end_gradient=jax.grad(final)(path.xs[-1]),
        end_hessian=jax.hessian(final)(path.xs[-1]),
    )


def gradient_of(model: Model):
    """The derivative of the cost with respect to all controls, and to the states at all
    knots, which are the costates."""

    def one(costate, row):
        A, B, l = row
        n = costate.size
        before = l[:n] + A.T @ costate
        return before, (l[n:] + B.T @ costate, before)

    rows = (model.A, model.B, model.gradient)
    _, (controls, costates) = jax.lax.scan(one, model.end_gradient, rows, reverse=True)
    return controls, jnp.concatenate([costates, model.end_gradient[None]])


def curvature(stages: Stages, path: Rollout, costates) -> Float[Array, "N n+m n+m"]:
    """What the second derivative of the dynamics adds to the Hessians: with costates, a
    Newton step of the whole problem is one of the quadratic model. Zero where there is
    no second derivative, as at a corner."""
    n = path.xs.shape[1]

    def one(k, x, mode, u, costate):
        value = lambda w: costate @ stages.step(k, w[:n], mode, w[n:]).x
        second = jax.jacfwd(jax.grad(value))(jnp.concatenate([x, u]))
        exists = jnp.all(jnp.isfinite(second))
        return jnp.where(exists, (second + second.T) / 2, 0)

    ks = jnp.arange(stages.number)
    run = jax.vmap(one)
    return run(ks, path.xs[:-1], head(path.modes), path.us, costates[1:])
