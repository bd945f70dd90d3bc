"""The report of a run: what was measured, what the paper printed, which claims hold, how it was made.

The second part is what a click on a number opens: the cells behind it, what they were computed from, and how to compute
them again. The third takes a run folder to its report.html, report.csv and report.tex.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offsupport.bench.cell import label, require_few
from offsupport.bench.runs import Run, Status
from offsupport.bench.store import Record
from offsupport.core import files
from offsupport.core.errors import FileError
from offsupport.core.escaping import escape
from offsupport.core.ownership import require_own
from offsupport.core.registry import names_code
from offsupport.report import figures, page
from offsupport.report.frontier import frontier_sections
from offsupport.report.page import Badge, Download, Figure, Page, Section, Tile, Value
from offsupport.report.tables import (
    EXPORT_MARKS,
    LOWER_IS_BETTER,
    as_csv,
    as_latex,
    claims_table,
    column_titles,
    evidence_text,
    headline,
    interval_text,
    paper_text,
    pivot,
    plain_text,
    unit_text,
    value_text,
)
from offsupport.results.rows import ENOUGH, Claim, Listing, Measured, Row, Verdict
from offsupport.studies import TABLES, AdaptConfig, Request, error_rows
from offsupport.studies.errors import mixed_weights
from offsupport.studies.models import unpinned

_PAIRED = (
    "Intervals are 95 %, from a bootstrap over images (over runs, for synthetic data) that pairs the two methods. "
    "A claim is decided only where its interval lies on one side of the dashed line, which is the bound it names or "
    f"else zero, and never by fewer than {ENOUGH} images or runs."
)
_VERDICTS: tuple[tuple[Verdict, str, str], ...] = (
    ("holds", "claims hold", "good"),
    ("does-not-hold", "do not hold", "bad"),
    ("undecided", "undecided", "open"),
)
LONG = 40
"""A listing of more lines is folded."""
TALL = 1.35
"""A drawing of more height than so many widths does not open a page."""
CROWD = 6
"""From so many methods on, intervals of all columns in one drawing hide each other: the averages are drawn alone, or
columns and methods change places."""


def run_page(title: str, about: str, measured: Measured, status: Status, request: Request | None = None) -> Page:
    """Return the page of a run.

    Args:
        title: What was run.
        about: One sentence about the setting.
        measured: What came out.
        status: Where the run stands.
        request: What was asked for, from which the commands to repeat it are made; a grid of the user's own by default.
    """
    rows, done = measured.rows, status.done
    results = _result(rows, done)
    lead, results = _lead(results)
    sections = [*_claims(measured.claims), *results, *map(_listed, measured.listings)]
    sections += [
        *frontier_sections(done),
        *figures.regret_sections(done),
        *figures.constraint_sections(done),
        *figures.theory_sections(done),
    ]
    sections += [figures.episode_section(record) for record in done if record.cell.kind == "episode"]
    sections += [*_cost(done), *_unfinished(status)]
    return Page(
        title,
        f"{about}{_best(rows)}\n\n{_progress(status)}",
        sections,
        data=measured.to_dict(),
        sources=sources(measured, done, request or Request(), status.cells),
        tiles=_tiles(measured, status),
        downloads=_downloads(title, sections, rows),
        lead=lead,
    )


def _best(rows: Sequence[Row]) -> str:
    """Say which row has the best average beside the model alone, where there are averages of one kind."""
    averages = {row.method: row for row in rows if row.column.endswith("/avg")}
    if len(averages) < 2 or len({row.column for row in averages.values()}) > 1:
        return ""
    sign = 1 if rows[0].metric in LOWER_IS_BETTER else -1
    best = min(averages.values(), key=lambda row: sign * row.value)
    alone = averages.get("source", best)
    beside = "" if alone is best else f"; the model alone has {value_text(alone)}"
    kind = "lowest" if sign > 0 else "highest"
    unit = " %" if best.unit == "percent" else ""
    return f" The {kind} average {best.metric} is that of {best.method}, {value_text(best)}{unit}{beside}."


def _lead(results: Sequence[Section]) -> tuple[list[Figure], list[Section]]:
    """Take the first drawing out of the results, if it fits on a screen: a page opens with it."""
    if not results or not results[0].figures or figures.shape(results[0].figures[0].svg) > TALL:
        return [], list(results)
    first, *rest = results[0].figures
    return [first], [dataclasses.replace(results[0], figures=rest), *results[1:]]


def _listed(listing: Listing) -> Section:
    body = [[plain_text(value) for value in line] for line in listing.lines]
    folded = f"All {len(body)} lines" if len(body) > LONG else ""
    words = 1
    while (
        listing.filters and words < len(listing.columns) and all(isinstance(line[words], str) for line in listing.lines)
    ):
        words += 1
    folded = "" if listing.filters else folded  # whoever leaves lines out wants to see the rest
    table = page.Table(listing.columns, body, text_columns=words, folded=folded, filters=listing.filters)
    return Section(listing.title.capitalize(), tables=[table])


def _tiles(measured: Measured, status: Status) -> list[Tile]:
    counts = status.counts()
    verdicts = Counter(claim.verdict for claim in measured.claims)
    tiles = [Tile(str(verdicts[name]), words, tone) for name, words, tone in _VERDICTS if verdicts[name]]
    complete = counts["done"] == counts["total"]
    done = f"{counts['done']:,}" if complete else f"{counts['done']:,} of {counts['total']:,}"
    tiles.append(Tile(done, "cells", "" if complete else "open"))
    if measured.rows:
        tiles.append(Tile(str(len({row.method for row in measured.rows})), "rows compared"))
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


def _downloads(title: str, sections: Sequence[Section], rows: Sequence[Row]) -> list[Download]:
    tables = [table for section in sections if section.heading in _EXPORTED for table in section.tables]
    if not rows:
        return []
    return [
        Download("report.csv", "text/csv", as_csv(rows), "CSV"),
        Download("report.tex", "application/x-tex", as_latex(tables, title), "LaTeX"),
    ]


def _claims(claims: Sequence[Claim]) -> list[Section]:
    return [Section("Claims", tables=[claims_table(claims)], notes=[_PAIRED])] if claims else []


def _result(rows: Sequence[Row], records: Sequence[Record]) -> list[Section]:
    if not rows:
        return []
    columns = list(dict.fromkeys(row.column for row in rows))
    averages = [row for row in rows if row.column.endswith("/avg")]
    if figures.on_axes(rows):
        drawings = [*figures.curve_figures(rows, records), *figures.stream_figures(records)]
        return [
            Section(_MEASURED, tables=[pivot(rows)], figures=drawings),
            Section(_FULL, tables=[headline(rows, rows)]),
        ]
    tables = [headline(averages or rows, rows), *([pivot(rows)] if len(columns) > 1 else [])]
    drawings = [*_intervals(rows, averages), *figures.stream_figures(records)]
    return [Section(_MEASURED, tables=tables, figures=drawings)]


_MEASURED, _FULL = "What was measured", "With intervals"
_EXPORTED = ("Claims", _MEASURED, _FULL)


def _intervals(rows: Sequence[Row], averages: Sequence[Row]) -> list[Figure]:
    methods = list(dict.fromkeys(row.method for row in rows))
    titles = column_titles([row.column for row in rows])
    few = len({row.column for row in rows}) <= CROWD
    crowded = len(methods) > CROWD and (few or bool(averages))
    series: dict[str, dict[str, figures.Interval]] = {}
    for row in sorted(averages or rows if crowded else rows, key=lambda row: not row.column.endswith("/avg")):
        line, group = (row.column, row.method) if crowded else (row.method, titles[row.column])
        series.setdefault(line, {})[group] = row.value, row.low, row.high
    what = "The average over columns" if crowded and averages else "Every column"
    label = f"{rows[0].metric} ({rows[0].unit})"
    return [
        Figure(figures.intervals(part, label), f"{what}{rows_shown} with its 95 % interval.")
        for rows_shown, part in figures.few_at_a_time(series).items()
    ]


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
    table = page.Table(["method", "forward passes", "backward passes", "ms per image", "images per second"], rows)
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
    rows: list[list[Value]] = [[label(cell), Badge("failed", "bad"), why] for cell, why in status.failed.items()]
    rows += [[label(cell), Badge("missing"), why] for cell, why in status.missing.items()]
    folded = f"All {len(rows)} of them" if len(rows) > 12 else ""
    table = page.Table(["cell", "state", "why"], rows, text_columns=3, folded=folded)
    return [Section("Without a result", tables=[table])] if rows else []


# What a click on a number opens: the cells behind it, what they were computed from, and how to compute them again.


PARTS = ("settings", "result", "origin")
"""What is told of a cell: what was asked, what it took, what it was computed from."""
_OPTIONS = (
    *("dataset", "severity", "protocol", "model", "limit", "block", "order", "preset"),
    *("batch_size", "source_images", "threads"),
)
"""Settings of an adaptation cell that ``bench run`` has an option for, one value each."""
_AXES = {"corruption": "corruptions", "method": "methods"}


def sources(
    measured: Measured, records: Sequence[Record], request: Request, folder: str = "cells"
) -> dict[str, Any] | None:
    """Return what the page embeds, as JSON values, or None where there is nothing to ask about.

    Args:
        measured: Rows and claims, which know the cells behind them.
        records: The results.
        request: What was asked for.
        folder: Where the result files are, as seen from the page.
    """
    known = {record.key: i for i, record in enumerate(records)}
    told = [(f"rows-{i}", row.cells, *_row(row)) for i, row in enumerate(measured.rows)]
    told += [(f"claims-{i}", claim.cells, *_claim(claim)) for i, claim in enumerate(measured.claims)]
    entries = {}
    for name, keys, title, facts in told:
        own = [records[known[key]] for key in keys if key in known]
        entries[name] = {
            "title": title,
            "facts": list((facts | _effort(own)).items()),  # pairs, as the page keeps their order
            "cells": [known[record.key] for record in own],
            "command": command(request, own, folder),
        }
    if not entries:
        return None
    common, cells = _factored([_told(record) for record in records])
    for cell, record in zip(cells, records, strict=True):
        cell["key"] = record.key
    return {"parts": list(PARTS), "entries": entries, "common": common, "cells": cells, "folder": folder}


def command(request: Request, records: Sequence[Record], folder: str = "cells") -> str:
    """Return what to type to compute results again, into a folder of their own."""
    if not request.table:
        return _bench_command(records) or _rerun(records, folder)
    narrow = TABLES[request.table].asked
    wanted = narrow(records) if narrow and records else request.options
    asked = {name: value for name, value in dataclasses.asdict(wanted).items() if value}
    asked |= {name: ",".join(value) for name, value in asked.items() if isinstance(value, tuple)}
    options = {"scale": request.scale, **asked, **_data(records), "out": "again"}
    return f"offsupport reproduce {request.table} {_typed(options)}"


def _bench_command(records: Sequence[Record]) -> str:
    """``bench run`` with options, where options can say it; else nothing."""
    configs = [record.cell.config for record in records]
    if not configs or any(record.cell.kind != "adapt" or not _sayable(record.cell.config) for record in records):
        return ""
    shared = {name: configs[0].get(name) for name in _OPTIONS}
    if any(config.get(name) != value for config in configs for name, value in shared.items()):
        return ""
    defaults = {field.name: field.default for field in dataclasses.fields(AdaptConfig)}
    changed = {name: value for name, value in shared.items() if name == "dataset" or value != defaults[name]}
    options: dict[str, Any] = {name.replace("_", "-"): value for name, value in changed.items()}
    code = ""
    if "model" in options:
        options["model"] = unpinned(options["model"])
        code = " --allow-code" if names_code(options["model"]) else ""
    for name, option in _AXES.items():
        values = dict.fromkeys(str(config[name]) for config in configs if config[name] is not None)
        options |= {option: ",".join(values)} if values else {}
    seeds = 1 + max(config["seed"] for config in configs)
    options |= {"seeds": seeds} if seeds > 1 else {}
    return f"offsupport bench run {_typed({**options, **_data(records), 'out': 'again'})}{code}"


def _sayable(config: Mapping[str, Any]) -> bool:
    plain = not config["hyper"] and config.get("shard") is None and config["source_split"] == "train"
    return plain and not isinstance(config["corruption"], list | tuple)


def _rerun(records: Sequence[Record], folder: str) -> str:
    lines = [f"rm {shlex.quote(f'{folder}/{record.key}.json')}" for record in records]
    return "\n".join([*lines, "# then the command that made this run, with the folder of this page as --out"])


def _data(records: Sequence[Record]) -> dict[str, str]:
    sets = {str(record.cell.config.get("dataset", "digits")) for record in records}
    return {} if all(name.startswith("digits") for name in sets) else {"data": "DATA"}


def _typed(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items())


def _row(row: Row) -> tuple[str, dict[str, str]]:
    facts = {unit_text(row): value_text(row), "95 % interval": interval_text(row), "predictions": f"{row.n:,}"}
    facts |= {"printed in the paper": paper_text(row)} if row.paper is not None else {}
    facts |= {"deviation over seeds": f"{row.deviation:.2f}"} if row.deviation is not None else {}
    return f"{row.method}, {row.column}", facts


def _claim(claim: Claim) -> tuple[str, dict[str, str]]:
    evidence = claim.evidence
    facts = {"verdict": claim.verdict.replace("-", " "), "quantity": evidence.quantity}
    facts |= {"measured": evidence_text(evidence), "predictions": f"{evidence.n:,}"}
    return claim.claim, facts


def _effort(records: Sequence[Record]) -> dict[str, str]:
    """Seeds and seconds of all cells together."""
    seeds = sorted({seed for record in records for seed in _seeds(record)})
    seconds = sum(record.timing.get("seconds", 0.0) for record in records)
    found = {"seeds": _ranges(seeds), "seconds, all cells": f"{seconds:.1f}" if seconds else ""}
    return {name: words for name, words in found.items() if words}


def _seeds(record: Record) -> Iterable[int]:
    config = record.cell.config
    if "seed" in config:
        return [int(config["seed"])]
    if "first" not in config:
        return []
    require_few(config["runs"])
    return range(config["first"], config["first"] + config["runs"])


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in ascending order as a person would write them: 0 to 4, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in spans)


def _told(record: Record) -> dict[str, dict[str, Any]]:
    told = {"error", "n", "metric"}
    measured = {name: value for name, value in record.deterministic.items() if name in told}
    events = {name: count for name, count in record.deterministic.get("events", {}).items() if count}
    result = {**measured, **record.timing, **({"events": events} if events else {})}
    settings = {"kind": record.cell.kind, **record.cell.config}
    return dict(zip(PARTS, (settings, result, dict(record.provenance)), strict=True))


def _factored(cells: Sequence[Mapping[str, dict[str, Any]]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take out what all cells share, so that a thousand of them stay small."""
    common: dict[str, Any] = {}
    for part in PARTS:
        first = cells[0][part] if cells else {}
        common[part] = {n: v for n, v in first.items() if all(n in cell[part] and cell[part][n] == v for cell in cells)}
    rest = [{part: {n: v for n, v in cell[part].items() if n not in common[part]} for part in PARTS} for cell in cells]
    return common, rest


