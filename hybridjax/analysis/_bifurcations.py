"""What happens between the orbits of a branch."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._solution.known import check_known
from ._results import RESULTS


@dataclasses.dataclass(frozen=True)
class Bifurcation:
    """Where a branch of orbits changes its nature. Its values are known: NumPy arrays.

    **Attributes:**

    - `kind`: `"fold"`, where a multiplier is 1 and the branch turns back;
        `"period_doubling"`, where one is -1; `"neimark_sacker"`, where a complex pair
        crosses the unit circle; `"grazing"`, where the branch ends because a guard is
        only touched.
    - `parameter`, `period`: there.
    - `x`: where the orbit starts.
    - `index`: it is between this orbit of the branch and the next one; at a grazing,
        beyond this one.
    """

    kind: Literal["fold", "period_doubling", "neimark_sacker", "grazing"]
    parameter: float
    period: float
    x: PyTree
    index: int


def bifurcations_of(branch) -> list[Bifurcation]:
    check_known("bifurcations", branch.count)
    count = int(branch.count)
    known = lambda a: np.asarray(a)[:count]
    reach, multipliers = known(branch.arclength), known(branch.multipliers)
    xs = [known(leaf).reshape(count, -1) for leaf in jtu.tree_leaves(branch.x)]
    points = np.column_stack([known(branch.parameter), known(branch.period), *xs])
    found = []

    def add(kind, k, point):
        p, period, *x = point
        x = jtu.tree_map(np.asarray, branch._unravel(jnp.asarray(x)))
        found.append(Bifurcation(kind, float(p), float(period), x, k))

    tests = {
        "fold": known(branch.tangent)[:, -1],
        "period_doubling": np.real(np.prod(1 + multipliers, axis=1)),
        "neimark_sacker": np.array([_pairs(m) for m in multipliers]),
    }
    for k in range(count - 1):
        for kind, test in tests.items():
            if test[k] * test[k + 1] >= 0:
                continue
            # Two real ones whose product is 1 are no pair.
            if kind == "neimark_sacker" and not _has_pair(multipliers[k : k + 2]):
                continue
            add(kind, k, _cubic(reach, points, k, _root(reach, test, k)))
    if count > 0 and bool(branch.result == RESULTS.grazing):
        add("grazing", count - 1, points[-1])
    return sorted(found, key=lambda b: b.index)


def _pairs(multipliers) -> float:
    """Changes its sign where the product of two of them passes 1."""
    n = len(multipliers)
    products = np.outer(multipliers, multipliers)[np.triu_indices(n, 1)]
    return float(np.real(np.prod(1 - products)))


def _has_pair(multipliers) -> bool:
    """Is there a complex pair on the unit circle, nearly?"""
    is_complex = np.abs(multipliers.imag) > 1e-6
    near = np.abs(np.abs(multipliers) - 1) < 0.5
    return bool(np.all(np.any(is_complex & near, axis=1)))


def _window(reach, k):
    begin = min(max(k - 1, 0), max(len(reach) - 4, 0))
    return slice(begin, begin + 4)


def _cubic(reach, values, k, s):
    """By Lagrange, from up to four orbits around."""
    here = _window(reach, k)
    at, out = reach[here], 0
    for i, value in enumerate(values[here]):
        others = np.delete(at, i)
        out = out + value * np.prod((s - others) / (at[i] - others))
    return out


def _root(reach, test, k) -> float:
    """Where the cubic through a test function is zero, by bisection."""
    low, high = reach[k], reach[k + 1]
    for _ in range(60):
        middle = (low + high) / 2
        if (_cubic(reach, test, k, middle) < 0) == (test[k] < 0):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def doubled_from(branch, bifurcation: Bifurcation):
    if bifurcation.kind != "period_doubling":
        raise ValueError(
            "Argument `bifurcation` must be a period doubling, but it is a "
            f"{bifurcation.kind}."
        )
    reach = np.asarray(branch.arclength)[: int(branch.count)]
    s = reach[bifurcation.index : bifurcation.index + 2]
    along = np.asarray(branch.parameter)[bifurcation.index : bifurcation.index + 2]
    share = (bifurcation.parameter - along[0]) / (along[1] - along[0])
    at = s[0] + share * (s[1] - s[0])
    jacobians = np.asarray(branch.jacobian)[: len(reach)]
    values, vectors = np.linalg.eig(_cubic(reach, jacobians, bifurcation.index, at))
    direction = np.real(vectors[:, np.argmin(np.abs(values + 1))])
    return bifurcation.x, np.append(direction / np.linalg.norm(direction), 0.0)
