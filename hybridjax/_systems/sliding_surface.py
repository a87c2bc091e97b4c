"""A surface between two modes of an automaton, and the modes that it adds."""

import functools
from collections.abc import Callable, Iterable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .sliding import Side


class SlidingSurface(eqx.Module):
    """A surface between two modes of a `hj.HybridAutomaton`, which is
    crossed in both directions without a reset, and slid on where the vector fields of
    both modes lead to it (Filippov).

    **Arguments:**

    - `below`: name of the mode in which `surface` is negative.
    - `above`: name of the mode in which it is positive.
    - `surface`: callable `(t, x, args) -> scalar`.
    - `name`: name of the mode that slides. By default that is `"below|above"`, of the
        names of both modes.

    The automaton gets a mode called `name`, with that mean of both vector fields which
    keeps `surface` at zero, as said in `hj.EventSelectedSystem`; and two
    modes in which the state is leaving the surface, `"name > below"` and
    `"name > above"`, with the vector fields of `below` and `above`. A leaving mode
    becomes `below` or `above` in an event that changes nothing else. Each of these
    events has the number of the surface among the transitions.

    Transitions out of `below` are possible while leaving to it, and those out of
    `above` likewise. Transitions out of the sliding mode are those that have its name
    as their `source`. It cannot be a `target`: a state on the surface slides by itself.
    As `mode0` it can: the state is then put onto the surface.

    Not supported, and named by the `hj.SimulationError` (`nonfinite_state`
    with `throw=False`): to meet another surface of `below` or `above` while sliding;
    and to start sliding where the vector fields do not lead to the surface.

    ??? cite "Reference"

        Filippov, *Differential equations with discontinuous righthand sides*,
        Section 4, (12).
    """

    below: str = eqx.field(static=True)
    above: str = eqx.field(static=True)
    surface: Callable
    name: str = eqx.field(static=True)

    def __init__(
        self, below: str, above: str, surface: Callable, name: str | None = None
    ):
        self.below = below
        self.above = above
        self.surface = surface
        self.name = f"{below}|{above}" if name is None else name


# The modes that a surface adds, in this order.
_SIDES = (Side.ON, Side.LEAVING_DOWN, Side.LEAVING_UP, Side.LOST)

# Of modes that do not look at a surface.
UNSEEN = 9

_WHY_LOST = (
    "another surface was met while sliding, where there is no unique way on; or "
    "`mode0` says that the state slides, but `x0` is not on the surface, or the vector "
    "fields do not lead to it"
)


def modes_of(surface: SlidingSurface) -> tuple[str, ...]:
    """The names of the modes that it adds: sliding, leaving on each side, lost."""
    name = surface.name
    ways = (f"{name} > {end}" for end in (surface.below, surface.above))
    return (name, *ways, f"{name} (lost)")


class ModeTable:
    """The modes of an automaton with surfaces: what they are made of, in numbers."""

    def __init__(self, plain: Iterable[str], surfaces: Iterable[SlidingSurface]):
        self.plain = tuple(plain)
        self.surfaces = tuple(surfaces)
        added = (name for surface in self.surfaces for name in modes_of(surface))
        self.names = (*self.plain, *added)

    @property
    def given(self) -> list[str]:
        """The modes that a user names: to start in, or as the source of a
        transition."""
        return [*self.plain, *(surface.name for surface in self.surfaces)]

    def parts(self, name: str) -> tuple[str, ...]:
        """The plain modes of which one is made: both, if it slides between them."""
        for surface in self.surfaces:
            ends = (surface.below, surface.above)
            if name in modes_of(surface):
                _, down, up, _ = modes_of(surface)
                return {down: ends[:1], up: ends[1:]}.get(name, ends)
        return (name,)

    def branches(self) -> list[int]:
        """By mode: the number of its vector field, or, after all of these, that of the
        surface on which it slides."""
        n = len(self.plain)
        branches = []
        for i, name in enumerate(self.names):
            parts = self.parts(name)
            surface = n + (i - n) // len(_SIDES)
            branches.append(self.plain.index(parts[0]) if len(parts) == 1 else surface)
        return branches

    def watching(self, source: str, mode) -> Bool[Array, ""]:
        """Is this mode the source of a transition, or about to become it?"""
        modes = [
            mode == i
            for i, name in enumerate(self.names)
            if name == source or self.parts(name) == (source,)
        ]
        return functools.reduce(lambda a, b: a | b, modes)

    def side(self, surface: SlidingSurface, mode) -> Int[Array, ""]:
        """On which side of a surface a mode is: a `Side`, or `UNSEEN`."""
        own = dict(zip(modes_of(surface), _SIDES, strict=True))
        sides = []
        for name in self.names:
            parts = self.parts(name)
            other = Side.ABOVE if surface.above in parts else UNSEEN
            other = Side.BELOW if surface.below in parts else other
            sides.append(int(own.get(name, other)))
        return jnp.asarray(sides, jnp.int32)[mode]

    def after(self, surface: SlidingSurface, mode, side) -> Int[Array, ""]:
        """The mode after an event at a surface which led to one of its sides."""
        own = dict(zip(_SIDES, modes_of(surface), strict=True))
        names = {**own, Side.BELOW: surface.below, Side.ABOVE: surface.above}
        by_side = [self.names.index(names[one]) for one in sorted(names)]
        after = jnp.asarray(by_side, mode.dtype)[side - min(names)]
        # Sliding on one surface does not go on across another one.
        for other in self.surfaces:
            if other.name != surface.name:
                slides, *_, lost = (self.names.index(n) for n in modes_of(other))
                after = jnp.where(mode == slides, jnp.asarray(lost, mode.dtype), after)
        return after

    def why_lost(self, name: str) -> str | None:
        """Why a simulation that ended in this mode did so, if it is one of these."""
        lost = [modes_of(surface)[-1] for surface in self.surfaces]
        return _WHY_LOST if name in lost else None

    def check(self):
        """
        **Raises:**

        - `ValueError` if surfaces cannot be told from each other.
        """
        for k, one in enumerate(self.surfaces):
            ends = {one.below, one.above}
            if len(ends) == 1:
                raise ValueError(
                    "Argument `above` of a sliding surface must be another mode than "
                    f"`below`, but both are {one.below!r}."
                )
            if any(ends == {other.below, other.above} for other in self.surfaces[:k]):
                raise ValueError(
                    "Argument `transitions` must have at most one sliding surface "
                    f"between two modes, but there are several between {one.below!r} "
                    f"and {one.above!r}. Make one `surface` of them, such as the "
                    "larger one."
                )
        twice = [name for k, name in enumerate(self.names) if name in self.names[:k]]
        if twice:
            raise ValueError(
                "Argument `name` of a sliding surface must not be the name of another "
                f"mode, but {twice[0]!r} is."
            )
