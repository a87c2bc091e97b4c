"""The derivative of the flow at a corner, where several guards are zero, as an object.

`BDerivative` evaluates it by the rule of `_corner.py`, which follows the tangent; its
pieces are compositions of the rule of `_saltation.py`, in a given order.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._events.firing import fires_at_once
from .._systems.automaton import ModalState, state_range
from .._systems.event_selected import EventSelectedSystem
from .._systems.flat import FlatSystem, flatten_system
from .._systems.start import as_time, is_traced, Start, start
from .._systems.system import AbstractHybridSystem
from .corner import max_corner_events, resolve_corner, same_outcome
from .saltation import event_tangent


# Corners of so many guards have all their orders tried; of more, some of them.
_EXHAUSTIVE = 6

# The triangulation has 2**n vertices.
_MAX_VERTICES = 16


class _Point(eqx.Module):
    """A point in the state space, and what makes it a corner."""

    start: Start
    args: PyTree
    tol: Float[Array, ""]  # an absolute time

    def flatten(self) -> tuple[FlatSystem, Float[Array, " d"], Any]:
        begin = self.start
        return flatten_system(begin.system, begin.t, begin.x, begin.mode, self.args)

    @property
    def t(self):
        return self.start.t

    @property
    def mode(self):
        return self.start.mode


class _Passage(eqx.Module):
    """How the corner is passed in a given order."""

    x: Float[Array, " d"]
    mode: PyTree
    order: Int[Array, " max_count"]  # the guards as they fire, then -1
    count: Int[Array, ""]
    regular: Bool[Array, ""]  # no guard is at rest, and there is an end


class BDerivative(eqx.Module):
    r"""The B-derivative (Bouligand derivative) of the flow at a corner.

    Made by [`hybridjax.b_derivative`][]. Called with a tangent before the corner, at
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
    _point: _Point

    def __call__(self, tangent: PyTree) -> PyTree:
        """The tangent after the corner, by $O(n^2 d)$ operations for $n$ guards and
        $d$ states. `jax.jit` and `jax.vmap` work.

        **Arguments:**

        - `tangent`: a pytree like the state before the corner.

        **Returns:**

        A pytree like the state after it. In modes of an automaton that have states of
        different structure, that is a [`hybridjax.ModalState`][].

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
          discontinuous here ([`hybridjax.saltation_matrix`][] gives the matrix of each
          event).

        ??? cite "Reference"

            Council, Revzen, Burden, as above, (57), where by a misprint the normals and
            denominators are those of the surfaces crossed before.
        """
        self._raise_if_discontinuous()
        order = _checked_order(order, self.guards.shape[-1])
        matrix, possible = _compose(self._point, order)
        if not is_traced(possible) and not bool(possible):
            raise ValueError(
                f"Argument `order` must be an order in which the guards can fire, "
                f"until none is left at zero, but it is {order.tolist()}. Guards "
                f"{_numbers(self.guards)} are zero at the corner; `order(tangent)` "
                "gives the order that a tangent takes."
            )
        matrix = jnp.where(possible & self._differentiable, matrix, jnp.nan)
        begin = self._point.start
        if not isinstance(begin.x, ModalState):
            return matrix
        transitions = begin.system.transitions  # pyright: ignore
        rows = state_range(begin.x, transitions[order[-1]].target)
        columns = state_range(begin.x, transitions[order[0]].source)
        return matrix[rows, columns]

    def order(self, tangent: PyTree) -> Int[np.ndarray, " n"]:
        """The order in which a tangent meets the guards. Not inside `jax.jit`: its
        length depends on values.

        Guards that are met at once come in the order of their numbers.

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
        priorities = _priorities(np.asarray(self._order), self.guards.shape[-1])
        spread, size = _spread(self._point, priorities)
        limit = float(jnp.finfo(spread.dtype).eps) ** 0.5 if tol is None else tol
        return bool(spread <= limit * max(float(size), 1.0))

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
        normals, fields = self._sampled("vertices")
        after = _sign_vectors(normals.shape[0])
        speeds = jnp.where(after, 0, _dot(fields, normals.T))
        z_minus = -_dot(speeds, jnp.linalg.pinv(normals).T)
        return z_minus, z_minus + fields

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
        z_minus, _ = self.vertices()
        bits = 2 ** np.searchsorted(numbers, order)
        points = z_minus[np.cumsum(bits)[:-1]]
        # The tangents that meet all guards at once, and are orthogonal to ker Dh.
        common = _dot(jnp.linalg.pinv(normals), _dot(normals, fields[0]))
        common = common / jnp.linalg.norm(common)
        points = points - jnp.outer(_dot(points, common), common)
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
        """Normals Dh of the guards at zero, shape `(n, d)`, and the vector fields F_b,
        shape `(2**n, d)`."""
        self._raise_if_traced(name)
        self._raise_if_discontinuous()
        numbers = _numbers(self.guards)
        if len(numbers) > _MAX_VERTICES:
            raise ValueError(
                f"The triangulation of a corner of {len(numbers)} guards has "
                f"2**{len(numbers)} vertices, and more than 2**{_MAX_VERTICES} are not "
                "computed. Call the `BDerivative` with the tangents of interest, or "
                "use its `matrix(order)`."
            )
        n = len(numbers)
        sampled = _sample(self._point, np.asarray(numbers, np.int32), _sign_vectors(n))
        normals, in_time, fields, resets, once = sampled
        reason = None
        if bool(resets):
            reason = "a reset changes the state"
        elif not bool(once):
            reason = "not just each of the guards at zero fires, once"
        elif bool(jnp.any(in_time != 0)):
            reason = (
                "a guard depends on time explicitly (make time a state, with the "
                "derivative 1)"
            )
        elif int(jnp.linalg.matrix_rank(normals)) < n:
            reason = "the normals of the guards are linearly dependent"
        if reason is not None:
            raise ValueError(
                f"There is no triangulation of the flow at this corner: {reason}. Call "
                "the `BDerivative` with the tangents of interest, or use its "
                "`matrix(order)`."
            )
        return normals, fields


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
    [`hybridjax.simulate`][] uses the same rule; this is for looking at it.

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
    - `args`: as passed to [`hybridjax.simulate`][].
    - `corner_tol`: guards that are crossed within this time belong to the corner, in
        the unit of `t`. Defaults to `eps**0.625` of the dtype (1.6e-10 in float64,
        4.7e-5 in float32), times `|t|` if that is more than 1.

    **Returns:**

    A [`hybridjax.BDerivative`][]. With one guard at zero it is the saltation matrix.

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
        eps = float(jnp.finfo(dtype).eps)
        tol = eps**0.625 * jnp.maximum(jnp.abs(begin.t), 1)
    else:
        tol = as_time(corner_tol, dtype, "corner_tol")
    if mode is None and isinstance(system, EventSelectedSystem):
        mode = _before_crossing(system, begin, args, tol)
        begin = Start(begin.system, begin.t, begin.x, mode)
    point = _Point(begin, args, tol)
    guards, closest, first, x_after = _examine(point)
    known = not is_traced((guards, first))
    if known:
        _raise_if_no_corner(guards, closest, first)
        priorities = _priorities(np.asarray(first.order), guards.shape[-1])
    else:
        priorities = _priorities(np.arange(guards.shape[-1]), guards.shape[-1])
    discontinuous = jnp.asarray(False)
    exists = guards.any() & first.regular
    if len(priorities) > 1:
        discontinuous, regular = _compare(point, first, priorities)
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
_NO_CORNER = (
    "No guard is zero at the given `t` and `x` in the given `mode`: {}. Pass the left "
    "limit of the state at an event, for example `sol.events.x_before`, and the mode "
    "before it, or a larger `corner_tol`."
)
_IRREGULAR = (
    "There is no derivative at this corner: in some order of its guards, one of them "
    "is at rest where it is zero (grazing), or they fire again and again in the same "
    "instant."
)


def _dot(a, b):
    # A default-precision product has ten bits on some accelerators.
    return jnp.matmul(a, b, precision="highest")


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


def _raise_if_no_corner(guards, closest, first: _Passage):
    if not bool(guards.any()):
        ahead = f"the next one is zero about {float(closest):.3g} units of time later"
        none = "no guard that is watched decreases to zero along the vector field"
        raise ValueError(
            _NO_CORNER.format(ahead if bool(jnp.isfinite(closest)) else none)
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


def _sign_vectors(n: int) -> Bool[np.ndarray, "b n"]:
    """All `b`, as rows: whether they are +1."""
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) == 1


def _numbers(guards) -> list[int]:
    return np.flatnonzero(np.asarray(guards)).tolist()


def _priorities(order, n_guards: int) -> Int[np.ndarray, "orders n_guards"]:
    """Orders to try, as the priorities of all guards: of those that fire in `order`,
    all permutations, or a choice of them."""
    involved = np.unique(order[order >= 0])
    rest = np.setdiff1d(np.arange(n_guards), involved)
    m = len(involved)
    if m <= _EXHAUSTIVE:
        chosen = list(itertools.permutations(range(m)))
    else:
        ascending = np.arange(m)
        chosen = [np.roll(ascending, -k) for k in range(m)] + [ascending[::-1]]
        for k in range(m - 1):
            swapped = ascending.copy()
            swapped[[k, k + 1]] = swapped[[k + 1, k]]
            chosen.append(swapped)
    orders = [np.concatenate([involved[np.asarray(c)], rest]) for c in chosen]
    return np.argsort(np.asarray(orders), axis=1).astype(np.int32)


#
# Compiled once for all systems of one structure
#


@eqx.filter_jit
def _examine(point: _Point):
    """Which guards are zero, the time after which the next one is, how the corner is
    passed in the order of the numbers, and the state after it."""
    system, x, unravel = point.flatten()
    t, mode = point.t, point.mode
    if system.n_guards == 0:
        raise ValueError(_NO_CORNER.format("the system has none"))
    g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
    after = jnp.where((g > 0) & (rate < 0), -g / jnp.where(rate < 0, rate, 1), jnp.inf)
    ascending = jnp.arange(system.n_guards, dtype=jnp.int32)
    first = _pass(system, t, x, mode, ascending, point.tol)
    return fires_at_once(g, rate, point.tol), jnp.min(after), first, unravel(first.x)


def _pass(system: FlatSystem, t, x, mode, priority, tol) -> _Passage:
    """Of several guards at zero the one with the least `priority` fires first."""
    limit = max_corner_events(system.n_guards)
    passage = _Passage(
        x=x,
        mode=mode,
        order=jnp.full((limit,), -1, jnp.int32),
        count=jnp.asarray(0, jnp.int32),
        regular=jnp.asarray(True),
    )

    def cond(carry):
        i, _, unfinished = carry
        return (i < limit) & eqxi.unvmap_any(unfinished)

    def body(carry):
        i, p, unfinished = carry
        flow = system.flow(t, p.x, p.mode)
        g, rate = system.guard_rates(t, p.x, p.mode, flow)
        firing = fires_at_once(g, rate, tol)
        fire = unfinished & firing.any()
        never = jnp.iinfo(priority.dtype).max
        j = jnp.argmin(jnp.where(firing, priority, never)).astype(jnp.int32)
        x_plus, mode_plus = system.jump(t, p.x, p.mode, j)
        new = _Passage(
            x=x_plus,
            mode=mode_plus,
            order=p.order.at[i].set(j),
            count=p.count + 1,
            regular=p.regular & (rate[j] != 0),
        )
        p = jtu.tree_map(lambda a, b: jnp.where(fire, a, b), new, p)
        return i + 1, p, fire

    init = (jnp.asarray(0, jnp.int32), passage, jnp.asarray(True))
    _, passage, unfinished = lax.while_loop(cond, body, init)
    return eqx.tree_at(lambda p: p.regular, passage, passage.regular & ~unfinished)


def _passages(point: _Point, priorities) -> _Passage:
    system, x, _ = point.flatten()
    one = lambda p: _pass(system, point.t, x, point.mode, p, point.tol)
    return jax.vmap(one)(jnp.asarray(priorities))


@eqx.filter_jit
def _compare(point: _Point, first: _Passage, priorities):
    """Whether some order leads elsewhere than the first, and whether all of them are
    regular."""
    others = _passages(point, priorities)
    same = jax.vmap(lambda p: same_outcome(first.x, first.mode, p.x, p.mode))(others)
    return ~same.all(), others.regular.all()


@eqx.filter_jit
def _spread(point: _Point, priorities):
    """How much the saltation matrices of orders differ, and their largest entry."""
    orders = _passages(point, priorities).order
    matrices = jax.vmap(lambda order: _compose_padded(point, order)[0])(orders)
    return jnp.max(jnp.abs(matrices - matrices[:1])), jnp.max(jnp.abs(matrices))


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
    corner = _resolve(b._point, dx)
    x_after, _ = ravel_pytree(b.x_after)
    same = same_outcome(corner.x, corner.mode, x_after, b.mode_after)
    ended = corner.count < max_corner_events(b.guards.shape[-1])
    return jnp.where(b._differentiable & same & ended, corner.dx, jnp.nan), ~same


@eqx.filter_jit
def _order_of(b: BDerivative, tangent):
    dx, _ = ravel_pytree(tangent)
    corner = _resolve(b._point, dx)
    return corner.order, corner.count


def _resolve(point: _Point, dx):
    system, x, _ = point.flatten()
    return resolve_corner(
        system,
        point.t,
        x,
        point.mode,
        jtu.tree_map(lambda _: None, system),
        dx,
        point.tol,
        jnp.asarray(True),
        jnp.asarray(-jnp.inf, x.dtype),
        jnp.ones((system.n_guards,), bool),
    )


@eqx.filter_jit
def _compose(point: _Point, order):
    return _compose_padded(point, jnp.asarray(order, jnp.int32))


def _compose_padded(point: _Point, order: Int[Array, " max_count"]):
    """The saltation matrix of an order, and whether the guards can fire in it. Ends of
    -1 are no events."""
    system, x, _ = point.flatten()
    t, tol = point.t, point.tol
    nothing = jtu.tree_map(lambda _: None, system)
    count = eqxi.unvmap_max(jnp.sum(order >= 0))

    def firing(x, mode):
        g, rate = system.guard_rates(t, x, mode, system.flow(t, x, mode))
        return fires_at_once(g, rate, tol)

    def body(carry):
        i, x, mode, columns, times, possible = carry
        j = order[i]
        fired = j >= 0

        def push(dx, dt_last):
            return event_tangent(
                system, t, x, mode, j, (nothing, dx, dt_last), tol, False
            )

        tangents = jax.vmap(push, in_axes=(1, 0), out_axes=(1, 0))(columns, times)
        after = system.jump(t, x, mode, jnp.maximum(j, 0))
        new = *after, *tangents, possible & firing(x, mode)[j]
        old = x, mode, columns, times, possible
        return i + 1, *jtu.tree_map(lambda a, b: jnp.where(fired, a, b), new, old)

    columns = jnp.eye(x.shape[0], dtype=x.dtype)
    init = x, point.mode, columns, jnp.zeros_like(x), jnp.asarray(True)
    init = jnp.asarray(0, count.dtype), *init
    _, x, mode, columns, _, possible = lax.while_loop(
        lambda carry: carry[0] < count, body, init
    )
    return columns, possible & ~firing(x, mode).any()


@eqx.filter_jit
def _sample(point: _Point, numbers, chosen):
    """What Council's sampled system is made of, and whether it exists.

    **Returns:**

    The normals of the guards `numbers`, their derivatives in time, the vector fields
    after the guards of each row of `chosen` have fired, whether a reset changes the
    state or its tangents, and whether each of the guards, and no other, fires once.
    """
    system, x, _ = point.flatten()
    t = point.t
    guards = lambda t, x: system.guards(t, x, point.mode)[numbers]
    normals = -jax.jacrev(guards, argnums=1)(t, x)
    in_time = -jax.jacfwd(guards, argnums=0)(t, x)
    identity = jnp.eye(x.shape[0], dtype=x.dtype)

    def fire(carry, inputs):
        mode, resets = carry
        j, fires = inputs
        jump = lambda t, x: system.jump(t, x, mode, j)
        x_plus, mode_plus = jump(t, x)
        by_time, by_x = jax.jacfwd(lambda t, x: jump(t, x)[0], argnums=(0, 1))(t, x)
        same = jnp.all(x_plus == x) & jnp.all(by_x == identity) & jnp.all(by_time == 0)
        mode = jtu.tree_map(lambda a, b: jnp.where(fires, a, b), mode_plus, mode)
        return (mode, resets | (fires & ~same)), None

    def one(chosen):
        init = (point.mode, jnp.asarray(False))
        (mode, resets), _ = lax.scan(fire, init, (numbers, chosen))
        flow = system.flow(t, x, mode)
        g, rate = system.guard_rates(t, x, mode, flow)
        left = jnp.zeros_like(g, bool).at[numbers].set(~chosen)
        once = jnp.all(fires_at_once(g, rate, point.tol) == left)
        return flow, resets, once

    fields, resets, once = jax.vmap(one)(chosen)
    return normals, in_time, fields, resets.any(), once.all()
