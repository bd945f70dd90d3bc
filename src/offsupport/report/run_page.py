"""The report of a run: what was measured, what the paper printed, which claims hold, how it was made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from offsupport.bench.results import mixed_weights
from offsupport.bench.runs import Status
from offsupport.bench.store import Record
from offsupport.paper.columns import median_radii
from offsupport.paper.synthetic import SUPPORT_RADIUS
from offsupport.report import figures
from offsupport.report.episodes import episode_section
from offsupport.report.page import Badge, Figure, Page, Section, Table

VERDICTS = {"holds": Badge("holds", "good"), "does-not-hold": Badge("does not hold", "bad")}
Rows = Sequence[Mapping[str, Any]]
_AT_DISTANCE = re.compile(r"(dense|sparse)[^/]*-[\d.]+").fullmatch
_PAIRED = (
    "Intervals are 95 %, from a bootstrap over images (over runs, for synthetic data) that pairs the two methods. "
    "A claim is decided only where its interval excludes zero."
)


def run_page(title: str, about: str, payload: Mapping[str, Any], status: Status) -> Page:
    """Return the page of a run.

    Args:
        title: What was run.
        about: One sentence about the setting.
        payload: Rows and claims as ``reproduce --json`` prints them.
        status: Where the run stands.
    """
    sections = [*_claims(payload["claims"]), *_result(payload["rows"], status.done)]
    sections += [episode_section(record) for record in status.done if record.cell.kind == "episode"]
    sections += [*_cost(status.done), *_unfinished(status)]
    return Page(title, f"{about}\n\n{_progress(status)}", sections, data=payload)


def number(row: Mapping[str, Any]) -> str:
    """Return a value with its interval as a person would write it."""
    return f"{value_text(row)} ({value_text(row, 'low')} to {value_text(row, 'high')})"


def value_text(row: Mapping[str, Any], key: str = "value") -> str:
    """Return one number of a row: percent with one digit behind the point, fractions with three."""
    return "" if row[key] is None else f"{row[key]:.{1 if row['unit'] == 'percent' else 3}f}"


def _progress(status: Status) -> str:
    counts = status.counts()
    if counts["done"] == counts["total"]:
        return f"All {counts['total']} cells have a result."
    rest = f"{counts['failed']} failed, {counts['missing']} are missing"
    return f"{counts['done']} of {counts['total']} cells have a result; {rest}."


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return the evidence of a claim in one line."""
    return f"{evidence['value']:+.2f} ({evidence['low']:+.2f} to {evidence['high']:+.2f}) {evidence['unit']}"


def _claims(claims: Rows) -> list[Section]:
    if not claims:
        return []
    rows = [
        [claim["claim"], VERDICTS.get(claim["verdict"], Badge("undecided")), evidence_text(claim["evidence"])]
        for claim in claims
    ]
    return [
        Section("Claims", tables=[Table(["claim", "verdict", "difference"], rows, text_columns=3)], notes=[_PAIRED])
    ]


def _result(rows: Rows, records: Sequence[Record]) -> list[Section]:
    if not rows:
        return []
    methods = list(dict.fromkeys(row["method"] for row in rows))
    columns = list(dict.fromkeys(row["column"] for row in rows))
    columns.sort(key=lambda column: not column.endswith("/avg"))
    cells = {(row["method"], row["column"]): row for row in rows}
    unit = f"{rows[0]['metric']} in {rows[0]['unit']}"
    headline = [column for column in columns if column.endswith("/avg")] or columns
    tables = [_headline([row for row in rows if row["column"] in headline], unit)]
    if len(headline) < len(columns):
        tables.append(_pivot(methods, columns, cells, unit))
    elif all(map(_AT_DISTANCE, columns)):
        overview = [_pivot(methods, columns, cells, unit)]
        drawings = _by_distance(rows, records)
        return [
            Section("What was measured", tables=overview, figures=drawings),
            Section("With intervals", tables=tables),
        ]
    series = {m: {_short(c): _interval(cells[m, c]) for c in columns if (m, c) in cells} for m in methods}
    drawing = figures.intervals(series, f"{rows[0]['metric']} ({rows[0]['unit']})")
    drawings = [Figure(drawing, "Every column with its 95 % interval."), *_along_the_stream(records)]
    return [Section("What was measured", tables=tables, figures=drawings)]


