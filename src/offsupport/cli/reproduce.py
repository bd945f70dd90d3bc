"""offsupport reproduce: a table or figure of the paper, measured, beside what was printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsupport.cli.bench import (
    Address,
    CellMinutes,
    DataFolder,
    ExecutorName,
    RunFolder,
    Workers,
    finish,
    full_disk_is_incomplete,
    print_rows,
)
from offsupport.cli.output import JSON, emit_json, emit_table, say, tell
from offsupport.cli.settings import AllowCode, allowed
from offsupport.core.errors import ConfigError

if TYPE_CHECKING:
    from offsupport.bench import Cell, Place
    from offsupport.results import Measured
    from offsupport.studies import Request


def reproduce(
    table: str = typer.Argument(..., help="table2, ...; see `offsupport list tables`."),
    scale: str = typer.Option(
        "smoke", help="smoke: needs nothing; small: two CPU cores; paper: as published (see `offsupport list tables`)."
    ),
    runs: int | None = typer.Option(None, min=1, help="Independent data sets, for synthetic tables."),
    seeds: int | None = typer.Option(None, min=1, help="Run seeds 0, 1, ... of each cell."),
    methods: str | None = typer.Option(None, help="Only these, separated by commas."),
    parts: str | None = typer.Option(None, help="Only these parts of a table that is run part by part, likewise."),
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, to be resumed; default runs/TABLE-SCALE.")] = None,
    workers: Workers = 0,
    executor: ExecutorName = "local",
    address: Address = None,
    cell_minutes: CellMinutes = None,
    allow_code: AllowCode = False,
    as_json: bool = JSON,
) -> None:
    """Run a table of the paper and say which of its claims hold."""
    from offsupport.report.run_page import write_report
    from offsupport.studies import TABLES

    request = requested(table, scale, runs=runs, seeds=seeds, methods=methods, parts=parts)
    cells, place = grid_of(request, out, data, allow_code)
    with full_disk_is_incomplete():
        path, found = write_report(finish(place, cells, request, workers, executor, address, cell_minutes))
    if as_json:
        emit_json(found.to_dict())
        return
    _print_measured(TABLES[table].title, found)
    say(f"Report: {path}")


def requested(
    table: str, scale: str, *, runs: int | None, seeds: int | None, methods: str | None, parts: str | None
) -> Request:
    """Return what the options ask of a table; lists are separated by commas."""
    from offsupport.studies import TABLES, Request, TableOptions

    TABLES[table]  # an unknown one is said first
    chosen, pieces = _names("--methods", methods), _names("--parts", parts)
    return Request(table, scale, TableOptions(runs=runs, seeds=seeds, methods=chosen, parts=pieces))


def grid_of(request: Request, out: Path | None, data: Path | None, allow_code: bool) -> tuple[list[Cell], Place]:
    """Return the cells of a table, and where they run."""
    from offsupport.bench.cell import Place, code_of
    from offsupport.studies import TABLES

    cells = TABLES[request.table].cells(request.scale, request.options)
    folder = out or Path("runs") / f"{request.table}-{request.scale}"
    # The cells are those of the table, which is code that is installed: what they name is named by nobody else.
    return cells, Place(folder, data, code=allowed((name for cell in cells for name in code_of(cell)), allow_code))


def _names(option: str, given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not names:  # a variable of a script that is empty: everything would be run, for hours
        raise ConfigError(f"{option} names nothing.", "Name some, separated by commas, or leave it out for all.")
    return names


def _print_measured(title: str, found: Measured) -> None:
    from offsupport.report.tables import evidence_text, number, plain_text, unit_text

    if found.rows:
        print_rows(f"{title}: {unit_text(found.rows[0])}", found.rows)
    for listing in found.listings:
        body = [[plain_text(value) for value in line] for line in listing.lines]
        emit_table(f"{title} ({listing.title})", listing.columns, body, text_columns=len(listing.columns))
    for row in found.rows:
        if row.paper is not None:
            tell(f"{row.method} on {row.column}: {number(row)}, the paper printed {row.paper}")
    for claim in found.claims:
        tell(f"{claim.verdict:>13}  {claim.claim}: {evidence_text(claim.evidence)}")


def report(
    folder: RunFolder,
    as_json: bool = JSON,
) -> None:
    """Write the report of a run again, from whatever results are there."""
    from offsupport.report.run_page import write_report

    path, found = write_report(folder)
    if as_json:
        emit_json({"report": str(path), **found.to_dict()})
    else:
        tell(str(path))
