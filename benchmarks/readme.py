"""What the README prints: the output of its snippets, and the table of the demo.

    python benchmarks/readme.py [--json]

Runs the snippets and `offsupport demo`, writes results/demo.json and puts what came out between the marks of README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cells import PART, filled

from offsupport.core.files import write_text

ROOT = Path(__file__).parents[1]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of the demo: error and interval in percent, by stage and method."""
    methods = list(next(iter(results.values())))
    lines = [f"| digits | {' | '.join(methods)} |", f"|{'---|' * (len(methods) + 1)}"]
    for stage, row in results.items():
        lines.append(f"| {stage} | {' | '.join(cell(each) for each in row.values())} |")
    return "\n".join(lines) + "\n"


def cell(score: dict[str, Any]) -> str:
    """Return an error with its interval in percent."""
    low, high = (f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in score["ci95"])
    return f"{100 * score['error']:.1f} ({low}-{high})"


def between(text: str, name: str, inside: str) -> str:
    """Return a text with other words between the marks of a name."""
    found = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return found.sub(lambda marks: f"{marks[1]}{inside}{marks[2]}", text)


def main() -> None:
    """Run everything and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    text = filled(readme.read_text(encoding="utf-8"))
    outputs = [part["shown"] for part in PART.finditer(text) if part["shown"] is not None]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "offsupport", "demo", "--out", folder, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    kept = {name: found[name] for name in ("about", "results", "total", "estimates")}
    write_text(ROOT / "results" / "demo.json", json.dumps(kept, indent=1) + "\n")  # stages in their order
    write_text(readme, between(text, "demo table", table(found["results"])))
    print(json.dumps({"printed": outputs, "total": found["total"]}, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
