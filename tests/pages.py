"""Pages of the docs, what runs in them, and what they show."""

import contextlib
import io
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parent.parent
_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./images/([\w.]+)\)")


class Block(NamedTuple):
    language: str
    code: str
    line: int  # of the first line of code, counted from 1
    follows: bool  # nothing but blank lines between this block and the one before


def parse(text: str) -> list[Block]:
    blocks = []
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start(2)) + 1
        follows = bool(blocks) and text[end : match.start()].strip() == ""
        blocks.append(Block(match[1], match[2], line, follows))
        end = match.end()
    return blocks


def run(page: Path) -> dict[int, str]:
    """Runs what is ```python in a page, one block after the other, in the working
    folder. Returns what each prints, by its number among all blocks."""
    module = sys.modules["page"] = types.ModuleType("page")
    printed = {}
    for i, block in enumerate(parse(page.read_text())):
        if block.language != "python":
            continue
        # Blank lines in front, so that a traceback has the line numbers of the page.
        source = "\n" * (block.line - 1) + block.code
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            exec(compile(source, str(page), "exec"), vars(module))
        printed[i] = stdout.getvalue()
    del sys.modules["page"]
    return printed


def programs() -> list[Path]:
    """The pages that show what they draw: those of the gallery, less the overview, and
    the one about plots."""
    pages = sorted((ROOT / "docs/gallery").glob("*.md"))
    pages.append(ROOT / "docs/how_to/plotting.md")
    return [page for page in pages if page.stem != "index"]


def pictures(page: Path) -> list[str]:
    """The pictures that a page shows."""
    return _PICTURE.findall(page.read_text())
