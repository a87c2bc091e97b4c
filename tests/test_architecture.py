"""The rules of the code base that neither Python nor equinox enforces."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import types

import equinox as eqx
import hybridjax
import pytest


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
