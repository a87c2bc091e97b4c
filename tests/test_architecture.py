"""The rules of the code base that neither Python nor equinox enforces."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import equinox as eqx
import hybridjax
import pytest

from .line_links import DOCS, mended


_modules = [hybridjax] + [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(hybridjax.__path__, "hybridjax.")
]
_classes = sorted(
    {
        value
        for module in _modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, eqx.Module)
        and value.__module__.startswith("hybridjax.")
    },
    key=lambda cls: (cls.__module__, cls.__qualname__),
)
_public = sorted(
    f"{module.__name__}.{name}"
    for module in _modules
    if not any(part.startswith("_") for part in module.__name__.split("."))
    for name, value in vars(module).items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
)


def _is_abstract(cls) -> bool:
    return cls.__name__.lstrip("_").startswith("Abstract")


def _module_bases(cls) -> list[type]:
    return [
        base
        for base in cls.__mro__[1:]
        if issubclass(base, eqx.Module) and base is not eqx.Module
    ]


def _methods(cls) -> set[str]:
    return {
        name
        for name, value in vars(cls).items()
        if (callable(value) or hasattr(value, "__get__"))
        and (not name.startswith("__") or name == "__call__")
        and not getattr(value, "__isabstractmethod__", False)
        and name not in cls.__dataclass_fields__
    }


def _faults(cls) -> list[str]:
    """How a module class is neither abstract nor final."""
    faults = []
    if inspect.isabstract(cls) and not _is_abstract(cls):
        faults.append(f"{cls.__name__} has abstract methods and another name.")
    for base in _module_bases(cls):
        if not _is_abstract(base):
            faults.append(f"{cls.__name__} is a subclass of the final {base.__name__}.")
        # Other libraries may have defaults that are there to be overridden.
        if not base.__module__.startswith(("hybridjax.", __name__)):
            continue
        for name in sorted(_methods(base) & set(vars(cls))):
            faults.append(f"{cls.__name__} overrides {base.__name__}.{name}.")
        if base.__dataclass_fields__:
            faults.append(f"{base.__name__} has fields and a subclass {cls.__name__}.")
    return faults


def test_faults_are_found():
    class AbstractA(eqx.Module):
        def fixed(self):
            return 1

    class B(AbstractA):
        x: int

        def free(self):
            return 1

    class C(AbstractA):
        def fixed(self):
            return 2

    class D(B):
        pass

    assert _faults(AbstractA) == _faults(B) == []
    assert _faults(C) == ["C overrides AbstractA.fixed."]
    assert _faults(D) == [
        "D is a subclass of the final B.",
        "B has fields and a subclass D.",
    ]


@pytest.mark.parametrize("cls", _classes, ids=lambda cls: cls.__qualname__)
def test_abstract_or_final(cls):
    assert _faults(cls) == []


@pytest.mark.parametrize("name", _public)
def test_public_names_have_docstrings(name):
    module, _, name = name.rpartition(".")
    value = getattr(sys.modules[module], name)
    if not callable(value):
        return  # A constant: what `__doc__` gives is the docstring of its type.
    doc = value.__doc__
    assert doc is not None and doc.strip() != ""
    # What a dataclass makes up for a class that has none.
    assert not doc.startswith(f"{name}(")


def test_import_has_no_side_effects():
    # Only a process in which no device is in use yet can change the number of devices:
    # the last line fails if an import has made an array, and then it would also be too
    # late for `jax.distributed.initialize`.
    names = [module.__name__ for module in _modules]
    code = f"""
import importlib
import logging
import jax
import numpy as np
def state():
    return dict(jax.config.values), np.geterr(), np.get_printoptions(), \\
        logging.getLogger().level, logging.getLogger().handlers[:]
before = state()
for name in {names}:
    importlib.import_module(name)
assert state() == before
jax.config.update("jax_num_cpu_devices", 3)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout


#
# Rooms
#

