from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest

from .pages import Block, parse, pictures, programs, ROOT, run


_readme = ROOT / "README.md"
# What runs is ```python; ```py is a fragment.
_docs = sorted((ROOT / "docs").glob("**/*.md"))
_pages = [_readme, *(page for page in _docs if "```python\n" in page.read_text())]
# The README is tried with all else, by the command that is in it.
_marked = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.documents] * (page != _readme))
    for page in _pages
]
# The defaults of JAX: a reader has them, the tests have not.
_jax_defaults = {"jax_enable_x64": False, "jax_numpy_rank_promotion": "allow"}


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
    plt.close("all")


def test_parse():
    text = "a\n```python\nx\n```\n\n```text\n1 \n```\nb\n```bash\ny\nz\n```\n"
    assert parse(text) == [
        Block("python", "x\n", 3, False),
        Block("text", "1 \n", 7, True),
        Block("bash", "y\nz\n", 11, False),
    ]


def test_blocks():
    blocks = parse(_readme.read_text())
    # `.ci/run` runs the one that has the tests in it.
    commands = [block.code for block in blocks if block.language == "bash"]
    assert sum("pytest" in command for command in commands) == 1
    # An output that stands apart from its code would not be compared with anything.
    for page in _pages:
        blocks = parse(page.read_text())
        assert any(block.language == "python" for block in blocks)
        for block in blocks:
            apart = block.language == "text" and not block.follows
            assert not apart, f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", _marked)
def test_python_blocks(page, newcomer):
    blocks = parse(page.read_text())
    for i, printed in run(page).items():
        after = blocks[i + 1] if i + 1 < len(blocks) else None
        if after is not None and after.language == "text" and after.follows:
            assert _strip(printed) == _strip(after.code), (
                f"{page.name}:{after.line} is not what the code before it prints."
            )
    # What such a page shows is what it drew: no picture outlives its code.
    if page in programs():
        assert pictures(page)
        for name in pictures(page):
            assert Path(name).exists(), f"{page.name} shows {name}, and draws it not."
            assert (ROOT / "docs/images" / name).exists(), "`python -m tests.redraw`"
