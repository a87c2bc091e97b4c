"""The public names: when they are loaded, and what `help` shows of them."""

import functools
import inspect
import pydoc
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import diffrax
import hybridjax as hj
import pytest
from jaxtyping import PyTree


def _public(module):
    names = [name for name in dir(module) if not name.startswith("_")]
    values = {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "__module__", "").startswith("hybridjax")
    }


_LAZY = (
    "analysis",
    "control",
    "estimation",
    "mechanics",
    "models",
    "plot",
    "robots",
)
_VALUES = _public(hj)
for _name in _LAZY:
    _VALUES |= _public(getattr(hj, _name))


def test_loaded_when_needed():
    code = f"""
import sys
import hybridjax as hj
for name in {_LAZY}:
    assert "hybridjax." + name not in sys.modules
    assert name in dir(hj)
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None  # not installed
try:
    hj.plot.trajectory(None)
except ImportError as error:
    assert "pip install 'hybridjax[plot]'" in str(error)
else:
    assert False
assert hj.models.BouncingBall is sys.modules["hybridjax.models"].BouncingBall
from hybridjax import mechanics
assert hj.mechanics is mechanics
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_all():
    # A new name has to be there, too.
    exported = {
        name
        for name, value in vars(hj).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(hj.__all__) == exported - {"TYPE_CHECKING", "make_readable"} | {*_LAZY}
    assert hj.__all__ == sorted(hj.__all__, key=str.lower)
    for name in hj.__all__:
        getattr(hj, name)
    assert sorted(dir(hj)) == sorted([*hj.__all__, "__version__"])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hj.nothing  # pyright: ignore


def test_signatures_can_be_read():
    for name, value in _VALUES.items():
        own = [value] if inspect.isfunction(value) else []
        for key in vars(value) if inspect.isclass(value) else []:
            method = getattr(value, key)
            if key == "__init__" or not key.startswith("_") and callable(method):
                own.append(method)
        for each in own:
            text = str(inspect.signature(each))
            for noise in ("jaxtyping", "jaxlib", " at 0x", "ndarray, bool"):
                assert noise not in text, name
            assert max(map(len, text.splitlines())) <= 100, text


def test_signature_as_text():
    assert str(inspect.signature(hj.with_cost)) == (
        "(\n    system: AbstractHybridSystem,\n    running: Callable,\n"
        "    terminal: Callable | None = None,\n) -> SystemWithCost"
    )
    shown = pydoc.plain(pydoc.render_doc(hj.mechanics.MechanicalSystem))
    shown = shown.replace("\n |  ", "\n")
    for line in (
        "\n    *,\n    normals: Callable | None = None,\n",
        "\n    static_friction: ArrayLike | None = None,\n",
        "\n    restitution: ArrayLike | Callable = 0.0,\n",
    ):
        assert line in shown
    assert "reset: Callable = identity" in str(inspect.signature(hj.Transition))
    # Only the text is another one.
    parameters = inspect.signature(hj.simulate).parameters
    assert parameters["x0"].annotation is PyTree
    assert parameters["max_steps"].default == 4096
    assert typing.get_type_hints(hj.simulate)["return"] is hj.Solution
    assert "_path" not in str(inspect.signature(hj.Solution))

    class System(hj.AbstractHybridSystem):
        gravity: float

    assert list(inspect.signature(System).parameters) == ["gravity"]


def test_references():
    # Public names in plain code, as one types them: no marks for a tool, and no name
    # that is not there.
    root = Path(__file__).parent.parent
    files = [*root.glob("hybridjax/**/*.py"), *root.glob("docs/**/*.md")]
    files += [root / "README.md", root / "CONTRIBUTING.md"]
    found = 0
    for file in files:
        text = file.read_text()
        assert "`][" not in text, file
        for name in re.findall(r"`hj\.([\w.]+)", text):
            functools.reduce(getattr, name.strip(".").split("."), hj)
            found += 1
    assert found > 100


def test_api_pages():
    # Each name has one entry, on a page that is in the menu.
    root = Path(__file__).parent.parent
    pages = list(root.glob("docs/api/*.md"))
    entries = [
        name
        for page in pages
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    ]
    names = {name for name in _VALUES if not name.endswith(".make_readable")}
    assert sorted(entries) == sorted({*names, "hybridjax.UNWATCHED"})
    menu = (root / "mkdocs.yml").read_text()
    assert all(f"- api/{page.name}\n" in menu for page in pages)
    # The overview has all of them, too, but models.
    overview = (root / "docs/api/index.md").read_text()
    for name in entries:
        name = name.replace("hybridjax.", "hj.")
        assert name.startswith("hj.models.") or f"`{name}`" in overview, name


def test_results_are_explained():
    # By name, and by the text that one sees.
    page = Path(__file__).parent.parent / "docs/how_to/failures.md"
    text = page.read_text()
    headings = re.findall(r"^### `(\w+)`", text, re.MULTILINE)
    quotes = re.findall(r"^> (.+)$", text, re.MULTILINE)
    enumerations = [m.RESULTS for m in (hj, hj.analysis, hj.control, hj.estimation)]
    of_other_libraries = set(diffrax.RESULTS._name_to_item)
    messages = []
    for results in enumerations:
        for name, item in results._name_to_item.items():
            assert f"`{name}`" in text, name
            assert name in of_other_libraries or name in headings, name
            messages.append(results._index_to_message[item._value])
    for quote in quotes:
        assert any(message.startswith(quote) for message in messages), quote
    assert len(quotes) > 15