# From a run folder to its report.html, report.csv and report.tex.


def write_report(run: Run | Path | str) -> tuple[Path, Measured]:
    """Write the report of a run into its folder, and its numbers beside it; return its path and what it shows.

    Args:
        run: The run, whose results may have been read already; or its folder.
    """
    run = run if isinstance(run, Run) else Run(run)
    try:
        report, measured = _page_of(run)
    except _SENSELESS as error:
        raise FileError(
            f"A result in {run.folder} is not what cells of its kind compute ({type(error).__name__}: {error}).",
            "Find it with offsupport bench verify, delete it and run the grid again.",
        ) from error
    path = run.folder / "report.html"
    page.require_own_page(path)
    for file in report.downloads:
        require_own(run.folder / file.name, *EXPORT_MARKS)
        files.write_text(run.folder / file.name, file.text)
    page.write(report, path)
    return path, measured


_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What measuring raises where a number is a word, or a part is missing: a right checksum says nothing about either."""


def _page_of(run: Run) -> tuple[Page, Measured]:
    request = Request.of(run.store.request())
    if request.table:
        table = TABLES[request.table]
        cells = table.cells(request.scale, request.options) if table.asked is None else None
        status = _parsed(run.status(cells))
        measured = table.measure(request.scale, status.done)
        title, about = table.title, _about(request, table.scales[request.scale])
    else:
        status = _parsed(run.status())
        measured = Measured(rows=error_rows(status.done))
        title, about = f"Benchmark {escape(run.folder.resolve().name)}", "A grid of cells of the user's own."
    return run_page(title, about, measured, status, request), measured


def _parsed(status: Status) -> Status:
    """Return a status with its results as a plain list: a page looks into all of them, many times."""
    return dataclasses.replace(status, done=list(status.done))


def _about(request: Request, scale: str) -> str:
    asked = dataclasses.asdict(request.options)
    words = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    changed = ", ".join(f"--{name} {value}" for name, value in words.items() if value and name != "methods")
    return f"{request.table} at {request.scale} scale: {scale}" + (f", but with {changed}." if changed else ".")
