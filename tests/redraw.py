"""Draws the pictures of pages anew: `python -m tests.redraw [name ...]` runs those that
show what they draw, or those of them that are named, and copies it to docs/images."""

import contextlib
import os
import shutil
import sys
import tempfile

from .flags import fast_to_compile
from .pages import pictures, programs, ROOT, run


def main(names: list[str]):
    os.environ["MPLBACKEND"] = "Agg"
    fast_to_compile()
    for page in programs():
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            print(page.stem, *run(page).values(), sep="\n")
            for name in pictures(page):
                shutil.copy(name, ROOT / "docs/images")


if __name__ == "__main__":
    main(sys.argv[1:])
