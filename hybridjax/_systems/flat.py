import contextlib
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._jax.convert import convert, Converted
from .._jax.directional import directional
from .._jax.shared import Shared
from .names import meant_as_vector
from .stabilization import stabilized_for
from .system import AbstractHybridSystem, next_time


# A body on two springs has 60 operations, one with a frictional contact 230, a robot
# with one leg 470. In batches, loops make gradients take a third longer.
_LARGE = 350


class FlatSystem(eqx.Module):
    """A system whose state is one vector, with all its parameters in its leaves.

    The three functions are closure-converted: whatever arrays they close over are
    leaves of this module, so that a derivative with respect to `FlatSystem` is a
    derivative with respect to everything that the system depends on.
    """

    _flow: Converted
    _guards: Converted
    _jump: Callable
    # Of systems that know of times at which something happens.
    _next_time: Callable | None
    parameters: PyTree[Array]

    def flow(self, t, x: Float[Array, " n"], mode) -> Float[Array, " n"]:
        return self._flow(self.parameters, t, x, mode)

    def split_by_flow(self, tree: PyTree) -> tuple[PyTree, PyTree]:
        """`tree` is as this one, with `None` for some leaves: the part of it on which
        the vector field depends, and the rest."""
        leaves, treedef = jtu.tree_flatten(self.parameters)
        parameters = treedef.unflatten(self._flow.reads[: len(leaves)])
        none = jtu.tree_map(lambda _: False, self)
        closed_over = jtu.tree_map(lambda _: True, self._flow)
        read = eqx.tree_at(
            lambda s: (s._flow, s.parameters), none, (closed_over, parameters)
        )
        flags, treedef = jtu.tree_flatten(read)
        given = treedef.flatten_up_to(tree)
        pick = lambda flag: treedef.unflatten(
            [leaf if f == flag else None for f, leaf in zip(flags, given, strict=True)]
        )
        return pick(True), pick(False)

    def flows(self, t, *points):
        """The vector field at several `(x, mode)`."""
        if not self.is_large:
            return [self.flow(t, x, mode) for x, mode in points]
        stack = lambda *leaves: jnp.stack(leaves)
        xs, modes = jtu.tree_map(stack, *points)
        return list(jax.vmap(self.flow, (None, 0, 0))(t, xs, modes))

    def guards(self, t, x: Float[Array, " n"], mode) -> Float[Array, " n_guards"]:
        return self._guards(self.parameters, t, x, mode)

    def jump(self, t, x: Float[Array, " n"], mode, event):
        return self._jump(self.parameters, t, x, mode, event)

    @property
    def is_timed(self) -> bool:
        return self._next_time is not None

    def next_time(self, t, x: Float[Array, " n"], mode) -> Float[Array, ""]:
        """When the next event comes of which that is known beforehand."""
        assert self._next_time is not None
        return self._next_time(self.parameters, t, x, mode)

    @property
    def is_large(self) -> bool:
        """Whether to evaluate the vector field in loops: if it has many operations, to
        compile it takes longer than to go round them."""
        return self._flow.size > _LARGE

    @property
    def has_large_jumps(self) -> bool:
        """As `is_large`, of jumps: those of contacts are searches."""
        return self._jump.size > _LARGE

    @property
    def n_guards(self) -> int:
        return self._guards.out_avals[0].shape[0]

    def guard_rates(self, t, x, mode, dx):
        """Guards, and their derivatives along the direction `(1, dx)`."""
        guards = lambda t, x: self.guards(t, x, mode)
        with _forward_mode():
            return jax.jvp(guards, (t, x), (jnp.ones_like(t), dx))

    def guard_tangents(self, t, x, mode, flow, tangents: tuple):
        """Guards, their rates along the `flow`, and their tangents for those of
        `(system, t, x)`, the first with `None` where zero: both as one map of two
        tangents, which is half as much to compile as two."""
        no_system = jtu.tree_map(jnp.zeros_like, tangents[0])
        along = no_system, jnp.ones_like(t), flow
        both = jtu.tree_map(lambda a, b: jnp.stack([a, b]), along, tangents)
        guards = lambda system, t, x: system.guards(t, x, mode)
        push = lambda tangents: directional(guards, (self, t, x), tangents)
        with _forward_mode():
            g, (rate, dg) = jax.vmap(push, out_axes=(None, 0))(both)
        return g, rate, dg


@contextlib.contextmanager
def _forward_mode():
    """What guards need to be differentiated, and an error that says so."""
    try:
        yield
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise ValueError(
            "`guards` must have a derivative in forward mode, as the rates of "
            "guards are derivatives along the flow, but it calls a function with "
            "`jax.custom_vjp`. Use `jax.custom_jvp` there."
        ) from error


