from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._jax.branch import where
from .._jax.gate import gate
from .names import meant_as_vector
from .rest import identity, Rest
from .system import AbstractSelfStartingSystem, UNWATCHED


class Transition(eqx.Module):
    """A transition of a [`hybridjax.HybridAutomaton`][].

    **Arguments:**

    - `source`: name of the mode that watches the guard.
    - `target`: name of the mode after the event.
    - `guard`: callable `(t, x, args) -> scalar`. Fires when it decreases through zero.
    - `reset`: callable `(t, x, args) -> x`, from the state of `source` to the state of
        `target`. Evaluated on the left limit; what it returns is the right limit.
    - `rest`: a [`hybridjax.Rest`][]: the mode to which these events lead where they
        accumulate (a Zeno point), as the bounces of a ball do. `None` means that they
        do not; if they do, the simulation ends with `zeno`.
    """

    source: str = eqx.field(static=True)
    target: str = eqx.field(static=True)
    guard: Callable
    reset: Callable = identity
    rest: Rest | None = None

    @property
    def ways(self) -> list[tuple[str, Callable]]:
        """The modes to which it may lead, and the resets into them."""
        rest = [] if self.rest is None else [(self.rest.target, self.rest.reset)]
        return [(self.target, self.reset), *rest]


class ModalState(eqx.Module):
    """The state of an automaton whose modes have states of different structure.

    `state["flight"]` is the state of mode `"flight"`. Only the entry of the current
    mode means anything; the others hold zeros.
    """

    states: dict[str, PyTree]

    def __getitem__(self, name: str) -> PyTree:
        return self.states[name]


class HybridAutomaton(AbstractSelfStartingSystem):
    """Modes with a vector field each, and transitions between them.

    **Arguments:**

    - `modes`: mapping from the name of a mode to its vector field, a callable
        `(t, x, args) -> dx/dt`.
    - `transitions`: sequence of [`hybridjax.Transition`][]s.

    Callables may be modules with parameters, and may depend on time. A vector field
    that is a system itself, such as [`hybridjax.mechanics.Multibody`][], also checks
    the initial state, if it is that of the initial mode. The mode is a
    scalar integer, the position of its name in `modes`; wherever a mode is asked for,
    its name will do. The guard number of a transition is its position in `transitions`.

    Modes may have states of different structure. The state is then a
    [`hybridjax.ModalState`][], made by [`hybridjax.simulate`][] from the state of the
    initial mode and the resets.

    **Raises:**

    - `ValueError` if there are no modes, or if a transition names an unknown mode.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Definition 1.
    """

    vector_fields: tuple[Callable, ...]
    transitions: tuple[Transition, ...]
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self, modes: Mapping[str, Callable], transitions: Sequence[Transition]
    ):
        if len(modes) == 0:
            raise ValueError("Argument `modes` must have at least one mode.")
        self.names = tuple(modes)
        self.vector_fields = tuple(modes.values())
        self.transitions = tuple(transitions)
        for i, transition in enumerate(self.transitions):
            targets = [target for target, _ in transition.ways]
            for end in (transition.source, *targets):
                if end not in modes:
                    raise ValueError(
                        f"Argument `transitions` must name modes of `modes`, but "
                        f"transition {i} names {end!r}. The modes are "
                        f"{list(self.names)}."
                    )

    def index(self, mode: Any) -> Any:
        """The integer of a mode given by name or by integer.

        **Raises:**

        - `ValueError` if there is no such mode.
        """
        if isinstance(mode, str):
            if mode not in self.names:
                raise ValueError(
                    f"The mode must be one of {list(self.names)}, but it is {mode!r}."
                )
            mode = self.names.index(mode)
        elif isinstance(mode, (int, np.integer)) and not 0 <= mode < len(self.names):
            raise ValueError(
                f"The mode must be one of {list(self.names)} or an integer from 0 to "
                f"{len(self.names) - 1}, but it is {mode}."
            )
        # An integer that is known stays known, under `jax.jit` too.
        known = isinstance(mode, (int, np.integer))
        return np.int32(mode) if known else jnp.asarray(mode, jnp.int32)

    def flow(self, t, x, mode, args):
        def branch(i):
            def run(t, x, args):
                field, t_, x_, args_ = gate(
                    (self.vector_fields[i], t, _get(x, self.names[i]), args), mode == i
                )
                return _put(x, self.names[i], field(t_, x_, args_))

            return run

        return _switch(mode, [branch(i) for i in range(len(self.names))], t, x, args)

    def guards(self, t, x, mode, args):
        out = []
        for i, transition in enumerate(self.transitions):
            watched = mode == self.names.index(transition.source)
            guard, t_, x_, args_ = gate(
                (transition.guard, t, _get(x, transition.source), args), watched
            )
            value = jnp.asarray(guard(t_, x_, args_))
            if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
                raise ValueError(
                    "A guard must return a floating-point scalar, but the guard of "
                    f"{transition_name(self, i)} returned {value.dtype} of shape "
                    f"{value.shape}."
                )
            out.append(jnp.where(watched, value, jnp.asarray(UNWATCHED, value.dtype)))
        return jnp.stack(out) if out else jnp.zeros((0,), jnp.result_type(t))

    def jump(self, t, x, mode, event, args):
        if not self.transitions:
            return x, mode

        def branch(i):
            transition = self.transitions[i]
            after = self.vector_fields[self.names.index(transition.target)]

            def way(t, x, args, to, taken):
                target, reset = to
                reset, t_, x_, args_ = gate(
                    (reset, t, _get(x, transition.source), args), taken
                )
                x_plus = _put(x, target, reset(t_, x_, args_))
                return x_plus, jnp.asarray(self.names.index(target), mode.dtype)

            def run(t, x, args):
                here = event == i
                if transition.rest is None:
                    return way(t, x, args, transition.ways[0], here)
                rests = transition.rest.replaces(
                    transition.guard,
                    after,
                    t,
                    transition.reset(t, _get(x, transition.source), args),
                    args,
                    watched=transition.source == transition.target,
                )
                on, rest = (
                    way(t, x, args, to, here & taken)
                    for to, taken in zip(transition.ways, (~rests, rests), strict=True)
                )
                return where(rests, rest, on)

            return run

        return _switch(
            event, [branch(i) for i in range(len(self.transitions))], t, x, args
        )

    def start(self, t, x, mode, args):
        if mode is None:
            raise ValueError(
                f"Argument `mode0` must be given: one of {list(self.names)}."
            )
        index = self.index(mode)
        if not isinstance(x, ModalState) and not isinstance(index, jax.core.Tracer):
            field = self.vector_fields[int(index)]
            if isinstance(field, AbstractSelfStartingSystem):
                x, _ = field.start(t, x, None, args)
            x = _embed(self, t, x, int(index), args)
        return x, index

    def mode_name(self, mode) -> str:
        return repr(self.names[int(mode)])

    def guard_name(self, guard: int) -> str:
        return f"the guard of {transition_name(self, guard)}"


