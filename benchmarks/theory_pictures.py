"""Draw the pictures of docs/findings.md from the stored results of Table 1: python benchmarks/theory_pictures.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from offsupport.core.files import write_text
from offsupport.paper.synthetic import SUPPORT_RADIUS
from offsupport.report import figures

ROOT = Path(__file__).parents[1]
METHODS = ("only-source", "extrapolator", "given-c")


def draw(shift: str) -> str:
    """Return accuracy against distance for one kind of shift as SVG that stands alone."""
    rows = json.loads((ROOT / "results" / "table1" / "table1.json").read_text())["rows"]
    series: dict[str, dict[float, figures.Interval]] = {}
    for row in rows:
        kind, _, distance = row["column"].rpartition("-")
        if kind == shift and row["method"] in METHODS:
            series.setdefault(row["method"], {})[float(distance)] = row["value"], row["low"], row["high"]
    label = "distance of s from the origin"
    svg = figures.curves(series, "accuracy", label, {"edge of the support": SUPPORT_RADIUS})
    # An image has no page whose colour it could take: a grey that can be read on light and on dark.
    return svg.replace("currentColor", "#808080")


def main() -> None:
    """Write the pictures, and say where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")
    as_json = parser.parse_args().json
    paths = []
    for shift in ("dense", "sparse"):
        path = ROOT / "docs" / "pictures" / f"{shift}.svg"
        write_text(path, draw(shift) + "\n")
        paths.append(str(path.relative_to(ROOT)))
    print(json.dumps(paths) if as_json else "\n".join(paths))


if __name__ == "__main__":
    main()
