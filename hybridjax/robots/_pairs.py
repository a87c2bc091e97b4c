"""Which geoms can touch which, as MuJoCo decides it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._compile import load_mujoco
from ._names import described


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two geoms that can touch; the first one is at rest, if one of them is."""

    first: int
    second: int
    friction: float
    margin: float


def pairs_of(
    model: Any, contacts: str | Sequence[str | tuple[str, str]], own_friction: bool
) -> list[Pair]:
    """The pairs that `contacts` chooses: see `from_mjcf`.

    **Raises:**

    - `ValueError` for a name that is not there, or that chooses nothing; and with
        `own_friction` for a friction that there is no law for.
    """
    if model.opt.disableflags & load_mujoco().mjtDisableBit.mjDSBL_CONTACT:
        return []
    listed = {
        frozenset((int(model.pair_geom1[k]), int(model.pair_geom2[k]))): k
        for k in range(model.npair)
    }
    n = model.ngeom
    possible = [(a, b) for a in range(n) for b in range(a + 1, n)]
    possible = [
        (a, b)
        for a, b in possible
        if frozenset((a, b)) in listed or _by_filter(model, a, b)
    ]
    if isinstance(contacts, str):
        if contacts not in ("ground", "all"):
            raise ValueError(
                "Argument `contacts` must be 'ground', 'all' or a sequence of names, "
                f"but it is {contacts!r}."
            )
        chosen = [
            (a, b)
            for a, b in possible
            if contacts == "all"
            or frozenset((a, b)) in listed
            or not (_moves(model, a) and _moves(model, b))
        ]
    else:
        chosen = _by_name(model, possible, contacts)
    pairs = []
    for a, b in chosen:
        first, second = (b, a) if _moves(model, a) and not _moves(model, b) else (a, b)
        k = listed.get(frozenset((a, b)))
        pairs.append(_pair(model, first, second, k, own_friction))
    return pairs


def _moves(model, geom) -> bool:
    return model.body_weldid[model.geom_bodyid[geom]] != 0


def _by_filter(model, a, b) -> bool:
    """By body, parent, exclusion and bits."""
    bodies = sorted(int(model.geom_bodyid[g]) for g in (a, b))
    first, second = (int(model.body_weldid[body]) for body in bodies)
    if first == second:
        return False
    parents = [
        int(model.body_weldid[model.body_parentid[body]]) for body in (first, second)
    ]
    off = load_mujoco().mjtDisableBit.mjDSBL_FILTERPARENT
    related = first and second and (first == parents[1] or second == parents[0])
    if related and not model.opt.disableflags & off:
        return False
    if (bodies[0] << 16) + bodies[1] in model.exclude_signature[: model.nexclude]:
        return False
    kinds, others = model.geom_contype, model.geom_conaffinity
    return bool((kinds[a] & others[b]) | (kinds[b] & others[a]))


def _by_name(model, possible, contacts):
    """A name: with all that is at rest; two names: this pair."""
    chosen = []
    for choice in contacts:
        if isinstance(choice, str):
            geom = _geom(model, choice)
            with_it = [
                pair
                for pair in possible
                if geom in pair and not all(_moves(model, g) for g in pair)
            ]
            if not with_it:
                raise ValueError(
                    f"Argument `contacts` names the geom {choice!r}, which by its "
                    "contype and conaffinity touches nothing that is at rest. Name the "
                    "pair: `(ground, geom)`."
                )
            chosen += with_it
        else:
            chosen.append(tuple(_geom(model, name) for name in choice))
    return list(dict.fromkeys(chosen))


def _geom(model, name) -> int:
    mujoco = load_mujoco()
    geom = mujoco.mj_name2id(model, int(mujoco.mjtObj.mjOBJ_GEOM), name)
    if geom < 0:
        raise ValueError(
            f"Argument `contacts` names {name!r}, but the model has no geom of this "
            "name."
        )
    return geom


def _pair(model, a, b, k, own_friction) -> Pair:
    if k is None:
        first, second = model.geom_priority[a], model.geom_priority[b]
        frictions, dims = model.geom_friction[:, 0], model.geom_condim
        rules = [a, b] if first == second else [a if first > second else b]
        dim = max(dims[g] for g in rules)
        friction = max(frictions[g] for g in rules)
        margin = model.geom_margin[a] + model.geom_margin[b]
        sticky = [np.any(model.geom_adhesion[[a, b]] != 0)]
        moving = np.any(model.geom_surfacevel[[a, b]] != 0)
    else:
        dim, (friction, other, *_) = model.pair_dim[k], model.pair_friction[k]
        margin = model.pair_margin[k]
        sticky, moving = [model.pair_adhesion[k] != 0], False
        if own_friction and dim > 1 and friction != other:
            _refuse(model, a, b, "friction that depends on the direction")
    if np.any(sticky):
        _refuse(model, a, b, "adhesion")
    if moving:
        _refuse(model, a, b, "a surface that moves in itself")
    if own_friction and dim > 3:
        _refuse(
            model,
            a,
            b,
            f"torsional or rolling friction (condim {dim}), unless the argument "
            "`friction` of `hj.robots.from_mjcf` says what the friction is instead",
        )
    return Pair(int(a), int(b), float(friction if dim > 1 else 0), float(margin))


def _refuse(model, a, b, what):
    raise ValueError(
        f"The contact of {described(model, 'geom', a)} and "
        f"{described(model, 'geom', b)} has {what}. This is not supported."
    )
