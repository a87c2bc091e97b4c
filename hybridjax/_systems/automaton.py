from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._jax.branch import switch, where
from .._jax.gate import gate
from .names import meant_as_vector, Names, transition_between
from .rest import identity, Rest
from .sliding import Side, Switch
from .sliding_surface import modes_of, ModeTable, SlidingSurface, UNSEEN
from .system import AbstractSelfStartingSystem, UNWATCHED


class Transition(eqx.Module):
    """A transition of a `hj.HybridAutomaton`.

    **Arguments:**

    - `source`: name of the mode that watches the guard.
    - `target`: name of the mode after the event.
    - `guard`: callable `(t, x, args) -> scalar`. Fires when it decreases through zero.
    - `reset`: callable `(t, x, args) -> x`, from the state of `source` to the state of
        `target`. Evaluated on the left limit; what it returns is the right limit.
    - `rest`: a `hj.Rest`: the mode to which these events lead where they
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
    - `transitions`: sequence of `hj.Transition`s and
        `hj.SlidingSurface`s.

    Callables may be modules with parameters, and may depend on time. A vector field
    that is a system itself, such as `hj.mechanics.Multibody`, also checks
    the initial state, if it is that of the initial mode. The mode is a scalar integer,
    the position of its name in `names`, which are those of `modes`, and then those of
    sliding surfaces; wherever a mode is asked for, its name will do. The guard number
    of a transition is its position in `transitions`.

    Modes may have states of different structure. The state is then a
    `hj.ModalState`, made by `hj.simulate` from the state of the
    initial mode and the resets. That is not possible with sliding surfaces.

    **Raises:**

    - `ValueError` if there are no modes, if a transition names an unknown mode or has a
        sliding one as its target, if two sliding surfaces are between the same modes,
        or if a name is used twice.

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Definition 1.
    """

    vector_fields: tuple[Callable, ...]
    transitions: tuple[Transition | SlidingSurface, ...]
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        modes: Mapping[str, Callable],
        transitions: Sequence[Transition | SlidingSurface],
    ):
        if len(modes) == 0:
            raise ValueError("Argument `modes` must have at least one mode.")
        self.vector_fields = tuple(modes.values())
        self.transitions = tuple(transitions)
        table = ModeTable(modes, self._surfaces())
        self.names = table.names
        for i, transition in enumerate(self.transitions):
            if isinstance(transition, SlidingSurface):
                ends = [(transition.below, modes), (transition.above, modes)]
            else:
                targets = [target for target, _ in transition.ways]
                ends: list = [(transition.source, table.given)]
                ends += [(target, modes) for target in targets]
            for end, known in ends:
                if end not in known:
                    raise ValueError(
                        f"Argument `transitions` must name modes of `modes`, but "
                        f"transition {i} names {end!r}. The modes are {list(modes)}."
                    )
        table.check()

    def index(self, mode: Any) -> Any:
        """The integer of a mode given by name or by integer.

        **Raises:**

        - `ValueError` if there is no such mode.
        """
        if isinstance(mode, str):
            if mode not in self.names:
                raise ValueError(
                    f"The mode must be one of {self._table.given}, but it is {mode!r}."
                )
            mode = self.names.index(mode)
        elif isinstance(mode, (int, np.integer)) and not 0 <= mode < len(self.names):
            raise ValueError(
                f"The mode must be one of {self._table.given} or an integer from 0 to "
                f"{len(self.names) - 1}, but it is {mode}."
            )
        # An integer that is known stays known, under `jax.jit` too.
        known = isinstance(mode, (int, np.integer))
        return np.int32(mode) if known else jnp.asarray(mode, jnp.int32)

    def flow(self, t, x, mode, args):
        mode = self.index(mode)

        def branch(i):
            def run(t, x, args):
                field, t_, x_, args_ = gate(
                    (self.vector_fields[i], t, _get(x, self.names[i]), args), index == i
                )
                return _put(x, self.names[i], field(t_, x_, args_))

            return run

        def slide(surface):
            def run(t, x, args):
                side = self._table.side(surface, mode)
                return self._switch(surface, side, args).flow(t, x, side[None])

            return run

        index, surfaces = mode, self._surfaces()
        branches = [branch(i) for i in range(len(self.vector_fields))]
        if surfaces:
            index = jnp.asarray(self._table.branches(), jnp.int32)[mode]
            branches += [slide(surface) for surface in surfaces]
        return switch(index, branches, t, x, args)

    def guards(self, t, x, mode, args):
        mode = self.index(mode)
        out = []
        for i, transition in enumerate(self.transitions):
            if isinstance(transition, SlidingSurface):
                side = self._table.side(transition, mode)
                watched = side != UNSEEN
                filippov = self._switch(transition, side, args)
                (value,) = filippov.guards(t, x, side[None])
            else:
                watched = self._table.watching(transition.source, mode)
                guard, t_, x_, args_ = gate(
                    (transition.guard, t, _get(x, transition.source), args), watched
                )
                name = transition_name(self, i)
                value = _scalar(name, guard(t_, x_, args_))
            out.append(jnp.where(watched, value, jnp.asarray(UNWATCHED, value.dtype)))
        return jnp.stack(out) if out else jnp.zeros((0,), jnp.result_type(t))

    def jump(self, t, x, mode, event, args):
        mode = self.index(mode)
        if not self.transitions:
            return x, mode

        def branch(i):
            transition = self.transitions[i]
            if isinstance(transition, SlidingSurface):
                happens = event == i
                return lambda t, x, args: self._switched(
                    transition, t, x, mode, happens, args
                )
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

        return switch(
            event, [branch(i) for i in range(len(self.transitions))], t, x, args
        )

    def start(self, t, x, mode, args):
        if mode is None:
            raise ValueError(
                f"Argument `mode0` must be given: one of {self._table.given}."
            )
        index = self.index(mode)
        if not isinstance(x, ModalState) and not isinstance(index, jax.core.Tracer):
            home = self.names.index(self._table.parts(self.names[int(index)])[0])
            field = self.vector_fields[home]
            if isinstance(field, AbstractSelfStartingSystem):
                x, _ = field.start(t, x, None, args)
            x = _embed(self, t, x, home, args)
        for surface in self._surfaces():
            x, index = self._started(surface, t, x, index, args)
        return x, index

    @property
    def naming(self) -> Names:
        guards = [
            each.name
            if isinstance(each, SlidingSurface)
            else transition_between(each.source, each.target)
            for each in self.transitions
        ]
        why = [(name, self._table.why_lost(name)) for name in self.names]
        return Names(
            modes=(tuple(enumerate(self.names)),),
            guards=tuple(guards),
            notes=tuple((name, note) for name, note in why if note is not None),
        )

    #
    # Sliding
    #

    def _surfaces(self) -> list[SlidingSurface]:
        return [s for s in self.transitions if isinstance(s, SlidingSurface)]

    @property
    def _table(self) -> ModeTable:
        return ModeTable(self.names[: len(self.vector_fields)], self._surfaces())

    def _switch(self, surface: SlidingSurface, side, args) -> Switch:
        """The vector fields of a surface. What is not needed is gated."""

        def fields(t, x, sides):
            (at,) = sides

            def field(name, needed):
                field = self.vector_fields[self.names.index(name)]
                field, t_, x_, args_ = gate((field, t, x, args), needed)
                return field(t_, x_, args_)

            below = field(surface.below, at <= 0)
            above = field(surface.above, (at >= 0) & (at != UNSEEN))
            return where(at > 0, above, below), where(at < 0, below, above)

        def surfaces(t, x):
            h, t_, x_, args_ = gate((surface.surface, t, x, args), side != UNSEEN)
            return _scalar(f"surface {surface.name!r}", h(t_, x_, args_))[None]

        return Switch(fields, surfaces)

    def _switched(self, surface: SlidingSurface, t, x, mode, happens, args):
        """What happens at a surface."""
        side = jnp.where(happens, self._table.side(surface, mode), UNSEEN)
        switch = self._switch(surface, side, args)
        x_plus, (side,) = switch.jump(t, x, side[None], 0)
        return x_plus, self._table.after(surface, mode, side)

    def _started(self, surface: SlidingSurface, t, x, index, args):
        """The state put onto the surface, if it starts sliding there."""
        slides, *_, lost = (self.names.index(name) for name in modes_of(surface))
        if isinstance(index, np.integer) and index != slides:
            return x, index
        on = jnp.asarray(index == slides)
        side = jnp.where(on, int(Side.ON), UNSEEN)
        x_on, (after,) = self._switch(surface, side, args).start(t, x, side[None])
        index = jnp.where(after == Side.LOST, lost, index).astype(jnp.int32)
        return where(on, x_on, x), index


