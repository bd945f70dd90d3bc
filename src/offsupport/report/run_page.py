"""The report of a run: what was measured, what the paper printed, which claims hold, how it was made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offsupport.bench.runs import Status, status
from offsupport.bench.store import Record, Store
from offsupport.core import files
from offsupport.report import figures
from offsupport.report.figures import (
    constraint_sections,
    curve_figures,
    episode_section,
    on_axes,
    stream_figures,
    theory_sections,
)
from offsupport.report.page import Badge, Download, Figure, Page, Section, Table, Tile, Value, write
from offsupport.report.provenance import sources
from offsupport.report.tables import as_csv, as_latex, claims_table, headline, pivot
from offsupport.report.words import plain_text, short_column
from offsupport.studies import TABLES, Options, cells_of, payload
from offsupport.studies import Table as StudyTable
from offsupport.studies.errors import error_rows, mixed_weights
from offsupport.studies.tables import Claim, Row, row_values

Rows = Sequence[Mapping[str, Any]]
_PAIRED = (
    "Intervals are 95 %, from a bootstrap over images (over runs, for synthetic data) that pairs the two methods. "
    "A claim is decided only where its interval excludes zero, or the bound it names."
)
_VERDICTS = (
    ("holds", "claims hold", "good"),
    ("does-not-hold", "do not hold", "bad"),
    ("undecided", "undecided", "open"),
)
CROWD = 6
"""From so many methods on, intervals of all columns in one drawing hide each other: the averages are drawn alone."""


def run_page(
    title: str,
    about: str,
    payload: Mapping[str, Any],
    status: Status,
    behind: Mapping[str, Any] | None = None,
    request: Mapping[str, Any] | None = None,
) -> Page:
    """Return the page of a run.

    Args:
        title: What was run.
        about: One sentence about the setting.
        payload: Rows and claims as ``reproduce --json`` prints them.
        status: Where the run stands.
        behind: Under ``rows`` and ``claims`` the keys of the cells behind each of them, in the same order.
        request: What was asked for, from which the commands to repeat it are made.
    """
    rows, claims, done = payload["rows"], payload["claims"], status.done
    found = sources(payload, behind or {}, done, request or {})
    sections = [*_claims(claims), *_result(rows, done), *_lists(payload)]
    sections += [*constraint_sections(done), *theory_sections(done)]
    sections += [episode_section(record) for record in done if record.cell.kind == "episode"]
    sections += [*_cost(done), *_unfinished(status)]
    return Page(
        title,
        f"{about}\n\n{_progress(status)}",
        sections,
        data=payload,
        sources=found,
        tiles=_tiles(rows, claims, status),
        downloads=_downloads(title, sections, rows),
    )


def _lists(payload: Mapping[str, Any]) -> list[Section]:
    """What a table lists beside its rows and claims, such as hyper-parameters."""
    lists = {name: lines for name, lines in payload.items() if name not in ("table", "scale", "rows", "claims")}
    return [
        Section(
            name.replace("_", " ").capitalize(),
            tables=[Table(list(lines[0]), [[plain_text(value) for value in line.values()] for line in lines])],
        )
        for name, lines in lists.items()
    ]


def _tiles(rows: Rows, claims: Rows, status: Status) -> list[Tile]:
    counts = status.counts()
    verdicts = Counter(claim["verdict"] for claim in claims)
    tiles = [Tile(str(verdicts[name]), words, tone) for name, words, tone in _VERDICTS if verdicts[name]]
    complete = counts["done"] == counts["total"]
    done = f"{counts['done']:,}" if complete else f"{counts['done']:,} of {counts['total']:,}"
    tiles.append(Tile(done, "cells", "" if complete else "open"))
    if rows:
        tiles.append(Tile(str(len({row["method"] for row in rows})), "rows compared"))
    seconds = sum(record.timing.get("seconds", 0.0) for record in status.done)
    return [*tiles, *([Tile(_duration(seconds), "of computing")] if seconds else [])]


def _duration(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _progress(status: Status) -> str:
    counts = status.counts()
    if counts["done"] == counts["total"]:
        return f"All {counts['total']} cells have a result."
    rest = f"{counts['failed']} failed, {counts['missing']} are missing"
    return f"{counts['done']} of {counts['total']} cells have a result; {rest}."


def _downloads(title: str, sections: Sequence[Section], rows: Rows) -> list[Download]:
    tables = [table for section in sections if section.heading in _EXPORTED for table in section.tables]
    if not rows:
        return []
    return [
        Download("report.csv", "text/csv", as_csv(rows), "CSV"),
        Download("report.tex", "application/x-tex", as_latex(tables, title), "LaTeX"),
    ]


def _claims(claims: Rows) -> list[Section]:
    return [Section("Claims", tables=[claims_table(claims)], notes=[_PAIRED])] if claims else []


def _result(rows: Rows, records: Sequence[Record]) -> list[Section]:
    if not rows:
        return []
    columns = list(dict.fromkeys(row["column"] for row in rows))
    averages = [row for row in rows if row["column"].endswith("/avg")]
    if on_axes(rows):
        drawings = [*curve_figures(rows, records), *stream_figures(records)]
        return [
            Section(_MEASURED, tables=[pivot(rows)], figures=drawings),
            Section(_FULL, tables=[headline(rows, rows)]),
        ]
    tables = [headline(averages or rows, rows), *([pivot(rows)] if len(columns) > 1 else [])]
    drawings = [_intervals(rows, averages), *stream_figures(records)]
    return [Section(_MEASURED, tables=tables, figures=drawings)]


_MEASURED, _FULL = "What was measured", "With intervals"
_EXPORTED = ("Claims", _MEASURED, _FULL)


def _intervals(rows: Rows, averages: Rows) -> Figure:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    crowded = averages and len(methods) > CROWD
    series: dict[str, dict[str, figures.Interval]] = {}
    for row in sorted(averages if crowded else rows, key=lambda row: not row["column"].endswith("/avg")):
        line, group = (row["column"], row["method"]) if crowded else (row["method"], short_column(row["column"]))
        series.setdefault(line, {})[group] = row["value"], row["low"], row["high"]
    what = "The average over columns" if crowded else "Every column"
    label = f"{rows[0]['metric']} ({rows[0]['unit']})"
    return Figure(figures.intervals(series, label), f"{what} with its 95 % interval.")


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
    rows: list[list[Value]] = [[name, Badge("failed", "bad"), why] for name, why in status.failed.items()]
    rows += [[name, Badge("missing"), why] for name, why in status.missing.items()]
    folded = f"All {len(rows)} of them" if len(rows) > 12 else ""
    table = Table(["cell", "state", "why"], rows, text_columns=3, folded=folded)
    return [Section("Without a result", tables=[table])] if rows else []


# From a run folder to its report.html, report.csv and report.tex.


def write_report(folder: Path | str) -> tuple[Path, dict[str, Any]]:
    """Write the report of a run folder into it, and its numbers beside it; return its path and the data it shows."""
    folder = Path(folder)
    request = Store(folder).request()
    if request["verb"] == "reproduce":
        table = TABLES[request["table"]]
        options = {**request["options"], "methods": tuple(request["options"]["methods"] or ()) or None}
        found = status(folder, cells_of(table, request["scale"], Options(**options)))
        title, about = table.title, _about(table, request)
        data, behind = _measured(table, request["scale"], found.done)
    else:
        title, about = f"Benchmark {folder.resolve().name}", "A grid of cells of the user's own."
        found = status(folder)
        rows = error_rows(found.done, {})
        data, behind = {"rows": [row_values(row) for row in rows], "claims": []}, _behind(rows, [])
    page = run_page(title, about, data, found, behind, request)
    for file in page.downloads:
        files.write_text(folder / file.name, file.text)
    path = folder / "report.html"
    write(page, path)
    return path, data


def _measured(table: StudyTable, scale: str, records: Sequence[Record]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``reproduce --json`` prints, and the cells behind it; every interval is computed once."""
    rows, claims = table.rows(records), table.claims(records)
    computed = dataclasses.replace(table, rows=lambda _: rows, claims=lambda _: claims)
    return payload(computed, scale, records), _behind(rows, claims)


def _behind(rows: list[Row], claims: list[Claim]) -> dict[str, Any]:
    return {"rows": [row.cells for row in rows], "claims": [claim.cells for claim in claims]}


def _about(table: StudyTable, request: dict[str, Any]) -> str:
    asked = ", ".join(f"--{name} {value}" for name, value in request["options"].items() if value and name != "methods")
    about = f"{table.name} at {request['scale']} scale: {table.scales[request['scale']]}"
    return about + (f", but with {asked}." if asked else ".")
