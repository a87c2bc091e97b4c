"""Paths that leave the program: functions that are traced cannot be pickled, so that
these are traced again where they are needed."""

import functools
import io
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import Array

from .._jax.shared import Shared
from .._systems.flat import flatten_system
from .path import Path


class StoredPath(eqx.Module):
    """A `Path` of which only the arrays are leaves."""

    arrays: list[Array]
    rest: "_Rest" = eqx.field(static=True)

    def open(self) -> Path:
        """**Raises:**

        - `ValueError` if it has been pickled, and cannot be made again.
        """
        structure, rest = self.rest.made()
        if structure.num_leaves != len(self.arrays):
            raise _lost("there is another one in its place")
        return eqx.combine(jtu.tree_unflatten(structure, self.arrays), rest)


def store(path: Path, *problem: Any) -> StoredPath:
    """`problem` is what `flatten_system` was given, to make the system of the path."""
    structure, arrays, rest = _parts(path, eqx.is_array)
    return StoredPath(arrays, _Rest((structure, rest), _recipe(path, problem)))


class _Rest:
    """All of a path but its arrays, out of sight of `jax.vmap` and `jax.jit`. What is
    pickled is a recipe for it, or the reason why there is none."""

    def __init__(self, made: tuple | None, recipe: bytes | str):
        self._made, self._recipe = made, recipe

    def made(self) -> tuple:
        if self._made is None:
            self._made = _remake(self._recipe)
        return self._made

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return _unpickled, (self._recipe,)


@functools.lru_cache
def _unpickled(recipe: bytes | str) -> _Rest:
    # One for all solutions of a program: they are one type to JAX, and are traced and
    # compiled once.
    return _Rest(None, recipe)


class _Array:
    """In the place of an array of which nothing else is known."""


def _parts(path: Path, is_array) -> tuple:
    arrays, rest = eqx.partition(path, is_array)
    leaves, structure = jtu.tree_flatten(arrays)
    return structure, leaves, rest


def _recipe(path: Path, problem: tuple) -> bytes | str:
    parts = (path.tape, path.solver, path.tangent_tol, path.same_time)
    parts = jtu.tree_map(lambda a: _Array() if eqx.is_array(a) else a, parts)
    arrays = filter(eqx.is_array, jtu.tree_leaves(problem))
    # Pickle also keeps which of them are the same.
    shapes = {id(a): jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays}
    shape = lambda a: shapes.get(id(a), a)
    try:
        # At once: what users' functions close over may be traced, and traced values
        # must not be kept.
        file = io.BytesIO()
        _Pickler(file).dump((parts, jtu.tree_map(shape, problem)))
        return file.getvalue()
    except Exception as error:  # Whatever users' classes raise.
        return str(error)


class _Pickler(pickle.Pickler):
    """Methods that are bound to modules carry their annotations with them, and those
    of jaxtyping cannot be pickled."""

    def reducer_override(self, obj):
        if isinstance(obj, eqx.Module) and "__func__" in vars(obj):
            return getattr, (obj.__self__, obj.__func__.__name__)  # pyright: ignore
        return NotImplemented


def _remake(recipe: bytes | str) -> tuple:
    if isinstance(recipe, str):
        raise _lost(recipe)
    try:
        (tape, solver, tangent_tol, same_time), problem = pickle.loads(recipe)
    except Exception as error:  # Likewise.
        raise _lost(str(error)) from error
    is_array = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, _Array)

    def trace(problem):
        system, _, unravel = flatten_system(*problem.tree())
        path = Path(tape, system, solver, tangent_tol, same_time, unravel)
        structure, _, rest = _parts(path, is_array)
        return structure, rest

    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    return eqx.filter_eval_shape(trace, Shared.of(problem, is_shape))


def _lost(reason: str) -> ValueError:
    return ValueError(
        "This solution was pickled, and its path cannot be evaluated any more, as its "
        f"system could not go with it: {reason}. Save the states that are "
        "needed before pickling, by `saveat` or `evaluate`; or make the system of "
        "classes and functions that can be imported, not of lambdas and local ones."
    )
