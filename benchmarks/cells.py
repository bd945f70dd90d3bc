"""What the Python cells of a page print, below each of them.

    python benchmarks/cells.py [PAGE ...] [--json]

Runs the cells of every page from top to bottom, in an empty folder, and puts what they print between the marks
``<!-- output -->`` and ``<!-- /output -->`` behind them. Without pages: those of docs/ that have such marks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from offsupport.core.files import write_text

ROOT = Path(__file__).parents[1]
PAGES = ("docs/index.md", "docs/tour.md", "docs/tutorial.md")
PART = re.compile(
    r"```python\n(?P<code>.*?)```|(?P<open><!-- output[^\n]*-->\n)(?P<shown>.*?)(?P<close><!-- /output[^\n]*-->)",
    re.DOTALL,
)


def filled(text: str) -> str:
    """Return a page with what its cells print now."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    last = ""

    def part(found: re.Match[str]) -> str:
        nonlocal last
        if found["code"] is not None:
            last = printed(found["code"], scope)
            return found[0]
        return f"{found['open']}```text\n{last}```\n{found['close']}"

    with empty_folder():
        return PART.sub(part, text)


def printed(code: str, scope: dict[str, Any]) -> str:
    """Return what a cell prints."""
    torch.set_num_threads(1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, scope)
    return out.getvalue()


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """Work in a folder of its own, whose modules can be imported, and leave nothing behind."""
    before, known = Path.cwd(), set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            os.chdir(before)
            sys.path.remove(folder)
            for name in [name for name in set(sys.modules) - known if _lies_in(sys.modules[name], folder)]:
                del sys.modules[name]


def _lies_in(module: Any, folder: str) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(folder)


def main() -> None:
    """Run the cells of the pages and write down what they print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    arguments = parser.parse_args()
    found = {}
    for name in arguments.pages:
        path = ROOT / name
        text = filled(path.read_text(encoding="utf-8"))
        write_text(path, text)
        found[name] = [part["shown"] for part in PART.finditer(text) if part["shown"] is not None]
    print(json.dumps(found, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
