"""`diffrax.SaveAt`, read off the tape."""

from typing import Any

import diffrax as dfx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._events.firing import SAME_TIME
from .._jax.branch import where
from .._jax.deferred import deferred
from .._jax.tracing import is_traced
from .path import nan_unless, Path


def check_saveat(saveat: Any):
    if not isinstance(saveat, dfx.SaveAt):
        raise ValueError(
            f"Argument `saveat` must be a `diffrax.SaveAt`, but it is a "
            f"{type(saveat).__name__}."
        )
    for name in ("solver_state", "controller_state", "made_jump"):
        if getattr(saveat, name):
            raise ValueError(
                f"Argument `saveat` must not ask for `{name}`: a simulation with "
                "events starts its solver afresh at every event."
            )
    for sub in _subs(saveat):
        if sub.steps not in (0, 1):
            raise ValueError(
                "Argument `saveat` must have `steps` True or False, but it is "
                f"{sub.steps}."
            )


def check_times(saveat: dfx.SaveAt, t0, t1, dtype) -> tuple:
    """Those of its times that are not known yet: they are left to the loop to check."""
    scale = 0.0 if is_traced((t0, t1)) else max(abs(t0), abs(t1))
    tol = SAME_TIME * float(jnp.finfo(dtype).eps) * scale
    unknown = []
    for ts in [sub.ts for sub in _subs(saveat) if sub.ts is not None]:
        if is_traced((ts, t0, t1)):
            unknown.append(ts)
            continue
        ts = np.asarray(ts)
        outside = ts[~((ts >= t0 - tol) & (ts <= t1 + tol))]
        if outside.size > 0:
            raise ValueError(
                f"Argument `saveat` must have its `ts` between `t0` and `t1`, which "
                f"are {t0} and {t1}, but one of them is {outside[0]}. Leave it out, or "
                "simulate for longer."
            )
        (falls,) = np.nonzero(np.diff(ts) < 0)
        if falls.size > 0:
            raise ValueError(
                "Argument `saveat` must have its `ts` in ascending order, but "
                f"{ts[falls[0] + 1]} comes after {ts[falls[0]]}. Sort them."
            )
    return tuple(unknown)


def _is_sub(x):
    return isinstance(x, dfx.SubSaveAt)


def _subs(saveat):
    return jtu.tree_leaves(saveat.subs, is_leaf=_is_sub)


def save(saveat: dfx.SaveAt, path: Path, t0, t1, x0, mode0, args):
    """The pytrees `ts`, `xs` and `modes` that `saveat` asks for."""

    def one(sub):
        pieces = []
        # A jump at `t0` itself has already happened in what is saved there.
        if sub.t0:
            pieces.append(_at_times(path, t0[None], sub.fn, args))
        if sub.ts is not None:
            pieces.append(_at_times(path, sub.ts.astype(t0.dtype), sub.fn, args))
        if sub.steps:
            pieces.append(_at_steps(path, sub.fn, args))
        if sub.t1 and not sub.steps:
            pieces.append(_at_end(path, t1, sub.fn, args))
        return jtu.tree_map(lambda *a: jnp.concatenate(a), *pieces)

    if saveat.subs is None:
        return None, None, None
    subs, structure = jtu.tree_flatten(saveat.subs, is_leaf=_is_sub)
    saved = [one(sub) for sub in subs]
    pick = lambda k: jtu.tree_unflatten(structure, [triple[k] for triple in saved])
    return pick(0), pick(1), pick(2)


def _at_times(path: Path, ts, fn, args):
    # Without `fn`, which may close over anything.
    at_all = lambda path, ts: jax.vmap(path.at)(ts)
    xs, modes, reached = deferred(at_all, path, ts)
    return ts, nan_unless(reached, _apply(fn, ts, xs, args)), modes


def _at_end(path: Path, t1, fn, args):
    tape = path.tape
    x = nan_unless(path.reaches(t1), fn(t1, path.unravel(tape.x_end), args))
    return jtu.tree_map(lambda a: a[None], (t1, x, tape.mode_end))


def _at_steps(path: Path, fn, args) -> tuple[PyTree, PyTree, PyTree]:
    """The end of every accepted step; of several events in one instant, the last."""
    tape = path.tape
    size = tape.t.shape[0]
    done = (tape.exists & (tape.dt > 0)) | tape.fired
    # The first row is no inner one: rolling moves a False to the end.
    done = done & ~jnp.roll(tape.inner, -1)
    (index,) = jnp.nonzero(done, size=size, fill_value=size)
    # Other lanes of a batch may have more rows.
    last = jnp.arange(size) + 1 >= jnp.sum(done)
    ts, xs, modes = tape.after(index, last)
    used = index < size
    out = _apply(fn, ts, jax.vmap(path.unravel)(xs), args)
    # What fills the other slots has no derivative.
    out = jax.vmap(where)(used, out, lax.stop_gradient(out))
    return jnp.where(used, ts, jnp.inf), nan_unless(used, out), modes


def _apply(fn, ts, xs, args):
    """What `fn` makes of states. Where there are none, it is given that of the end: the
    derivative of a function at NaN is NaN, also of what nobody reads."""
    return jax.vmap(lambda t, x: fn(t, x, args))(ts, xs)