# By house, from the bottom up: a file may import what is in its own room and in those
# before it.
_ROOMS = {
    "hybridjax": (
        *("_jax", "_systems", "_events", "_steps", "_loop", "_derivatives"),
        *("_solution", ""),
    ),
    "hybridjax.mechanics": ("_dynamics", "_contacts", ""),
    "hybridjax.models": (
        *("_fields", "_circuits", "_balls", "_bodies", "_legged", "_mechanisms"),
        *("_neurons", ""),
    ),
    "hybridjax.analysis": ("",),
    "hybridjax.control": ("",),
    "hybridjax.estimation": ("",),
    "hybridjax.plot": ("",),
    "hybridjax.robots": ("",),
}
_ENGINE = (
    *("hybridjax._jax", "hybridjax._systems", "hybridjax._steps", "hybridjax._loop"),
    *("hybridjax._derivatives", "hybridjax._solution", "hybridjax._simulate"),
    "hybridjax._events",
)
# What else they may import.
_BELOW = {
    "hybridjax": (),
    "hybridjax.mechanics": ("hybridjax._jax", "hybridjax._systems"),
    "hybridjax.models": ("hybridjax._jax", "hybridjax._systems", "hybridjax.mechanics"),
    "hybridjax.analysis": _ENGINE,
    "hybridjax.control": (*_ENGINE, "hybridjax.analysis"),
    "hybridjax.estimation": (*_ENGINE, "hybridjax.analysis"),
    "hybridjax.plot": _ENGINE,
    "hybridjax.robots": ("hybridjax._jax", "hybridjax._systems", "hybridjax.mechanics"),
}


def _place(module: str) -> tuple[str, str]:
    """The house and the room of a module; its room is "" above all others."""
    house = max((h for h in _ROOMS if f"{module}.".startswith(f"{h}.")), key=len)
    room = module.removeprefix(house).strip(".").partition(".")[0]
    return house, room if room in _ROOMS[house] else ""


def _imports(source: str, package: str):
    """What a file of a package imports from hybridjax: modules, and names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*base, *filter(None, [node.module])])
            yield module, [alias.name for alias in node.names]


def _wrong_imports(module: str, package: str, source: str) -> list[str]:
    house, room = _place(module)
    rooms, faults = _ROOMS[house], []
    for target, names in _imports(source, package):
        faults += [f"{target}.{name} is private" for name in names if name[0] == "_"]
        to_house, to_room = _place(target)
        if to_house == house:
            allowed = rooms.index(to_room) <= rooms.index(room)
        else:
            below = _BELOW[house]
            allowed = any(f"{target}.".startswith(f"{b}.") for b in below)
        if not allowed:
            faults.append(f"{target} is above {module}")
    return faults


def test_wrong_imports_are_found():
    find = lambda source: _wrong_imports(
        "hybridjax._loop.run", "hybridjax._loop", source
    )
    assert find("from .tape import Row\nfrom .._jax.tie import tie") == []
    assert find("from .tape import _row") == ["hybridjax._loop.tape._row is private"]
    above = "hybridjax._derivatives.push is above hybridjax._loop.run"
    assert find("def f():\n    from .._derivatives.push import Push") == [above]
    assert find("from ..models import BouncingBall") == [
        "hybridjax.models is above hybridjax._loop.run"
    ]


@pytest.mark.parametrize("module", _modules, ids=lambda module: module.__name__)
def test_rooms(module):
    path = Path(inspect.getfile(module))
    package = module.__spec__.parent
    if module is hybridjax:
        return  # It exports the public names of all.
    assert _wrong_imports(module.__name__, package, path.read_text()) == []
    if path.name == "__init__.py":
        assert module.__doc__ is not None


def test_links_to_lines():
    for page in DOCS.glob("*.md"):
        message = f"Run `python -m tests.line_links`: links of {page.name} are old."
        assert mended(page) == page.read_text(), message
