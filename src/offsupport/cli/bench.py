"""offsupport bench: grids of the user's own. A rerun computes what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say

DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets; default $OFFSUPPORT_DATA.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]

bench = typer.Typer(no_args_is_help=True, help="Run grids of cells; a rerun computes only what is missing.")


@bench.command()
def run(
    out: Annotated[Path, typer.Option(help="Run folder; the same folder again resumes.")],
    dataset: str = typer.Option("digits-c", help="Data set."),
    corruptions: str = typer.Option("", help="Names separated by commas, 'all' for the 15 standard ones; none: clean."),
    methods: str = typer.Option(..., help="Names separated by commas."),
    severity: int = typer.Option(5, min=1, help="Severity of the corruptions."),
    seeds: int = typer.Option(1, min=1, help="Run seeds 0, 1, ... of each cell."),
    protocol: str = typer.Option("online", help="online, continual (all corruptions in one stream) or episodic."),
    model: str = typer.Option("digits-small", help="Name of a model, or module:function that returns one."),
    data: DataFolder = None,
    limit: int | None = typer.Option(None, min=1, help="Only so many images, drawn at random."),
    block: int | None = typer.Option(None, min=1, help="Corrupt only a square of this side."),
    order: str = typer.Option("iid", help="Order of the stream: iid, sorted or dirichlet."),
    preset: str | None = typer.Option(None, help="Published hyper-parameters: cifar10, cifar100 or imagenet."),
    batch_size: int = typer.Option(128, min=1, help="Images per batch."),
    source_images: int = typer.Option(2000, min=0, help="Training images for methods that use source statistics."),
    threads: int = typer.Option(1, min=1, help="Threads per cell; part of what a result depends on."),
    workers: int = typer.Option(0, min=0, help="Processes; 0 for one per core."),
    as_json: bool = JSON,
) -> None:
    """Run every combination of methods, corruptions and seeds."""
    from offsupport.bench import expand

    names = _names(corruptions)
    fixed: dict[str, Any] = {
        "dataset": dataset, "severity": severity, "protocol": protocol, "model": model, "limit": limit, "block": block,
        "order": order, "preset": preset, "batch_size": batch_size, "threads": threads,
        "source_images": source_images,
    }  # fmt: skip
    in_one_stream = protocol == "continual" and len(names) > 1
    streams: list[Any] = [names] if in_one_stream else names or [None]
    axes = {"method": _names(methods), "corruption": streams, "seed": range(seeds)}
    cells = expand(axes, **fixed)
    finish(out, data, cells, {"verb": "bench"}, workers)
    _show(out, as_json)


@bench.command()
def status(
    folder: RunFolder,
    as_json: bool = JSON,
) -> None:
    """Say how many cells of a run are done, failed or missing, and why."""
    from offsupport.bench.runs import status as status_of

    found = status_of(folder)
    if as_json:
        emit_json({"folder": str(folder), **found.counts(), "failures": found.failed, "reasons": found.missing})
        return
    emit_table(str(folder), list(found.counts()), [[str(count) for count in found.counts().values()]])
    for name, why in {**found.failed, **found.missing}.items():
        say(f"{name}: {why}")


def finish(out: Path, data: Path | None, cells: list[Any], request: dict[str, Any], workers: int) -> None:
    """Compute cells into a run folder; cells without a result at the end are an error with exit code 4."""
    from offsupport.bench import Place
    from offsupport.bench.results import mixed_weights
    from offsupport.bench.runs import require_complete, run_grid
    from offsupport.bench.runs import status as status_of
    from offsupport.core.files import require_folder
    from offsupport.core.processes import cores

    place = Place(require_folder(out), data)
    summary = run_grid(cells, place, request, workers or cores(), announce=say)
    say(f"{len(cells)} cells: {len(summary.computed)} computed, {len(summary.present)} were there already.")
    for warning in mixed_weights(status_of(out).done):
        say(warning)
    require_complete(summary, len(cells), out)


def _show(out: Path, as_json: bool) -> None:
    from offsupport.report.runs import write_report

    path, data = write_report(out)
    if as_json:
        emit_json({"folder": str(out), "report": str(path), "rows": data["rows"]})
    else:
        print_rows("Error in percent (95 % interval)", data["rows"])
        say(f"Report: {path}")


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows with methods side by side, or below each other where they are more than the columns.

    Intervals are shown as long as they fit on a screen.
    """
    from offsupport.report.words import number, value_text

    across, down = (list(dict.fromkeys(row[name] for row in rows)) for name in ("method", "column"))
    cells = {(row["column"], row["method"]): row for row in rows}
    if len(across) > max(3, len(down)):
        across, down = down, across
        cells = {(method, column): row for (column, method), row in cells.items()}
    show = number if len(across) <= 3 else value_text
    body = [[name, *(show(cells[name, other]) if (name, other) in cells else "" for other in across)] for name in down]
    emit_table(title, ["", *across], body)


def _names(text: str) -> list[str]:
    if text == "all":
        from offsupport.data import STANDARD

        return list(STANDARD)
    return [name.strip() for name in text.split(",") if name.strip()]
