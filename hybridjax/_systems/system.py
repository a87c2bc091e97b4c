import abc

import equinox as eqx
from jaxtyping import Array, Float, Int, PyTree

from .names import Names


# A guard that a mode does not watch has this value. It is finite because the guards
# are interpolated and differentiated, and an infinity would turn both into NaN.
UNWATCHED = 1.0


class AbstractHybridSystem(eqx.Module):
    """A hybrid dynamical system, given by three functions.

    Subclass it and write `flow`, `guards` and `jump`. The state `x` is any pytree of
    floating-point arrays, the mode any pytree of integer or boolean arrays, and `args`
    any pytree. Array fields of the subclass are parameters: `jax.grad` with respect to
    the system itself works.

    !!! example

        ```python
        class BouncingBall(hj.AbstractHybridSystem):
            gravity: jax.Array
            restitution: jax.Array

            def flow(self, t, x, mode, args):
                return jnp.array([x[1], -self.gravity])

            def guards(self, t, x, mode, args):
                return x[:1]  # fires when the height decreases through zero

            def jump(self, t, x, mode, event, args):
                return jnp.array([x[0], -self.restitution * x[1]]), mode
        ```

    ??? cite "Reference"

        Kong, Payne, Zhu, Johnson, *Saltation matrices: the essential tool for
        linearizing hybrid dynamical systems*, Definition 1.
    """

    @abc.abstractmethod
    def flow(
        self, t: Float[Array, ""], x: PyTree, mode: PyTree, args: PyTree
    ) -> PyTree:
        """The vector field.

        **Arguments:**

        - `t`: time, a scalar.
        - `x`: state.
        - `mode`: discrete mode.
        - `args`: as passed to `hj.simulate`.

        **Returns:**

        `dx/dt`, a pytree with the structure, shapes and dtypes of `x`.
        """

    @abc.abstractmethod
    def guards(
        self, t: Float[Array, ""], x: PyTree, mode: PyTree, args: PyTree
    ) -> Float[Array, " n_guards"]:
        """The guard functions, all of them, in every mode.

        Guard number `i` fires when entry `i` decreases through zero. A guard that
        `mode` does not watch returns the constant `hj.UNWATCHED`.

        **Returns:**

        A floating-point vector, of the same length in every mode.
        """

    @abc.abstractmethod
    def jump(
        self,
        t: Float[Array, ""],
        x: PyTree,
        mode: PyTree,
        event: Int[Array, ""],
        args: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """What happens when guard number `event` fires.

        Evaluated on the left limit; what it returns is the right limit.

        **Returns:**

        The state and the mode after the event, with the structures, shapes and dtypes
        of `x` and `mode`.
        """


class AbstractSelfStartingSystem(AbstractHybridSystem):
    """A system that knows its modes: finds or checks the one at the start, and can name
    them and its guards."""

    @abc.abstractmethod
    def start(
        self, t: Float[Array, ""], x: PyTree, mode: PyTree | None, args: PyTree
    ) -> tuple[PyTree, PyTree]:
        """The initial state and mode in the form in which the engine carries them.

        `mode` is `None` where the user gave none.

        **Raises:**

        - `ValueError` if they cannot be used.
        """

    @property
    @abc.abstractmethod
    def naming(self) -> Names:
        """What its modes and guards are called."""


class AbstractTimedSystem(AbstractSelfStartingSystem):
    """A system that may know of times at which its guards fire."""

    @abc.abstractmethod
    def next_time(
        self, t: Float[Array, ""], x: PyTree, mode: PyTree, args: PyTree
    ) -> Float[Array, ""] | None:
        """The next time, known beforehand, at which a guard fires if nothing else
        happens before: where a step should end. Infinite if none comes, and `None` for
        a system that never knows."""


def next_time(system: AbstractHybridSystem, t, x, mode, args):
    """The next time at which a guard is known to fire, or `None` for systems that are
    not timed."""
    if isinstance(system, AbstractTimedSystem):
        return system.next_time(t, x, mode, args)
    return None


def names_of(system: AbstractHybridSystem) -> Names:
    named = isinstance(system, AbstractSelfStartingSystem)
    return system.naming if named else Names()