def _by_distance(rows: Rows, records: Sequence[Record]) -> list[Figure]:
    """One drawing per group of columns: the measured value against the distance of the target."""
    drawings: dict[str, dict[str, dict[float, figures.Interval]]] = {}
    for row in rows:
        group, _, distance = row["column"].rpartition("-")
        drawings.setdefault(group, {}).setdefault(row["method"], {})[float(distance)] = _interval(row)
    label, radii = str(rows[0]["metric"]), median_radii(records)
    return [
        Figure(
            figures.curves(series, label, "distance of s from the origin", _marks(group, radii.get(group, {}))),
            f"{group} shifts with 95 % intervals.{_about(radii.get(group, {}))}",
        )
        for group, series in drawings.items()
    ]


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


def _headline(rows: Rows, unit: str) -> Table:
    """Measured beside printed; a column that would say the same everywhere, or nothing, becomes part of the caption."""
    one = len({row["column"] for row in rows}) == 1
    printed = any(row["paper"] is not None for row in rows)
    names = ["method", *([] if one else ["column"]), "measured", "95 % interval", *(["paper"] if printed else [])]
    body = []
    for row in rows:
        where = [] if one else [row["column"]]
        paper = [value_text(row, "paper")] if printed else []
        interval = f"{value_text(row, 'low')} to {value_text(row, 'high')}"
        body.append([row["method"], *where, value_text(row), interval, *paper, f"{row['n']:,}"])
    caption = f"{rows[0]['column']}: {unit}" if one else unit
    return Table([*names, "predictions"], body, caption, text_columns=1 if one else 2)


def _pivot(methods: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Any], unit: str) -> Table:
    body = [[m, *(value_text(cells[m, c]) if (m, c) in cells else "" for c in columns)] for m in methods]
    for m in methods:
        printed = [value_text(cells[m, c], "paper") if (m, c) in cells else "" for c in columns]
        body += [[f"{m}, as printed", *printed]] if any(printed) else []
    return Table(["method", *map(_short, columns)], body, f"By column: {unit}")


def _along_the_stream(records: Sequence[Record]) -> list[Figure]:
    """Running error per method, averaged over its streams where all of them are equally long."""
    by_method: dict[str, list[list[float]]] = {}
    for record in records:
        if record.cell.kind == "adapt":
            by_method.setdefault(str(record.cell.config["method"]), []).append(record.deterministic["trace"])
    lengths = {len(trace) for traces in by_method.values() for trace in traces}
    if len(lengths) != 1 or lengths == {1}:
        return []
    means = {m: [sum(batch) / len(batch) for batch in zip(*traces, strict=True)] for m, traces in by_method.items()}
    series = {method: [100 * value for value in figures.running_mean(mean)] for method, mean in means.items()}
    caption = "Along the stream: mean error of the batches so far, averaged over the streams of each method."
    return [Figure(figures.traces(series), caption)]


def _cost(records: Sequence[Record]) -> list[Section]:
    adapted = [record for record in records if record.cell.kind == "adapt"]
    if not adapted:
        return []
    rows = []
    for method in dict.fromkeys(str(record.cell.config["method"]) for record in adapted):
        own = [record for record in adapted if record.cell.config["method"] == method]
        images = sum(record.deterministic["n"] for record in own)
        seconds = sum(record.timing["seconds"] for record in own)
        passes = [sum(record.deterministic["passes"].get(way, 0) for record in own) for way in ("forward", "backward")]
        rows.append(
            [method, *(f"{count:,}" for count in passes), f"{1000 * seconds / images:.2f}", f"{images / seconds:,.0f}"]
        )
    table = Table(["method", "forward passes", "backward passes", "ms per image", "images per second"], rows)
    remarks = dict.fromkeys(remark for record in adapted for remark in record.deterministic["warnings"])
    notes = [*mixed_weights(adapted), *remarks]
    return [Section("Cost and provenance", tables=[table], notes=notes, facts=_facts(adapted))]


def _facts(records: Sequence[Record]) -> dict[str, str]:
    """Everything the results state about where they come from; several values where cells differ."""
    facts: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.provenance.items():
            facts.setdefault(name, {})[str(value)] = None
    return {
        name: ", ".join(values) if len(values) <= 8 else f"{len(values)} different" for name, values in facts.items()
    }


def _unfinished(status: Status) -> list[Section]:
    rows: list[list[str | Badge]] = [[name, Badge("failed", "bad"), why] for name, why in status.failed.items()]
    rows += [[name, Badge("missing"), why] for name, why in status.missing.items()]
    return [Section("Without a result", tables=[Table(["cell", "state", "why"], rows, text_columns=3)])] if rows else []


def _short(column: str) -> str:
    return column.partition("/")[2] or column


def _interval(row: Mapping[str, Any]) -> figures.Interval:
    return row["value"], row["low"], row["high"]