def _get(x, name):
    return x[name] if isinstance(x, ModalState) else x


def _put(x, name, value):
    if not isinstance(x, ModalState):
        return value
    zeros = jtu.tree_map(jnp.zeros_like, x.states)
    return ModalState({**zeros, name: value})


def _scalar(name: str, value):
    value = jnp.asarray(value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "A guard must return a floating-point scalar, but the guard of "
            f"{name} returned {value.dtype} of shape {value.shape}."
        )
    return value


def transition_name(system: HybridAutomaton, i: int) -> str:
    transition = system.transitions[i]
    if isinstance(transition, SlidingSurface):
        return f"surface {i} ({transition.below!r} | {transition.above!r})"
    return f"transition {i} ({transition.source!r} -> {transition.target!r})"


def target_name(system: HybridAutomaton, i: int, mode_after: Callable) -> str:
    """The mode to which a transition led."""
    transition = system.transitions[i]
    if isinstance(transition, Transition) and transition.rest is None:
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
    edges = [edge for i in range(len(system.transitions)) for edge in _edges(system, i)]
    while todo:
        source = todo.pop()
        for i, begin, end, reset in edges:
            if begin != source:
                continue
            struct = eqx.filter_eval_shape(reset, t, structs[source], args)
            known = structs.get(end)
            if known is None:
                structs[end] = struct
                todo.append(end)
            elif not _same(known, struct):
                raise ValueError(
                    f"All resets into a mode must return states of one structure, but "
                    f"{transition_name(system, i)} returns {struct}, and another "
                    f"state of {end!r} is {known}." + meant_as_vector(x)
                )
    if all(_same(struct, structs[system.names[index]]) for struct in structs.values()):
        return x
    if system._surfaces():
        raise ValueError(
            "The modes of an automaton with a `hj.SlidingSurface` must have states of "
            f"one structure, but they have {structs}."
        )
    for name in system.names:
        # A mode that cannot be reached has no state.
        structs.setdefault(name, ())
    states = jtu.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), structs)
    return ModalState({**states, system.names[index]: x})


def _edges(system, i: int):
    """From where to where a transition leads, and by which reset."""
    transition = system.transitions[i]
    if isinstance(transition, SlidingSurface):
        below, above = transition.below, transition.above
        return [(i, below, above, identity), (i, above, below, identity)]
    source = system._table.parts(transition.source)[0]
    return [(i, source, target, reset) for target, reset in transition.ways]


def _same(a, b) -> bool:
    leaves_a, treedef_a = jtu.tree_flatten(a)
    leaves_b, treedef_b = jtu.tree_flatten(b)
    return treedef_a == treedef_b and all(
        p.shape == q.shape and p.dtype == q.dtype
        for p, q in zip(leaves_a, leaves_b, strict=True)
    )
