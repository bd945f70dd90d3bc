"""offsupport bench estimate: what a table or a recipe will cost, before anything starts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsupport.cli.bench import DataFolder
from offsupport.cli.output import JSON, emit_json, emit_table, say
from offsupport.cli.reproduce import grid_of, requested
from offsupport.cli.settings import AllowCode
from offsupport.core.errors import ConfigError

if TYPE_CHECKING:
    from offsupport.bench import Cell, Place
    from offsupport.studies.costs import Cost, Share


def estimate(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="A table (see `offsupport list tables`), or a recipe: a YAML file.")],
    scale: str = typer.Option("smoke", help="Scale of the table."),
    runs: int | None = typer.Option(None, min=1, help="Independent data sets, for synthetic tables."),
    seeds: int | None = typer.Option(None, min=1, help="Seeds 0, 1, ... of each cell of the table."),
    methods: str | None = typer.Option(None, help="Only these of the table, separated by commas."),
    parts: str | None = typer.Option(None, help="Only these parts of the table, likewise."),
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder: results there count as done and tell what others cost.")
    ] = None,
    tflops: float = typer.Option(30.0, help="What a GPU sustains, in 1e12 operations a second, if none is there."),
    allow_code: AllowCode = False,
    as_json: bool = JSON,
) -> None:
    """Say how many core-hours and GPU-hours a table or recipe will take; nothing is computed but small trials."""
    from offsupport.studies.costs import estimate_cost

    if what.endswith((".yaml", ".yml")):
        cells, place = _recipe(context, Path(what), out, data)
    else:
        request = requested(what, scale, runs=runs, seeds=seeds, methods=methods, parts=parts)
        cells, place = grid_of(request, out, data, allow_code)
    cost = estimate_cost(cells, place, tflops)
    if as_json:
        emit_json({"what": what, "folder": str(place.folder), **asdict(cost)})
        return
    _print(cost)


def _recipe(context: typer.Context, path: Path, out: Path | None, data: Path | None) -> tuple[list[Cell], Place]:
    from offsupport.bench import Place
    from offsupport.studies.grids import read_recipe

    for name in ("scale", "runs", "seeds", "methods", "parts", "allow_code"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is for a table, and {path} is a recipe.", "Write it into the recipe.")
    return read_recipe(path), Place(out or Path("runs") / path.stem, data)


def _print(cost: Cost) -> None:
    hours = ["core-hours"] * (cost.core_hours > 0) + ["GPU-hours"] * (cost.gpu_hours > 0)
    rest = ["unknown"] * bool(cost.unknown)
    names = ["method", "cells", "done", *hours, *rest, "from"]
    body = [[name, *_line(share, hours, rest)] for name, share in cost.methods.items()]
    emit_table(f"{cost.cells} cells, {cost.done} done", names, body, text_columns=1)
    say(cost.words())


def _line(share: Share, hours: list[str], rest: list[str]) -> list[str]:
    values = {"core-hours": share.core_hours, "GPU-hours": share.gpu_hours}
    basis = ", ".join(name for name, count in share.sources.items() if count)
    counts = [str(share.cells), str(share.done)]
    return [*counts, *(f"{values[name]:.3f}" for name in hours), *(str(share.unknown) for _ in rest), basis]
