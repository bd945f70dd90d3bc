"""offsupport bench verify and diff: whether results can be had again, and in what two runs differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from offsupport.cli.bench import DataFolder, RunFolder, Workers
from offsupport.cli.output import JSON, emit_json, emit_table, say

Result = Annotated[Path, typer.Argument(help="Run folder or result file.")]
WIDTH = 40
"""Characters of a value that a table shows."""


def verify(
    folder: RunFolder,
    sample: int = typer.Option(5, min=1, help="How many results to compute again."),
    seed: int = typer.Option(0, help="Seed of the choice."),
    data: DataFolder = None,
    workers: Workers = 0,
    as_json: bool = JSON,
) -> None:
    """Compute a random sample of results again and compare; the run folder is only read."""
    from offsupport.bench.verify import require_same
    from offsupport.bench.verify import verify as check

    found = check(folder, data, sample, seed, workers, announce=say)
    if as_json:
        emit_json({"folder": str(folder), **asdict(found)})
    else:
        typer.echo(found.words() + ("" if found.different else " All the same."))
    require_same(found, folder)


def diff(a: Result, b: Result, as_json: bool = JSON) -> None:
    """Say in which settings, measurements or provenance two runs, or two results, differ; times aside."""
    from offsupport.bench.compare import compare

    found = compare(a, b)
    if as_json:
        emit_json({"a": str(a), "b": str(b), "same": not found, "differences": [each.to_dict() for each in found]})
    elif not found:
        typer.echo("The same, but for the times.")
    else:
        rows = [[each.field, str(each.cells), _short(each.a), _short(each.b), each.first] for each in found]
        emit_table("What differs, and how in the first cell", ["field", "cells", "a", "b", "first cell"], rows)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "\u2026"