def flatten_system(
    system: AbstractHybridSystem,
    t: Array,
    x: PyTree,
    mode: PyTree,
    args: PyTree,
    solver: dfx.AbstractSolver | None = None,
) -> tuple[FlatSystem, Float[Array, " n"], Callable[[Array], PyTree]]:
    """The flat system, the flat state, and the function that unflattens it.

    **Raises:**

    - `ValueError` if a function of the system returns the wrong structure, shape or
        dtype. It names the function and says what was expected.
    """
    x_flat, unravel = ravel_pytree(x)
    shared = Shared.of((system, args))
    parameters, static = eqx.partition(shared, eqx.is_array)

    def flow(parameters, t, x_flat, mode):
        system, args = eqx.combine(parameters, static).tree()
        with stabilized_for(solver):
            dx = system.flow(t, unravel(x_flat), mode, args)
        check_output("flow", "x", dx, x)
        return _ravel(dx, x_flat.dtype)

    def guards(parameters, t, x_flat, mode):
        system, args = eqx.combine(parameters, static).tree()
        g = jnp.asarray(system.guards(t, unravel(x_flat), mode, args))
        if g.ndim != 1 or not jnp.issubdtype(g.dtype, jnp.floating):
            raise ValueError(
                "`guards` must return a floating-point vector of shape (n_guards,), "
                f"but it returned {g.dtype} of shape {g.shape}. Stack the guards into "
                "one vector, and return `hj.UNWATCHED` for those that a mode does not "
                "watch."
            )
        return g.astype(x_flat.dtype)

    def jump(parameters, t, x_flat, mode, event):
        system, args = eqx.combine(parameters, static).tree()
        out = system.jump(t, unravel(x_flat), mode, event, args)
        if not isinstance(out, tuple) or len(out) != 2:
            raise ValueError(
                "`jump` must return a pair (state after, mode after), but it returned "
                f"{type(out).__name__}."
            )
        x_plus, mode_plus = out
        check_output("jump", "x", x_plus, x)
        check_output("jump", "mode", mode_plus, mode)
        mode_plus = jtu.tree_map(
            lambda m, like: jnp.asarray(m, like.dtype), mode_plus, mode
        )
        return _ravel(x_plus, x_flat.dtype), mode_plus

    def timed(parameters, t, x_flat, mode):
        system, args = eqx.combine(parameters, static).tree()
        return next_time(system, t, unravel(x_flat), mode, args)

    event = jnp.asarray(0, jnp.int32)
    is_timed = jax.eval_shape(timed, parameters, t, x_flat, mode) is not None
    flat = FlatSystem(
        convert(flow, parameters, t, x_flat, mode),
        convert(guards, parameters, t, x_flat, mode),
        convert(jump, parameters, t, x_flat, mode, event),
        convert(timed, parameters, t, x_flat, mode) if is_timed else None,
        parameters,
    )
    if _has(flat._guards.closed.jaxpr, "custom_vjp_call"):
        # Only batches find out at once that there is no derivative in forward mode.
        rates = jax.vmap(lambda dx: flat.guard_rates(t, x_flat, mode, dx))
        jax.eval_shape(rates, x_flat[None])
    return flat, x_flat, unravel


def _has(jaxpr, name: str) -> bool:
    """Is there such an operation, also within others?"""
    inner = lambda eqn: jax.extend.core.jaxprs_in_params(eqn.params)
    return any(
        eqn.primitive.name == name or any(_has(sub, name) for sub in inner(eqn))
        for eqn in jaxpr.eqns
    )


def _ravel(x: PyTree, dtype) -> Array:
    leaves = [jnp.ravel(jnp.asarray(leaf)).astype(dtype) for leaf in jtu.tree_leaves(x)]
    return jnp.concatenate(leaves) if len(leaves) != 1 else leaves[0]


def check_output(function: str, what: str, got: Any, like: Any):
    got_leaves, got_structure = jtu.tree_flatten(got)
    like_leaves, like_structure = jtu.tree_flatten(like)
    if got_structure != like_structure:
        raise ValueError(
            f"`{function}` must return something with the structure of `{what}`, "
            f"{like_structure}, but it returned {got_structure}."
            + (meant_as_vector(like) if what == "x" else "")
        )
    for g, leaf in zip(got_leaves, like_leaves, strict=True):
        if jnp.shape(g) != jnp.shape(leaf):
            raise ValueError(
                f"`{function}` must return arrays with the shapes of `{what}`, but it "
                f"returned shape {jnp.shape(g)} where `{what}` has {jnp.shape(leaf)}."
            )
        kind = jnp.floating if what == "x" else (jnp.integer, jnp.bool_)
        kinds = kind if isinstance(kind, tuple) else (kind, jnp.integer)
        if not any(jnp.issubdtype(jnp.result_type(g), k) for k in kinds):
            raise ValueError(
                f"`{function}` returned {jnp.result_type(g)} where `{what}` has "
                f"{jnp.result_type(leaf)}."
            )
