"""A hybrid system with controls that are held from knot to knot, as a system in
discrete time: what everything here is made of."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import same_time
from .._jax.tracing import is_traced
from .._simulate import simulate
from .._systems.start import start
from ._results import RESULTS, SUCCESS


class End(eqx.Module):
    """How an interval ended, after the events at the knot that ends it."""

    x: Float[Array, " n"]
    mode: PyTree
    # The guards that fired, and -1.
    event: Int[Array, " max_events"]
    kinked: Bool[Array, ""]
    result: RESULTS  # pyright: ignore


class Stages(eqx.Module):
    """`x` is the raveled state. If the duration is free, a last entry holds a factor
    that all intervals are longer by."""

    system: Any
    args_of: Callable
    unravel: Callable
    ts: Float[Array, " N+1"]
    options: dict[str, Any]
    free: bool

    @property
    def number(self) -> int:
        return self.ts.shape[0] - 1

    def time(self, k, x) -> Float[Array, ""]:
        t = self.ts[k]
        return self.ts[0] + (t - self.ts[0]) * x[-1] if self.free else t

    def state(self, x) -> PyTree:
        return self.unravel(x[:-1] if self.free else x)

    def step(self, k, x, mode, u) -> End:
        t0, t1 = self.time(k, x), self.time(k + 1, x)
        sol = simulate(
            self.system,
            t0,
            t1,
            self.state(x),
            mode,
            self.args_of(u),
            throw=False,
            **self.options,
        )
        end = ravel_pytree(sol.x1)[0]
        return End(
            x=jnp.append(end, x[-1]) if self.free else end,
            mode=sol.mode1,
            event=sol.events.event,
            kinked=_is_kinked(sol),
            result=RESULTS.promote(sol.result),
        )


def _is_kinked(sol) -> Bool[Array, ""]:
    """Do several events share an instant, or is there one at the start?"""
    t0, t1 = lax.stop_gradient((sol.t0, sol.t1))
    times = jnp.append(t0, lax.stop_gradient(sol.events.t))
    follows = times[1:] <= times[:-1] + same_time(t0, t1)
    return jnp.any(follows & (jnp.arange(follows.size) < sol.events.count))


class Rollout(eqx.Module):
    xs: Float[Array, "N+1 n"]
    modes: PyTree
    us: Float[Array, "N m"]
    ends: End
    # How many events there were before each interval.
    counts: Int[Array, " N"]


def rollout(
    stages: Stages,
    x0: Float[Array, " n"],
    mode0: PyTree,
    rows: PyTree,
    control: Callable,
    follow: Callable = lambda row, end: end,
) -> Rollout:
    """Interval by interval. With the row of an interval, `control(row, x, count)` is
    the control in it, after so many events, and `follow(row, end)` the state that the
    next one begins with."""

    def one(carry, now):
        k, row = now
        x, mode, count = carry
        u = control(row, x, count)
        end = stages.step(k, x, mode, u)
        more = jnp.sum(end.event >= 0)
        return (follow(row, end.x), end.mode, count + more), (x, mode, u, end, count)

    ks = jnp.arange(stages.number)
    start = (x0, mode0, jnp.asarray(0))
    (*last, _), (xs, modes, us, ends, counts) = lax.scan(one, start, (ks, rows))
    more = lambda a, b: jnp.concatenate([a, b[None]])
    xs, modes = jtu.tree_map(more, (xs, modes), tuple(last))
    return Rollout(xs, modes, us, ends, counts)


def first_failure(results):
    """Of many results, the first that is not `successful`; or `successful`."""
    failed = results != SUCCESS
    return jtu.tree_map(lambda a: a[jnp.argmax(failed)], results)


def jacobians(stages: Stages, xs, modes, us):
    """`A` and `B` of all intervals at once, in reverse mode: at a corner that of the
    order that was simulated."""

    def one(k, x, mode, u):
        end = lambda x, u: stages.step(k, x, mode, u).x
        _, pull = jax.vjp(end, x, u)
        return jax.vmap(pull)(jnp.eye(x.size, dtype=x.dtype))

    ks = jnp.arange(stages.number)
    return jax.vmap(one)(ks, xs[:-1], head(modes), us)


def head(tree):
    return jtu.tree_map(lambda a: a[:-1], tree)


#
# What was given
#

_OPTIONS = {
    *("solver", "stepsize_controller", "dt0", "event_method", "max_steps"),
    *("max_events", "tangent_rtol"),
}
# Of one interval: hundreds of them are in memory at once.
_BOUNDS = {"max_steps": 128, "max_events": 8}


def check_grid(ts, us):
    """Shapes, and what is known of values."""
    shape, controls = jnp.shape(ts), jnp.shape(us)
    if len(shape) != 1 or shape[0] < 2:
        raise ValueError(
            "Argument `ts` must be a vector of at least two knots, the ends of at "
            f"least one interval, but its shape is {shape}."
        )
    if len(controls) != 2 or controls[0] != shape[0] - 1:
        raise ValueError(
            "Argument `us` must have shape (N, m), one row of m controls for each of "
            f"the N = {shape[0] - 1} intervals between knots `ts`, but its shape is "
            f"{controls}. A single control is a column: `us[:, None]`."
        )
    if not is_traced(ts) and not bool(jnp.all(jnp.diff(ts) > 0)):
        raise ValueError("Argument `ts` must be ascending: knots one after the other.")


def make_stages(system, ts, x0, mode0, us, args_of, options, free=False):
    """The stages, and the start and the controls as arrays of one type."""
    unknown = set(options) - _OPTIONS
    if unknown:
        raise ValueError(
            f"Argument `{sorted(unknown)[0]}` is not known: what is passed on to "
            f"`hj.simulate` is one of {sorted(_OPTIONS)}."
        )
    if args_of is not None and not callable(args_of):
        raise ValueError(
            "Argument `args_of` must be a function of a control, of shape (m,), that "
            f"returns the `args` of the system, but it is a {type(args_of).__name__}."
        )
    begin = start(system, ts[0], x0, mode0, _args(args_of)(us[0]))
    x, unravel = ravel_pytree(begin.x)
    stages = Stages(
        begin.system,
        _args(args_of),
        unravel,
        jnp.asarray(ts, x.dtype),
        _BOUNDS | options,
        free,
    )
    if free:
        x = jnp.append(x, jnp.ones((), x.dtype))
    return stages, x, begin.mode, jnp.asarray(us, x.dtype)


def _args(args_of):
    return (lambda u: u) if args_of is None else args_of
