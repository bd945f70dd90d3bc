"""offsupport reproduce: a table or figure of the paper, measured, beside what was printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offsupport.cli.bench import Address, DataFolder, ExecutorName, RunFolder, Workers, finish, print_rows
from offsupport.cli.output import JSON, emit_json, emit_table, say


def reproduce(
    table: str = typer.Argument(..., help="table2, ...; see `offsupport list tables`."),
    scale: str = typer.Option(
        "smoke", help="smoke: needs nothing; small: two CPU cores; paper: as published (see `offsupport list tables`)."
    ),
    runs: int | None = typer.Option(None, min=1, help="Independent data sets, for synthetic tables."),
    seeds: int | None = typer.Option(None, min=1, help="Run seeds 0, 1, ... of each cell."),
    methods: str | None = typer.Option(None, help="Only these, separated by commas."),
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, to be resumed; default runs/TABLE-SCALE.")] = None,
    workers: Workers = 0,
    executor: ExecutorName = "local",
    address: Address = None,
    as_json: bool = JSON,
) -> None:
    """Run a table of the paper and say which of its claims hold."""
    from dataclasses import asdict

    from offsupport.report.run_page import write_report
    from offsupport.report.words import evidence_text, number
    from offsupport.studies import TABLES, Options, cells_of

    declared = TABLES[table]
    names = tuple(name.strip() for name in methods.split(",")) if methods else None
    options = Options(runs=runs, seeds=seeds, methods=names)
    folder = out or Path("runs") / f"{table}-{scale}"
    request = {"verb": "reproduce", "table": table, "scale": scale, "options": asdict(options)}
    finish(folder, data, cells_of(declared, scale, options), request, workers, executor, address)
    path, found = write_report(folder)
    if as_json:
        emit_json(found)
        return
    if found["rows"]:
        print_rows(f"{declared.title}: {found['rows'][0]['metric']} in {found['rows'][0]['unit']}", found["rows"])
    for name, lines in declared.more().items():
        _print_lines(f"{declared.title} ({name.replace('_', ' ')})", lines)
    for row in found["rows"]:
        if row["paper"] is not None:
            typer.echo(f"{row['method']} on {row['column']}: {number(row)}, the paper printed {row['paper']}")
    for claim in found["claims"]:
        typer.echo(f"{claim['verdict']:>13}  {claim['claim']}: {evidence_text(claim['evidence'])}")
    say(f"Report: {path}")


def _print_lines(title: str, lines: list[dict[str, Any]]) -> None:
    """Print a list of equally named values as a table."""
    from offsupport.report.words import plain_text

    body = [[plain_text(value) for value in line.values()] for line in lines]
    emit_table(title, list(lines[0]), body, text_columns=len(lines[0]))


def report(
    folder: RunFolder,
    as_json: bool = JSON,
) -> None:
    """Write the report of a run again, from whatever results are there."""
    from offsupport.report.run_page import write_report

    path, found = write_report(folder)
    if as_json:
        emit_json({"report": str(path), **found})
    else:
        typer.echo(str(path))
