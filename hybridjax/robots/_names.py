"""What elements of a model are called, in messages and in lists."""

from typing import Any

from ._compile import load_mujoco


def name_of(model: Any, kind: str, i: int) -> str:
    """The name of element `i`; or its kind and number, if it has none."""
    types = load_mujoco().mjtObj
    named = {
        "body": types.mjOBJ_BODY,
        "joint": types.mjOBJ_JOINT,
        "geom": types.mjOBJ_GEOM,
        "site": types.mjOBJ_SITE,
        "tendon": types.mjOBJ_TENDON,
        "actuator": types.mjOBJ_ACTUATOR,
        "equality": types.mjOBJ_EQUALITY,
        "keyframe": types.mjOBJ_KEY,
    }
    name = load_mujoco().mj_id2name(model, int(named[kind]), int(i))
    return name or f"{kind} {i}"


def described(model: Any, kind: str, i: int) -> str:
    """For messages: the kind, and its name or number."""
    name = name_of(model, kind, i)
    return name if name == f"{kind} {i}" else f"{kind} {name!r}"
