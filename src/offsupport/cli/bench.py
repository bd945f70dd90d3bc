"""offsupport bench: grids of the user's own. A rerun computes what is missing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offsupport.cli.output import JSON, emit_in_parts, emit_json, emit_table, say, tell
from offsupport.cli.settings import AllowCode, allowed

if TYPE_CHECKING:
    from offsupport.bench import Cell, Place
    from offsupport.bench.runs import Run
    from offsupport.results import Row
    from offsupport.studies import Request

DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets; default $OFFSUPPORT_DATA.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
Workers = Annotated[int, typer.Option(min=0, help="Cells at a time; 0 for one per core, or per GPU where needed.")]
ExecutorName = Annotated[Literal["local", "ray"], typer.Option(help="Processes on this machine, or a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="HOST:PORT of the Ray cluster; default: one on this machine.")]
CellMinutes = Annotated[
    float | None, typer.Option(help="A cell that takes longer has failed, and the others go on; default: no limit.")
]

bench = typer.Typer(no_args_is_help=True, help="Run grids of cells; a rerun computes only what is missing.")


@bench.command()
def run(
    context: typer.Context,
    recipe: Annotated[Path | None, typer.Argument(help="Grid in a YAML file; else options say what to run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, to be resumed; default runs/RECIPE.")] = None,
    dataset: str = typer.Option("digits-c", help="Data set."),
    corruptions: str = typer.Option("", help="Names separated by commas, 'all' for the 15 standard ones; none: clean."),
    methods: str = typer.Option("", help="Names separated by commas."),
    severity: int = typer.Option(5, min=1, help="Severity of the corruptions."),
    seeds: int = typer.Option(1, min=1, help="Run seeds 0, 1, ... of each cell."),
    protocol: str = typer.Option("online", help="online, continual (all corruptions in one stream) or episodic."),
    model: str = typer.Option("digits-small", help="Name of a model, or module:function with --allow-code."),
    allow_code: AllowCode = False,
    data: DataFolder = None,
    limit: int | None = typer.Option(None, min=1, help="Only so many images, drawn at random."),
    block: int | None = typer.Option(None, min=1, help="Corrupt only a square of this side."),
    order: str = typer.Option("iid", help="Order of the stream: iid, sorted or dirichlet."),
    preset: str | None = typer.Option(
        None, help="Hyper-parameters: cifar10, cifar100, imagenet (published), cifar10-small."
    ),
    batch_size: int = typer.Option(128, min=1, help="Images per batch."),
    source_images: int = typer.Option(2000, min=0, help="Training images for methods that use source statistics."),
    threads: int = typer.Option(1, min=1, help="Threads per cell; part of what a result depends on."),
    device: Literal["cpu", "cuda"] = typer.Option("cpu", help="Where to compute; with cuda every worker has a GPU."),
    workers: Workers = 0,
    executor: ExecutorName = "local",
    address: Address = None,
    cell_minutes: CellMinutes = None,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show the grid and what it will cost."),
    as_json: bool = JSON,
) -> None:
    """Run every combination of data sets, methods and seeds, from a recipe or from options."""
    from offsupport.bench import Place
    from offsupport.core.config import build
    from offsupport.studies import Request
    from offsupport.studies.grids import GridRecipe, read_recipe, recipe_cells

    if recipe is not None:
        _refuse_both(context)
        cells = read_recipe(recipe)
    else:
        images: dict[str, Any] = {"dataset": dataset, "model": model, "order": order, "limit": limit}
        images |= {
            "source_images": source_images,
            "corruptions": _names(corruptions),
            "severities": [severity],
            "blocks": [block],
        }
        chosen = [{"method": name, "preset": preset} for name in _names(methods)]
        grid: dict[str, Any] = {"datasets": [images], "methods": chosen, "seeds": seeds, "protocol": protocol}
        grid |= {"batch_size": batch_size, "threads": threads, "device": device}
        cells = recipe_cells(build(GridRecipe, grid, "the grid"), Path())
    folder = out or Path("runs") / (recipe.stem if recipe else "bench")
    place = Place(folder, data, code=allowed([model], allow_code))
    if dry_run:
        show_cost(cells, place, as_json)
        return
    with full_disk_is_incomplete():
        _show(finish(place, cells, Request(), workers, executor, address, cell_minutes), as_json)


@bench.command()
def status(
    folder: RunFolder,
    as_json: bool = JSON,
) -> None:
    """Say how many cells of a run are done, failed or missing, and why."""
    from offsupport.bench.cell import code_of
    from offsupport.bench.runs import Run

    shown = Run(folder)
    found = shown.status()
    code = Counter(name for cell in shown.store.grid() for name in code_of(cell))
    failures, reasons = (_labelled(cells) for cells in (found.failed, found.missing))
    if as_json:
        told = {"folder": str(folder), **found.counts(), "failures": failures, "reasons": reasons}
        emit_json({**told, **({"needs_allow_code": code} if code else {})})
        return
    emit_table(str(folder), list(found.counts()), [[str(count) for count in found.counts().values()]])
    for name, why in {**failures, **reasons}.items():
        say(f"{name}: {why}")
    for name, count in code.items():
        say(f"{count} cells name code, {name}: to compute or verify them needs --model {name} --allow-code.")


def _labelled(cells: dict[Cell, str]) -> dict[str, str]:
    """Name cells for people; only then their kinds must be known, which takes a second a complete run need not wait."""
    if not cells:
        return {}
    import offsupport.studies  # noqa: F401 - it registers the kinds
    from offsupport.bench.cell import label

    return {label(cell): why for cell, why in cells.items()}


@contextlib.contextmanager
def full_disk_is_incomplete() -> Iterator[None]:
    """Inside, a disk that takes no more ends a run as it does in the middle of one: with exit code 4."""
    from offsupport.core.errors import GridIncompleteError
    from offsupport.core.files import FULL

    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise GridIncompleteError(
            f"The run could not be written down ({error}).",
            "Make room and run the same command again: it goes on from what is there.",
        ) from error


def finish(
    place: Place,
    cells: list[Cell],
    request: Request,
    workers: int,
    executor: Literal["local", "ray", "here"] = "local",
    address: str | None = None,
    cell_minutes: float | None = None,
) -> Run:
    """Compute cells into a run folder; cells without a result at the end are an error with exit code 4."""
    from offsupport.bench import Executor, Here, Local
    from offsupport.bench.ray_cluster import RayCluster
    from offsupport.bench.runs import run_grid
    from offsupport.core.errors import ConfigError
    from offsupport.core.files import require_folder
    from offsupport.studies.errors import mixed_weights

    if address is not None and executor != "ray":
        raise ConfigError("--address is that of a Ray cluster.", "Add --executor ray.")
    require_folder(place.folder)
    found: dict[str, Executor] = {"local": Local(workers), "ray": RayCluster(address, workers), "here": Here()}
    run = run_grid(cells, place, request.to_dict(), announce=say, executor=found[executor], cell_minutes=cell_minutes)
    computed, present = len(run.summary.computed), len(run.summary.present)
    say(f"{len(cells)} cells: {computed} computed, {present} were there already.")
    for warning in mixed_weights(run.status().done):
        say(warning)
    run.require_complete()
    return run


def show_cost(cells: list[Cell], place: Place, as_json: bool) -> None:
    """Print a grid and what is left to do of it; nothing is written."""
    from offsupport.studies.costs import estimate_cost

    cost = estimate_cost(cells, place)
    if as_json:
        emit_json({"folder": str(place.folder), **asdict(cost), "grid": [cell.to_dict()["config"] for cell in cells]})
        return
    names = ("method", "hyper", "dataset", "corruption", "severity", "block", "limit", "batch_size")
    shown = [name for name in names if len({str(cell.config[name]) for cell in cells}) > 1] or ["method"]
    rows = Counter(tuple(str(cell.config[name]) for name in shown) for cell in cells)
    body = [[*row, str(count)] for row, count in rows.items()]
    emit_table(f"{cost.cells} cells, {cost.done} done", [*shown, "seeds"], body, text_columns=len(shown))
    say(cost.words())


def _show(run: Run, as_json: bool) -> None:
    from offsupport.report.run_page import write_report

    path, found = write_report(run)
    if as_json:
        rows = [row.to_dict() for row in found.rows]
        emit_json({"folder": str(run.folder), "report": str(path), "rows": rows})
    else:
        print_rows("Error in percent (95 % interval)", found.rows)
        say(f"Report: {path}")


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print rows with methods side by side, or below each other where they are more than the columns.

    Intervals are shown as long as they fit on a screen.
    """
    from offsupport.report.tables import number, value_text

    across = list(dict.fromkeys(row.method for row in rows))
    down = list(dict.fromkeys(row.column for row in rows))
    cells = {(row.column, row.method): row for row in rows}
    if len(across) > max(3, len(down)):
        across, down = down, across
        cells = {(method, column): row for (column, method), row in cells.items()}
    show = number if len(across) <= 3 else value_text
    body = [[name, *(show(cells[name, other]) if (name, other) in cells else "" for other in across)] for name in down]
    emit_in_parts(title, ["", *across], body)