def _switch(index, branches, *operands):
    if len(branches) == 1:
        return branches[0](*operands)
    return lax.switch(index, branches, *operands)


def _get(x, name):
    return x[name] if isinstance(x, ModalState) else x


def _put(x, name, value):
    if not isinstance(x, ModalState):
        return value
    zeros = jtu.tree_map(jnp.zeros_like, x.states)
    return ModalState({**zeros, name: value})


def transition_name(system: HybridAutomaton, i: int) -> str:
    transition = system.transitions[i]
    return f"transition {i} ({transition.source!r} -> {transition.target!r})"


def target_name(system: HybridAutomaton, i: int, mode_after: Callable) -> str:
    """The mode to which a transition led."""
    transition = system.transitions[i]
    if transition.rest is None:
        return transition.target
    return system.names[int(mode_after())]


def state_range(x: ModalState, name: str) -> slice:
    """Where the state of one mode lies in the raveled modal state."""
    sizes = {
        key: sum(leaf.size for leaf in jtu.tree_leaves(state))
        for key, state in sorted(x.states.items())
    }
    begin = 0
    for key, size in sizes.items():
        if key == name:
            return slice(begin, begin + size)
        begin += size
    raise KeyError(name)


def _embed(system, t, x, index, args):
    # Follow the resets from the initial mode to find the structure of every state that
    # can be reached.
    structs = {system.names[index]: jax.eval_shape(lambda: x)}
    todo = [system.names[index]]
    while todo:
        source = todo.pop()
        for i, transition in enumerate(system.transitions):
            if transition.source != source:
                continue
            for target, reset in transition.ways:
                struct = eqx.filter_eval_shape(reset, t, structs[source], args)
                known = structs.get(target)
                if known is None:
                    structs[target] = struct
                    todo.append(target)
                elif not _same(known, struct):
                    raise ValueError(
                        f"All resets into a mode must return states of one structure, "
                        f"but {transition_name(system, i)} returns {struct}, and "
                        f"another state of {target!r} is {known}." + meant_as_vector(x)
                    )
    if all(_same(struct, structs[system.names[index]]) for struct in structs.values()):
        return x
    for name in system.names:
        # A mode that cannot be reached has no state.
        structs.setdefault(name, ())
    states = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), structs)
    return ModalState({**states, system.names[index]: x})


def _same(a, b) -> bool:
    leaves_a, treedef_a = jtu.tree_flatten(a)
    leaves_b, treedef_b = jtu.tree_flatten(b)
    return treedef_a == treedef_b and all(
        p.shape == q.shape and p.dtype == q.dtype
        for p, q in zip(leaves_a, leaves_b, strict=True)
    )
