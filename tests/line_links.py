"""Links to lines of the code, in the docs: `python -m tests.line_links` mends them.

A link `` [`name`](../hybridjax/file.py#L12) `` points to the line on which `file.py`
defines `name`: a function, a class, or a method, as `Class.method`.
"""

import ast
import re
from pathlib import Path


DOCS = Path(__file__).parent.parent / "docs"
_LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./[\w/]+\.py)#L\d+\)")


def _definitions(path: Path) -> dict[str, int]:
    lines = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                lines[prefix + child.name] = child.lineno
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(path.read_text()), "")
    return lines


def mended(page: Path) -> str:
    """The text of a page, with its links as they should be."""

    def replace(link):
        name, file = link.groups()
        line = _definitions(page.parent / file)[name]
        return f"[`{name}`]({file}#L{line})"

    return _LINK.sub(replace, page.read_text())


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(mended(page))