def _refuse_both(context: typer.Context) -> None:
    """A recipe says all about the grid; an option that would say it too is a mistake rather than a rank order."""
    from offsupport.core.errors import ConfigError

    if context.params["allow_code"]:
        raise ConfigError("--allow-code has no meaning beside a recipe, which names no code.", "Leave it out.")
    elsewhere = {"recipe", "allow_code", "out", "data", "workers", "executor", "address", "cell_minutes", "dry_run"}
    for name in set(context.params) - elsewhere - {"as_json"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ConfigError(f"Both the recipe and --{option} say what to run.", "Write it into the recipe.")


def _names(text: str) -> list[str]:
    if text == "all":
        from offsupport.data import STANDARD

        return list(STANDARD)
    return [name.strip() for name in text.split(",") if name.strip()]


# offsupport bench verify and diff: whether results can be had again, and in what two runs differ.


Result = Annotated[Path, typer.Argument(help="Run folder or result file.")]
WIDTH = 40
"""Characters of a value that a table shows."""


def verify(
    folder: RunFolder,
    sample: int = typer.Option(5, min=1, help="How many results to compute again."),
    seed: int = typer.Option(0, help="Seed of the choice."),
    model: list[str] = typer.Option([], help="module:function that results name and that may run; may be repeated."),
    allow_code: AllowCode = False,
    data: DataFolder = None,
    workers: Workers = 0,
    as_json: bool = JSON,
) -> None:
    """Compute a random sample of results again and compare; the run folder is only read."""
    from offsupport.bench.store import Store
    from offsupport.bench.verify import require_permission, require_same
    from offsupport.bench.verify import verify as check
    from offsupport.studies import TABLES, Request

    request = Request.of(Store(folder).request())
    if request.table:
        TABLES[request.table]  # a table of another package registers the kinds of its cells when it is loaded
    found = check(folder, data, sample, seed, workers, announce=say, code=allowed(model, allow_code))
    if as_json:
        emit_json({"folder": str(folder), **asdict(found)})
    else:
        tell(found.words() + (" All the same." if found.exact + found.tolerant and not found.different else ""))
    require_same(found, folder)
    require_permission(found)


def diff(a: Result, b: Result, as_json: bool = JSON) -> None:
    """Say in which settings, measurements or provenance two runs, or two results, differ; times aside."""
    from offsupport.bench.verify import compare

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
