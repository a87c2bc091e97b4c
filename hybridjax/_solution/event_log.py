import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._derivatives.shift_time import shift_time
from .._jax.deferred import deferred
from .._jax.gate import gate
from .._systems.automaton import ModalState
from .._systems.names import Names
from .known import check_known
from .path import Path


class EventLog(eqx.Module):
    """The events of a simulation, in order. All arrays have length `max_events`.

    Entries beyond `count` are padding, which static shapes need: infinite times, NaN
    states, event number -1.

    **Attributes:**

    - `t`: times, shape `(max_events,)`.
    - `event`: numbers of the guards that fired, shape `(max_events,)`.
    - `mode_before`, `mode_after`: modes.
    - `x_before`, `x_after`: left and right limits of the state.
    - `normal_speed`: rate dg/dt of the guard when it fired, negative: how far from
        grazing the event was. Shape `(max_events,)`.
    - `count`: how many events there were.

    Without the padding, and where values are known: `trim` and `to_dict`.

    Floats are differentiable. A derivative of `x_before` or `x_after` is that of the
    state at the event, whose time moves too.
    """

    t: Float[Array, " max_events"]
    event: Int[Array, " max_events"]
    mode_before: PyTree
    mode_after: PyTree
    x_before: PyTree
    x_after: PyTree
    normal_speed: Float[Array, " max_events"]
    count: Int[Array, ""]
    _names: Names = eqx.field(static=True)

    def trim(self) -> "EventLog":
        """The same without the padding: NumPy arrays of length `count`.

        **Raises:**

        - `ValueError` where values are not known, as within `jax.jit`, or of several
            simulations.
        """
        check_known("trim", self.count)
        count = np.asarray(self.count)
        cut = lambda a: np.asarray(a)[:count] if np.ndim(a) > 0 else np.asarray(a)
        return jtu.tree_map(cut, self)

    def to_dict(self) -> dict[str, np.ndarray]:
        """A table of the events: columns, without the padding, for `pandas.DataFrame`
        or its like.

        **Returns:**

        One-dimensional NumPy arrays: `t`; `event`, the number of the guard, and
        `guard`, its name; `mode_before` and `mode_after`, with names instead of
        integers where modes have names; `x_before` and `x_after`; and `normal_speed`.
        Modes and states of several numbers have a column for each, called by its place:
        `x_before[1]`, `x_before.q[1]` where the state is a dict, `x_before.0[1]` where
        it is a tuple.

        **Raises:**

        - `ValueError` as `trim`.
        """
        log = self.trim()
        guards = [self._names.guard(i) for i in log.event.tolist()]
        table: dict[str, Any] = {"t": log.t, "event": log.event}
        table["guard"] = np.array(guards, dtype=str)
        for name in ("mode_before", "mode_after"):
            structure = jtu.tree_structure(getattr(log, name))
            words = self._names.entries(getattr(log, name))
            table |= columns(name, jtu.tree_unflatten(structure, words))
        for name in ("x_before", "x_after"):
            table |= columns(name, getattr(log, name))
        table["normal_speed"] = log.normal_speed
        return table


def columns(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    """One for each number of each leaf, whose first axis is that of the rows."""
    table = {}
    tree = tree.states if isinstance(tree, ModalState) else tree
    for path, leaf in jtu.tree_leaves_with_path(tree):
        place = jtu.keystr(path, simple=True, separator=".")
        head = f"{name}.{place}" if place else name
        for index in np.ndindex(leaf.shape[1:]):
            inner = f"[{', '.join(map(str, index))}]" if index else ""
            table[head + inner] = leaf[:, *index]
    return table


def event_log(path: Path, max_events: int, names: Names) -> EventLog:
    """Reads the events off the tape."""
    tape = path.tape
    index, valid = tape.event_rows(max_events)
    # The rows have it all, but for derivatives: those are of the functions of the
    # system. (Rows of projections say how fast a guard was before they began.) Only of
    # times they have these, too: whoever asks for no other derivative waits for none.
    known = None if tape.projects else _recorded
    return EventLog(
        t=_filled(jnp.inf, valid, tape.t_event[index]),
        count=tape.num_events,
        _names=names,
        **deferred(_differentiable, path, index, valid, known=known),
    )


def _recorded(path: Path, index, valid) -> dict[str, PyTree]:
    tape = path.tape
    here = lambda rows: rows[index]
    _, x_plus, mode_plus = tape.after(index, index + 1 >= tape.num_rows)
    return _padded(
        path,
        valid,
        here(tape.event),
        jtu.tree_map(here, tape.mode),
        mode_plus,
        here(tape.x_pre),
        x_plus,
        here(tape.rate),
    )


def _differentiable(path: Path, index, valid) -> dict[str, PyTree]:
    tape = path.tape
    given = path.system, tape.t_event, tape.x_pre
    system, t_event, x_pre = gate(given, tape.fired.any())

    def one(i):
        mode = jtu.tree_map(lambda m: m[i], tape.mode)
        event = jnp.maximum(tape.event[i], 0)
        t, x = t_event[i], x_pre[i]
        time = jax.lax.stop_gradient(t)
        if system.n_guards == 0:
            mode_plus, x_plus, speed = mode, x, jnp.zeros_like(t)
        else:
            x = shift_time(system, time, x, mode, t - time)
            flow = system.flow(t, x, mode)
            speed = system.guard_rates(t, x, mode, flow)[1][event]
            x_plus, mode_plus = system.jump(t, x, mode, event)
        return tape.event[i], mode, mode_plus, x, x_plus, speed

    return _padded(path, valid, *jax.vmap(one)(index))


def _padded(path: Path, valid, event, mode, mode_plus, x, x_plus, speed):
    pad_mode = functools.partial(_filled, -1, valid)
    states = lambda rows: jax.vmap(path.unravel)(_filled(jnp.nan, valid, rows))
    return dict(
        event=_filled(-1, valid, event),
        mode_before=jtu.tree_map(pad_mode, mode),
        mode_after=jtu.tree_map(pad_mode, mode_plus),
        x_before=states(x),
        x_after=states(x_plus),
        normal_speed=_filled(jnp.nan, valid, speed),
    )


def _filled(value, valid, rows):
    pad = jnp.asarray(value).astype(rows.dtype)
    return jax.vmap(lambda valid, a: jnp.where(valid, a, pad))(valid, rows)
