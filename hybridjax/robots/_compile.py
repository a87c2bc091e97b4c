import os
from typing import Any


def load_mujoco() -> Any:
    """The package, which is not needed before there is a model."""
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(
            "Models from files need MuJoCo's compiler, which is not installed: `pip "
            "install 'hybridjax[robots]'`."
        ) from error
    return mujoco


def compiled(model: Any) -> Any:
    """An `MjModel`, of a path, of XML, or of one."""
    mujoco = load_mujoco()
    if isinstance(model, mujoco.MjModel):
        return model
    if isinstance(model, str) and model.lstrip().startswith("<"):
        return mujoco.MjModel.from_xml_string(model)
    return mujoco.MjModel.from_xml_path(os.fspath(model))
