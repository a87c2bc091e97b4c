"""Common subexpressions of a traced function.

XLA finds them too, but late: what is there twice is differentiated twice by then, and
of what reverse mode makes of it no two are the same.
"""

from typing import Any

import jax.extend.core
import numpy as np


# Constants of up to so many entries are compared by value.
_SMALL = 4096


def computed_once(jaxpr, consts: list) -> tuple[Any, list]:
    """The same function with each value computed once, if something needs it, and each
    constant there once; and its constants."""
    first_of, constants, computed, eqns = {}, {}, {}, []

    def first(v):
        return v if _is_literal(v) else first_of.get(v, v)

    for var, const in zip(jaxpr.constvars, consts, strict=True):
        first_of[var], _ = constants.setdefault(_identity(const), (var, const))
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=[first(v) for v in eqn.invars])
        key = _key(eqn)
        if key in computed:
            first_of |= zip(eqn.outvars, computed[key], strict=True)
            continue
        eqns.append(eqn)
        if key is not None:
            computed[key] = eqn.outvars
    outs = [first(v) for v in jaxpr.outvars]

    needed, used = [], {id(v) for v in outs}
    for eqn in reversed(eqns):
        if eqn.effects or any(id(v) in used for v in eqn.outvars):
            needed.append(eqn)
            used |= {id(v) for v in eqn.invars}
    kept = list(constants.values())
    new = jaxpr.replace(
        constvars=[var for var, _ in kept], eqns=needed[::-1], outvars=outs
    )
    return new, [const for _, const in kept]


def _is_literal(v) -> bool:
    return isinstance(v, jax.extend.core.Literal)


def _identity(const):
    """Equal for constants that are known to be."""
    if isinstance(const, np.ndarray) and const.size <= _SMALL:
        return const.dtype, const.shape, const.tobytes()
    return id(const)


def _key(eqn):
    """Equal for operations that are known to be; or `None`."""
    literal = lambda v: (v.aval, np.asarray(v.val).tobytes())
    operands = tuple(literal(v) if _is_literal(v) else id(v) for v in eqn.invars)
    key = eqn.primitive, operands, tuple(sorted(eqn.params.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return None if eqn.effects else key
