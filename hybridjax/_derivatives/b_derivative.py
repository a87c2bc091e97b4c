"""The derivative of the flow at a corner, where several guards are zero, as an object.

`BDerivative` evaluates it by the rule of `corner.py`, which follows the tangent; its
pieces are compositions of the rule of `saltation.py`, in a given order.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import same_time
from .._events.locate import corner_tolerance
from .._jax.tracing import is_traced
from .._systems.automaton import ModalState
from .._systems.event_selected import EventSelectedSystem
from .._systems.start import as_time, Start, start
from .._systems.system import AbstractHybridSystem
from .corner_point import (
    compare,
    compose,
    CornerPoint,
    examine,
    NO_CORNER,
    resolve,
    spread,
)
from .passage import (
    max_corner_events,
    Passage,
    priorities_of,
    same_outcome,
)
from .triangulation import generators, sample_corner, vertices


class BDerivative(eqx.Module):
    r"""The B-derivative (Bouligand derivative) of the flow at a corner.

    Made by `hj.b_derivative`. Called with a tangent before the corner, at
    fixed time, it returns the tangent after it:

    $$B(v) = M_\sigma v, \qquad \sigma \text{ the order in which } v
    \text{ meets the guards,}$$

    which is positively homogeneous, and linear in each of the cones of tangents that
    take the same order.

    **Attributes:**

    - `guards`: which guards are zero at the corner, shape `(n_guards,)`.
    - `x_after`, `mode_after`: state and mode after the corner; if it is discontinuous,
        those after the guards have fired in the order of their numbers.
    - `is_discontinuous`: whether the orders in which the guards can fire lead to
        different states or modes. The flow is then discontinuous here, and no
        derivative exists: all methods but `order` and `is_linear` raise a `ValueError`,
        and return NaN inside `jax.jit`. All orders are tried if up to 6 guards
        are involved; beyond that, the order of their numbers, the reverse order, their
        rotations, and the exchanges of two neighbours.
    """

    guards: Bool[Array, " n_guards"]
    x_after: PyTree
    mode_after: PyTree
    is_discontinuous: Bool[Array, ""]
    _exists: Bool[Array, ""]
    _order: Int[Array, " max_count"]  # in which the guards fire by their numbers
    _point: CornerPoint

    def __call__(self, tangent: PyTree) -> PyTree:
        """The tangent after the corner, by $O(n^2 d)$ operations for $n$ guards and
        $d$ states. `jax.jit` and `jax.vmap` work.

        **Arguments:**

        - `tangent`: a pytree like the state before the corner.

        **Returns:**

        A pytree like the state after it. In modes of an automaton that have states of
        different structure, that is a `hj.ModalState`.

        **Raises:**

        - `ValueError` if the structure or the shapes of `tangent` are wrong; or if the
          flow is discontinuous here. Inside `jax.jit`, that gives NaN.

        ??? cite "Reference"

            Council, Revzen, Burden, *Representing and computing the B-derivative of
            the piecewise-differentiable flow of a class of nonsmooth vector fields*,
            Figure 2. With resets: Pace, Burden, *Decoupled limbs yield differentiable
            trajectory outcomes through intermittent contact in locomotion and
            manipulation*, Equation (40).
        """
        self._raise_if_discontinuous()
        tangent = self._tangent(tangent)
        out, differs = _push(self, tangent)
        if not is_traced(differs) and bool(differs):
            raise ValueError(_DISCONTINUOUS)
        return out

    def matrix(self, order: Sequence[int] | Int[Any, " n"]) -> Float[Array, "n m"]:
        r"""The saltation matrix of an order: the composition of those of its events.

        $$M_\sigma = M_{\sigma(n)} \cdots M_{\sigma(2)} M_{\sigma(1)}$$

        Without resets,

        $$M_{\sigma(k)} = I + \frac{(F_{k} - F_{k-1}) \, Dh_{\sigma(k)}}
        {Dh_{\sigma(k)} F_{k-1}}$$

        with $F_k$ the vector field after the first $k$ events.

        **Arguments:**

        - `order`: numbers of the guards as they fire, until none is left at zero.

        **Returns:**

        A matrix of shape `(n_target, n_source)`, the sizes of the raveled states after
        and before.

        **Raises:**

        - `ValueError` if guards cannot fire in this order here, or if the flow is
          discontinuous here (`hj.saltation_matrix` gives the matrix of each
          event).

        ??? cite "Reference"

            Council, Revzen, Burden, as above, (57), where by a misprint the normals and
            denominators are those of the surfaces crossed before.
        """
        self._raise_if_discontinuous()
        order = _checked_order(order, self.guards.shape[-1])
        matrix, possible = compose(self._point, order)
        if not is_traced(possible) and not bool(possible):
            raise ValueError(
                f"Argument `order` must be an order in which the guards can fire, "
                f"until none is left at zero, but it is {order.tolist()}. Guards "
                f"{_numbers(self.guards)} are zero at the corner; `order(tangent)` "
                "gives the order that a tangent takes."
            )
        matrix = jnp.where(possible & self._differentiable, matrix, jnp.nan)
        after = lambda: self.mode_after
        return self._point.start.restrict(matrix, order[0], order[-1], after)

    def order(self, tangent: PyTree) -> Int[np.ndarray, " n"]:
        """The order in which a tangent meets the guards. Not inside `jax.jit`: its
        length depends on values.

        Guards that are met at once come in the order in which `hj.simulate`
        takes them: that which is further past its surface first, then by number.

        **Arguments:**

        - `tangent`: a pytree like the state before the corner.

        **Returns:**

        The numbers of the guards as they fire, an integer array.

        **Raises:**

        - `ValueError` if the structure or the shapes of `tangent` are wrong.
        """
        self._raise_if_traced("order")
        order, count = _order_of(self, self._tangent(tangent))
        return np.asarray(order)[: int(count)]

    def is_linear(self, tol: float | None = None) -> bool:
        r"""Whether all orders have the same saltation matrix: the flow is then $C^1$
        here. Not inside `jax.jit`.

        All orders are tried if up to 6 guards are involved; beyond that, the order of
        their numbers, the reverse order, their rotations, and the exchanges of two
        neighbours. An order counts even if no tangent takes it (more guards than
        states).

        **Arguments:**

        - `tol`: how much the entries of the matrices may differ, relative to the
            largest entry (at least 1). Defaults to `sqrt(eps)` of the dtype.

        **Returns:**

        `True` or `False`. `False` if the flow is discontinuous here.
        """
        self._raise_if_traced("is_linear")
        if bool(self.is_discontinuous):
            return False
        priorities = priorities_of(np.asarray(self._order), self.guards.shape[-1])
        difference, size = spread(self._point, priorities)
        limit = float(jnp.finfo(difference.dtype).eps) ** 0.5 if tol is None else tol
        return bool(difference <= limit * max(float(size), 1.0))

    def vertices(self) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
        r"""The vertices of the triangulation of the flow near the corner. Not inside
        `jax.jit`.

        For each $b \in \{-1, +1\}^n$ the point $\zeta_b$, relative to the corner
        $\rho$, from which the sampled system (the vector field frozen at the values
        $F_b$ that it has around $\rho$) flows in one unit of time to
        $\zeta_b + F_b$:

        $$Dh_j (\zeta_b - \rho) = 0 \text{ if } b_j = +1, \qquad
        Dh_j (\zeta_b + F_b - \rho) = 0 \text{ if } b_j = -1, \qquad
        \zeta_b - \rho \perp \ker Dh.$$

        **Returns:**

        `(Z_minus, Z_plus)`: $\zeta_b - \rho$ and $\zeta_b + F_b - \rho$, as rows, of
        shape `(2**n, d)` for the $n$ guards that are zero at the corner. Row `i`
        belongs to the `b` of which entry `j` is +1 where bit `j` of `i` is 1; entry
        `j` belongs to the `j`-th of these guards.

        **Raises:**

        - `ValueError` where there is no such triangulation: if the flow is
          discontinuous here, if a reset changes the state, if guards depend on
          time explicitly or their normals are linearly dependent, or if not just each
          of the guards fires once. Also if there are more than 16 guards.

        ??? cite "Reference"

            Council, Revzen, Burden, as above, (33) and (35).
        """
        return vertices(*self._sampled("vertices"))

    def barycentric(
        self, order: Sequence[int] | Int[Any, " n"]
    ) -> tuple[Float[Array, "d k"], Float[Array, "d k"]]:
        r"""The generators of the cone of tangents that take an order, and where $B$
        maps them. Not inside `jax.jit`.

        Let $L$ be the tangents that meet all guards at the same time, $L = \ker Dh +
        \mathrm{span} F_{-1}$. With $(Z^-, Z^+)$ as returned,

        $$B(v) = Z^+ (Z^-)^\dagger v$$

        for $v \in L^\perp$ that take this order.

        **Arguments:**

        - `order`: the numbers of the `n` guards that are zero at the corner.

        **Returns:**

        `(Z_minus, Z_plus)`, of shape `(d, n - 1)`. Column `k` belongs to the `b` that
        is +1 for the first `k + 1` guards of `order`.

        **Raises:**

        - `ValueError` as `vertices`, and if `order` is not a permutation of the guards.

        ??? cite "Reference"

            Council, Revzen, Burden, as above, (58) to (60).
        """
        normals, fields = self._sampled("barycentric")
        numbers = _numbers(self.guards)
        order = _checked_order(order, self.guards.shape[-1])
        if sorted(order.tolist()) != numbers:
            raise ValueError(
                "Argument `order` must be a permutation of the guards that are zero at "
                f"the corner, {numbers}, but it is {order.tolist()}."
            )
        points = generators(normals, fields, np.searchsorted(numbers, order))
        images = _push_all(self, points)
        return points.T, images.T

    # Helpers.

    @property
    def _differentiable(self):
        return self._exists & ~self.is_discontinuous

    def _raise_if_discontinuous(self):
        if not is_traced(self.is_discontinuous) and bool(self.is_discontinuous):
            raise ValueError(_DISCONTINUOUS)

    def _raise_if_traced(self, name: str):
        if is_traced(self):
            raise ValueError(
                f"`BDerivative.{name}` depends on values, and works only outside of "
                "`jax.jit` and `jax.vmap`."
            )

    def _tangent(self, tangent):
        x = self._point.start.x
        if isinstance(x, ModalState) and not isinstance(tangent, ModalState):
            mode = self._point.mode
            if is_traced(mode):
                raise ValueError(
                    "Argument `tangent` must be a `hj.ModalState`, as the mode is not "
                    "known inside `jax.jit`."
                )
            name = self._point.start.system.names[int(mode)]  # pyright: ignore
            zeros = jtu.tree_map(jnp.zeros_like, x.states)
            tangent = ModalState({**zeros, name: tangent})
        leaves, treedef = jtu.tree_flatten(tangent)
        like, like_treedef = jtu.tree_flatten(x)
        shapes, like_shapes = map(jnp.shape, leaves), map(jnp.shape, like)
        if treedef != like_treedef or list(shapes) != list(like_shapes):
            raise ValueError(
                "Argument `tangent` must have the structure and the shapes of the "
                f"state, {jtu.tree_map(jnp.shape, x)}, but they are "
                f"{jtu.tree_map(jnp.shape, tangent)}."
            )
        return jtu.tree_map(lambda v, like: jnp.asarray(v, like.dtype), tangent, x)

    def _sampled(self, name: str):
        self._raise_if_traced(name)
        self._raise_if_discontinuous()
        return sample_corner(self._point, _numbers(self.guards))


def b_derivative(
    system: AbstractHybridSystem,
    t: Any,
    x: PyTree,
    mode: Any = None,
    args: PyTree = None,
    *,
    corner_tol: Any = None,
) -> BDerivative:
    r"""The B-derivative of the flow at a corner, where several guards are zero at once.

    It maps tangents at fixed time from before the corner to after it. `jax.jvp` of
    `hj.simulate` uses the same rule; this is for looking at it.

    !!! example

        ```python
        system = hj.models.piecewise_constant(table)
        b_derivative = hj.b_derivative(system, 0.0, jnp.zeros(2), jnp.array([-1, -1]))
        b_derivative(jnp.array([1.0, -2.0]))
        b_derivative.order(jnp.array([1.0, -2.0]))  # array([0, 1])
        b_derivative.matrix([0, 1])
        b_derivative.is_linear()
        ```

    **Arguments:**

    - `system`: the system.
    - `t`: time of the corner, in the system's unit of time.
    - `x`: state before the corner (the left limit), on the guards. The log of a
        simulation has it: `sol.events.x_before`, of the first event of the instant.
    - `mode`: mode before the corner. Names of an automaton's modes are accepted. May be
        left out for an `EventSelectedSystem`: surfaces closer than `corner_tol` are
        then still to be crossed.
    - `args`: as passed to `hj.simulate`.
    - `corner_tol`: guards that are crossed within this time belong to the corner, in
        the unit of `t`. Defaults to that of a simulation of one unit of time (1.6e-10
        in float64, 1.4e-5 in float32), or 16 `eps * |t|` if that is more.

    **Returns:**

    A `hj.BDerivative`. With one guard at zero it is the saltation matrix.

    **Raises:**

    - `ValueError` if the system's functions return wrong structures; if no guard is
      zero at `(t, x)`; if one comes to rest there, or fires again and again. (Inside
      `jax.jit`, the last three make the derivatives NaN.)

    ??? cite "Reference"

        Council, Revzen, Burden, *Representing and computing the B-derivative of the
        piecewise-differentiable flow of a class of nonsmooth vector fields*, Figure 2,
        (33), (57), (58). The algorithm there is for vector fields without resets; with
        resets it composes the saltation maps in the order that the tangent takes: Pace,
        Burden, *Decoupled limbs yield differentiable trajectory outcomes through
        intermittent contact in locomotion and manipulation*, (40).
    """
    begin = start(system, t, x, mode, args)
    dtype = begin.t.dtype
    if corner_tol is None:
        same = same_time(begin.t, begin.t)
        tol = jnp.maximum(corner_tolerance(None, dtype), same)
    else:
        tol = as_time(corner_tol, dtype, "corner_tol")
    if mode is None and isinstance(system, EventSelectedSystem):
        mode = _before_crossing(system, begin, args, tol)
        begin = Start(begin.system, begin.t, begin.x, mode)
    point = CornerPoint(begin, args, tol)
    guards, closest, first, x_after = examine(point)
    known = not is_traced((guards, first))
    if known:
        _raise_if_no_corner(guards, closest, first)
        priorities = priorities_of(np.asarray(first.order), guards.shape[-1])
    else:
        priorities = priorities_of(np.arange(guards.shape[-1]), guards.shape[-1])
    discontinuous = jnp.asarray(False)
    exists = guards.any() & first.regular
    if len(priorities) > 1:
        discontinuous, regular = compare(point, first, priorities)
        exists = exists & regular
    if known and not bool(exists | discontinuous):
        raise ValueError(_IRREGULAR)
    return BDerivative(
        guards, x_after, first.mode, discontinuous, exists, first.order, point
    )


_DISCONTINUOUS = (
    "There is no derivative at this corner: the state or the mode after it depends on "
    "the order in which its guards fire, so that the flow is discontinuous. Perturb "
    "the state so that the guards fire one after the other, and use "
    "`hj.saltation_matrix` for each of the events."
)
_IRREGULAR = (
    "There is no derivative at this corner: in some order of its guards, one of them "
    "is at rest where it is zero (grazing), or they fire again and again in the same "
    "instant."
)


def _before_crossing(system: EventSelectedSystem, begin: Start, args, tol):
    def rates(t, x):
        dx = system.flow(t, x, begin.mode, args)
        return jax.jvp(
            lambda t, x: jnp.asarray(system.event_functions(t, x, args)),
            (t, x),
            (jnp.ones_like(t), dx),
        )

    h, rate = rates(begin.t, begin.x)
    near = jnp.abs(h) <= tol * jnp.abs(rate)
    return jnp.where(near, -1, begin.mode).astype(begin.mode.dtype)


def _raise_if_no_corner(guards, closest, first: Passage):
    if not bool(guards.any()):
        ahead = f"the next one is zero about {float(closest):.3g} units of time later"
        none = "no guard that is watched decreases to zero along the vector field"
        raise ValueError(
            NO_CORNER.format(ahead if bool(jnp.isfinite(closest)) else none)
        )
    if not bool(first.regular):
        raise ValueError(_IRREGULAR)


def _checked_order(order, n_guards: int) -> Int[np.ndarray, " n"]:
    if is_traced(order):
        raise ValueError(
            "Argument `order` must be known: a sequence of integers, not traced."
        )
    order = np.asarray(order)
    ok = order.ndim == 1 and order.size > 0 and np.issubdtype(order.dtype, np.integer)
    if not ok or np.any((order < 0) | (order >= n_guards)):
        raise ValueError(
            "Argument `order` must be a sequence of the numbers of guards, from 0 to "
            f"{n_guards - 1}, but it is {order.tolist()}."
        )
    return order.astype(np.int32)


def _numbers(guards) -> list[int]:
    return np.flatnonzero(np.asarray(guards)).tolist()


@eqx.filter_jit
def _push(b: BDerivative, tangent):
    """The tangent after the corner, and whether it leads elsewhere than others."""
    dx, _ = ravel_pytree(tangent)
    _, _, unravel = b._point.flatten()
    dx, differs = _push_flat(b, dx)
    return unravel(dx), differs


@eqx.filter_jit
def _push_all(b: BDerivative, tangents):
    return jax.vmap(lambda dx: _push_flat(b, dx)[0])(tangents)


def _push_flat(b: BDerivative, dx):
    corner = resolve(b._point, dx)
    x_after, _ = ravel_pytree(b.x_after)
    allowed = 2 * corner.reach.allowed(b._point.tol)
    same = same_outcome(corner.x, corner.mode, x_after, b.mode_after, allowed)
    ended = corner.count < max_corner_events(b.guards.shape[-1])
    return jnp.where(b._differentiable & same & ended, corner.dx, jnp.nan), ~same


@eqx.filter_jit
def _order_of(b: BDerivative, tangent):
    dx, _ = ravel_pytree(tangent)
    corner = resolve(b._point, dx)
    return corner.order, corner.count
