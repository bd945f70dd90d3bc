"""offsupport reproduce: a table or figure of the paper, measured, beside what was printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offsupport.cli.bench import DataFolder, RunFolder, finish
from offsupport.cli.output import JSON, emit_json, emit_table, say


def reproduce(
    table: str = typer.Argument(..., help="table2, ...; see `offsupport list tables`."),
    scale: str = typer.Option(
        "smoke", help="smoke: seconds, nothing needed; small: two CPU cores; paper: as published."
    ),
    runs: int | None = typer.Option(None, min=1, help="Independent data sets, for synthetic tables."),
    seeds: int | None = typer.Option(None, min=1, help="Run seeds 0, 1, ... of each cell."),
    methods: str | None = typer.Option(None, help="Only these, separated by commas."),
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, to be resumed; default runs/TABLE-SCALE.")] = None,
    workers: int = typer.Option(0, min=0, help="Processes; 0 for one per core."),
    as_json: bool = JSON,
) -> None:
    """Run a table of the paper and say which of its claims hold."""
    from dataclasses import asdict

    from offsupport.paper import TABLES, Options, cells_of
    from offsupport.report.runs import write_report

    declared = TABLES[table]
    names = tuple(name.strip() for name in methods.split(",")) if methods else None
    options = Options(runs=runs, seeds=seeds, methods=names)
    folder = out or Path("runs") / f"{table}-{scale}"
    request = {"verb": "reproduce", "table": table, "scale": scale, "options": asdict(options)}
    finish(folder, data, cells_of(declared, scale, options), request, workers)
    path, found = write_report(folder)
    if as_json:
        emit_json(found)
        return
    _print_rows(declared.title, found["rows"])
    for claim in found["claims"]:
        evidence = claim["evidence"]
        interval = f"{evidence['value']:+.1f} ({evidence['low']:+.1f} to {evidence['high']:+.1f}) {evidence['unit']}"
        typer.echo(f"{claim['verdict']:>13}  {claim['claim']}: {interval}")
    say(f"Report: {path}")


def report(
    folder: RunFolder,
    as_json: bool = JSON,
) -> None:
    """Write the report of a run again, from whatever results are there."""
    from offsupport.report.runs import write_report

    path, found = write_report(folder)
    if as_json:
        emit_json({"report": str(path), **found})
    else:
        typer.echo(str(path))


def _print_rows(title: str, rows: list[dict[str, object]]) -> None:
    from offsupport.report.run_page import number

    shown = [row for row in rows if str(row["column"]).endswith("/avg")] or rows
    body = [
        [str(row["method"]), str(row["column"]), number(row), "" if row["paper"] is None else f"{row['paper']}"]
        for row in shown
    ]
    emit_table(title, ["method", "column", f"{rows[0]['metric']} ({rows[0]['unit']})", "paper"], body)
