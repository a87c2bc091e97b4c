import contextlib
import io
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import jax
import pytest


_root = Path(__file__).parent.parent
_readme = _root / "README.md"
# What runs is ```python; ```py is a fragment.
_docs = sorted((_root / "docs").glob("**/*.md"))
_pages = [_readme, *(page for page in _docs if "```python\n" in page.read_text())]
# The defaults of JAX: a reader has them, the tests have not.
_jax_defaults = {"jax_enable_x64": False, "jax_numpy_rank_promotion": "allow"}


class _Block(NamedTuple):
    language: str
    code: str
    line: int  # of the first line of code, counted from 1
    follows: bool  # nothing but blank lines between this block and the one before


def _parse(text: str) -> list[_Block]:
    blocks = []
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start(2)) + 1
        follows = bool(blocks) and text[end : match.start()].strip() == ""
        blocks.append(_Block(match[1], match[2], line, follows))
        end = match.end()
    return blocks


def _strip(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


@pytest.fixture
def newcomer(tmp_path, monkeypatch):
    """Where a reader of a page is: an empty folder, and JAX as it comes."""
    monkeypatch.chdir(tmp_path)
    saved = {name: getattr(jax.config, name) for name in _jax_defaults}
    for name, value in _jax_defaults.items():
        jax.config.update(name, value)
    yield
    for name, value in saved.items():
        jax.config.update(name, value)


def test_parse():
    text = "a\n```python\nx\n```\n\n```text\n1 \n```\nb\n```bash\ny\nz\n```\n"
    assert _parse(text) == [
        _Block("python", "x\n", 3, False),
        _Block("text", "1 \n", 7, True),
        _Block("bash", "y\nz\n", 11, False),
    ]


def test_blocks():
    blocks = _parse(_readme.read_text())
    # `.ci/run` runs the one that has the tests in it.
    commands = [block.code for block in blocks if block.language == "bash"]
    assert sum("pytest" in command for command in commands) == 1
    # An output that stands apart from its code would not be compared with anything.
    for page in _pages:
        blocks = _parse(page.read_text())
        assert any(block.language == "python" for block in blocks)
        for block in blocks:
            apart = block.language == "text" and not block.follows
            assert not apart, f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", _pages, ids=lambda page: page.stem)
def test_python_blocks(page, newcomer, monkeypatch):
    blocks = _parse(page.read_text())
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for i, block in enumerate(blocks):
        if block.language != "python":
            continue
        # Blank lines in front, so that a traceback has the line numbers of the page.
        source = "\n" * (block.line - 1) + block.code
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            exec(compile(source, str(page), "exec"), vars(module))
        output = blocks[i + 1] if i + 1 < len(blocks) else None
        if output is not None and output.language == "text" and output.follows:
            assert _strip(stdout.getvalue()) == _strip(output.code), (
                f"{page.name}:{output.line} is not what the code before it prints."
            )
