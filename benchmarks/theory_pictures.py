"""Draw pictures of docs/ from the stored results: python benchmarks/theory_pictures.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from offsupport.core.files import write_text
from offsupport.report import figures
from offsupport.report.frontier import draw
from offsupport.studies.synthetic import SUPPORT_RADIUS

ROOT = Path(__file__).parents[1]
METHODS = ("only-source", "extrapolator", "given-c")


Series = dict[str, dict[float, figures.Interval]]


def table1(shift: str) -> str:
    """Return accuracy against distance for one kind of shift."""
    series: Series = {}
    for row in stored("table1"):
        kind, _, distance = row["column"].rpartition("-")
        if kind == shift and row["method"] in METHODS:
            series.setdefault(row["method"], {})[float(distance)] = row["value"], row["low"], row["high"]
    label = "distance of s from the origin"
    return figures.curves(series, "accuracy", label, {"edge of the support": SUPPORT_RADIUS})


def fig3() -> str:
    """Return the error of TENT against the severity, by the side of the corrupted square."""
    series: Series = {}
    for row in stored("fig3"):
        block, _, severity = row["column"].partition("/severity-")
        if row["method"] == "tent":
            series.setdefault(block, {})[float(severity)] = row["value"], row["low"], row["high"]
    return figures.curves(series, "error (percent)", "severity of the impulse noise", {})


def leaderboard() -> str:
    """Return mean error against time, for methods that met all protocols."""
    points = {
        line["method"]: (line["ms per image"], line["mean error, %"])
        for line in stored("protocols", "overview")
        if line["mean error, %"] is not None
    }
    return draw(points)


PARTS = {
    "only-source": "plain classifier",
    "vae-slab, codes=encoder": "codes from the encoder",
    "vae-slab, codes=optimised, slab=0": "optimised, Gaussian columns",
    "vae-slab, codes=optimised": "optimised, a slab per column",
    "vae-slab": "repaired as well: vae-slab",
}
"""Rows of the ablation, and what each adds."""


def slab() -> str:
    """Return the accuracy of the parts of vae-slab against the distance of a sparse shift."""
    series: Series = {name: {} for name in PARTS.values()}
    for row in stored("slab"):
        kind, _, distance = row["column"].rpartition("-")
        if kind == "sparse":
            series[PARTS[row["method"]]][float(distance)] = row["value"], row["low"], row["high"]
    return figures.curves(series, "accuracy", "distance of s from the origin", {})


def stored(table: str, listing: str = "rows") -> list[dict[str, Any]]:
    """Return the rows of a table as they are stored, or the lines of a listing."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "results" / table / f"{table}.json").read_text())[listing]
    return rows


def main() -> None:
    """Write the pictures, and say where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")
    as_json = parser.parse_args().json
    paths = []
    drawn = {
        "dense": table1("dense"),
        "sparse": table1("sparse"),
        "fig3": fig3(),
        "slab": slab(),
        "leaderboard": leaderboard(),
    }
    for name, svg in drawn.items():
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        # An image has no page whose colour it could take: a grey that can be read on light and on dark.
        write_text(path, svg.replace("currentColor", "#808080") + "\n")
        paths.append(str(path.relative_to(ROOT)))
    print(json.dumps(paths) if as_json else "\n".join(paths))


if __name__ == "__main__":
    main()
