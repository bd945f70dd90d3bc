"""Curves for columns that are points on an axis: distances, severities, numbers of images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offsupport.bench.results import estimate, parts_of
from offsupport.bench.store import Record
from offsupport.paper.columns import median_radii
from offsupport.paper.synthetic import SUPPORT_RADIUS
from offsupport.report import figures
from offsupport.report.page import Figure

Rows = Sequence[Mapping[str, Any]]
SHOWN = 6
"""Corruptions with curves of their own; of more, the average tells more."""


@dataclass(frozen=True)
class Axis:
    """Columns that are points on one axis.

    Args:
        pattern: What such a column is called: a group and a position.
        label: What the positions are.
        caption: What a drawing of one group shows.
        by_group: Whether groups are the lines of one drawing per method; else methods are the lines of one per group.
    """

    pattern: re.Pattern[str]
    label: str
    caption: str
    by_group: bool = False


DISTANCE = Axis(
    re.compile(r"((?:dense|sparse)[^/]*)-([\d.]+)"), "distance of s from the origin", "{} shifts with 95 % intervals."
)
SEVERITY = Axis(re.compile(r"([^/]+/[^/]+)/(\d+)"), "severity", "{} by severity, with 95 % intervals.")
AXES = (
    DISTANCE,
    Axis(re.compile(r"(inside)-([\d.]+)"), "share of the certified radius", "Inside the radius of Theorem 1."),
    Axis(re.compile(r"([^/]+)/severity-(\d+)"), "severity", "{} by severity, one line per size of the shift.", True),
    SEVERITY,
    Axis(re.compile(r"([^/]+)/n-(\d+|all)"), "target images", "{}: what a handful of target images is enough for."),
)


def on_axes(rows: Rows) -> bool:
    """Say whether all columns but averages are points on an axis."""
    columns = {row["column"] for row in rows if not row["column"].endswith("/avg")}
    return bool(columns) and all(_placed(column) for column in columns)


def curve_figures(rows: Rows, records: Sequence[Record]) -> list[Figure]:
    """Return the drawings, one per group of columns or per method."""
    drawings: dict[tuple[str, Axis], dict[str, dict[str, figures.Interval]]] = {}
    for row in rows:
        if (found := _placed(row["column"])) is not None:
            axis, group, at = found
            title, line = (row["method"], group) if axis.by_group else (group, row["method"])
            points = drawings.setdefault((title, axis), {}).setdefault(line, {})
            points[at] = row["value"], row["low"], row["high"]
    several = [key for key in drawings if key[1] is SEVERITY]
    average = _mean_severity(records) if len(several) > 1 else []
    kept = {key: lines for key, lines in drawings.items() if key not in several or len(several) <= SHOWN}
    radii = median_radii(records)
    label = f"{rows[0]['metric']} ({rows[0]['unit']})"
    return average + [_drawn(title, axis, lines, label, radii) for (title, axis), lines in kept.items()]


def _placed(column: str) -> tuple[Axis, str, str] | None:
    for axis in AXES:
        if found := axis.pattern.fullmatch(column):
            return axis, found.group(1), found.group(2)
    return None


def _drawn(
    title: str,
    axis: Axis,
    lines: Mapping[str, Mapping[str, figures.Interval]],
    label: str,
    radii: Mapping[str, Mapping[str, float]],
) -> Figure:
    own = radii.get(title, {}) if axis is DISTANCE else {}
    marks = _marks(title, own) if axis is DISTANCE else None
    return Figure(_curves(lines, label, axis.label, marks), axis.caption.format(title) + _about(own))


def _curves(
    lines: Mapping[str, Mapping[str, figures.Interval]],
    label: str,
    x_label: str,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Draw to scale; counts of images, which grow by factors and end with "all", one step each."""
    names = sorted({at for points in lines.values() for at in points}, key=_position)
    if x_label == "target images":
        places = {name: float(i) for i, name in enumerate(names)}
        ticks = {float(i): name for i, name in enumerate(names)}
    else:
        places, ticks = {name: float(name) for name in names}, None
    series = {line: {places[at]: interval for at, interval in points.items()} for line, points in lines.items()}
    return figures.curves(series, label, x_label, marks, ticks)


def _position(at: str) -> float:
    return float("inf") if at == "all" else float(at)


def _mean_severity(records: Sequence[Record]) -> list[Figure]:
    """The error at each severity, averaged over corruptions: what no single column says."""
    found: dict[str, dict[str, list[Any]]] = {}
    for part in parts_of(records):
        if "/" in part.domain:
            found.setdefault(part.method, {}).setdefault(part.domain.rpartition("/")[2], []).append(part)
    lines = {}
    for method, by_severity in found.items():
        estimates = {severity: estimate(parts) for severity, parts in by_severity.items()}
        lines[method] = {s: (100 * e.value, 100 * e.low, 100 * e.high) for s, e in estimates.items()}
    if not lines:
        return []
    drawing = _curves(lines, "error (percent)", "severity")
    return [Figure(drawing, "The average over corruptions by severity, with 95 % intervals.")]


def _marks(group: str, radii: Mapping[str, float]) -> dict[str, float]:
    """Where the support ends and, beyond it, how far Theorem 1 reaches in the most generous way to compute it."""
    changed = re.search(r"radius=([\d.]+)", group)
    edge = float(changed.group(1)) if changed else SUPPORT_RADIUS
    reach = {"Theorem 1 radius": edge + max(radii.values())} if radii else {}
    return {"edge of the support": edge, **reach}


def _about(radii: Mapping[str, float]) -> str:
    if not radii:
        return ""
    ways = ", ".join(f"{value:.2f} {way}" for way, value in radii.items())
    return (
        f" Theorem 1 allows a distance from the support of {ways}: medians over runs, granting that C is the target's "
        "c and the mean of the other class; the largest is drawn. As c is continuous, the guarantee ends at the edge."
    )
