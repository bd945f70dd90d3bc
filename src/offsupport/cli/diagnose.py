"""``offsupport diagnose``: is this shift recoverable? The numbers, the verdict and a picture."""

from __future__ import annotations

import json as json_
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say
from offsupport.core.errors import ConfigError

if TYPE_CHECKING:
    from offsupport.theory import Diagnosis

DEFAULT_OUT = Path("runs/diagnose")


def diagnose(
    process: str = typer.Option("dense", help="dense: s moves every dimension of x; sparse: only d_s of them."),
    preset: str = typer.Option(
        "paper", help="paper (as published), table (our tables), assumptions (the theorem holds)."
    ),
    distance: float = typer.Option(12.0, min=0.0, help="Distance of the target's s from the origin."),
    seed: int = typer.Option(0, help="Which run of the process."),
    runs: int = typer.Option(1, min=1, help="Diagnose this many runs, from --seed on, and print their ranges."),
    set_: list[str] = typer.Option([], "--set", help="A field of the process, as name=value; may be repeated."),
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for diagnosis.json, and png and svg of the first run."),
    json: bool = JSON,
) -> None:
    """Say by which theorem a target is recoverable, or which assumption fails by how much, and draw it."""
    import torch

    from offsupport.core.progress import progress
    from offsupport.latent.draws import draw
    from offsupport.latent.process import preset as named
    from offsupport.theory import diagnose as examine

    chosen = named(preset, process, **dict(_parse(text) for text in set_))  # type: ignore[arg-type]
    draws = draw(chosen, range(seed, seed + runs), [distance], dtype=torch.float64)
    results = []
    with progress("diagnose", runs) as advance:
        for run in range(runs):
            results.append(examine(draws, run=run))
            advance()
    data = results[0].to_dict() if runs == 1 else {"runs": [result.to_dict() for result in results]}
    _save(results[0], data, out)
    if json:
        emit_json(data)
    elif runs == 1:
        typer.echo(str(results[0]))
    else:
        _summarise(results)
    say(f"picture: {out / 'diagnosis.png'}")


def _save(first: Diagnosis, data: dict[str, Any], out: Path) -> None:
    """Write the numbers and the picture, each whole or not at all."""
    from offsupport.core.files import atomic, write_json

    write_json(out / "diagnosis.json", data)
    figure = first.plot()
    for kind in ("png", "svg"):
        with atomic(out / f"diagnosis.{kind}") as file:
            figure.savefig(file, format=kind, dpi=120)


def _summarise(results: list[Diagnosis]) -> None:
    """Print the range of every number over the runs, and how often each assumption holds."""
    rows = [
        [name, *(f"{value:.4g}" for value in (min(values), statistics.median(values), max(values)))]
        for name, values in _numbers(results).items()
    ]
    emit_table(f"{len(results)} runs", ["number", "lowest", "median", "highest"], rows)
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for verdict in (result.theorem1, result.theorem2):
            counts.setdefault(verdict.theorem, Counter())[verdict.status] += 1
            for condition in verdict.conditions:
                counts.setdefault(f"{verdict.theorem[:9]}: {condition.name}", Counter())[condition.status] += 1
    states = ("holds", "fails", "unknown")
    emit_table("", ["assumption", *states], [[name, *(str(c[s]) for s in states)] for name, c in counts.items()])


def _numbers(results: list[Diagnosis]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for result in results:
        row: dict[str, float | None] = {"distance to the support": result.distance}
        for radius in result.radii:
            row |= {f"{radius.way} radius (J_u)": radius.radius, f"{radius.way} radius (J_u^s)": radius.radius_s}
        if result.jacobian is not None:
            row["mean rank of J"] = result.jacobian.mean_rank
        if result.dependence is not None:
            row["margin of dependence"] = result.dependence.margin
        for name, value in row.items():
            found.setdefault(name, []).extend([] if value is None else [value])
    return {name: values for name, values in found.items() if values}


def _parse(text: str) -> tuple[str, Any]:
    """Read ``name=value``; a value is JSON where it can be, else a word."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--set got {text!r}.", "Write name=value, for example --set radius=9.")
    try:
        return name, json_.loads(value)
    except ValueError:
        return name, value
