"""``offsupport diagnose``: is this shift recoverable? The numbers, the verdict and a picture."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.output import JSON, emit_json, say
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
    set_: list[str] = typer.Option([], "--set", help="A field of the process, as name=value; may be repeated."),
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for diagnosis.json, diagnosis.png and diagnosis.svg."),
    json: bool = JSON,
) -> None:
    """Say by which theorem a target is recoverable, or which assumption fails by how much, and draw it."""
    import torch

    from offsupport.latent.draws import draw
    from offsupport.latent.process import preset as named
    from offsupport.theory import diagnose as examine

    changes = dict(_parse(text) for text in set_)
    draws = draw(named(preset, process, **changes), [seed], [distance], dtype=torch.float64)  # type: ignore[arg-type]
    result = examine(draws)
    save(result, out)
    if json:
        emit_json(result.to_dict())
    else:
        typer.echo(str(result))
    say(f"picture: {out / 'diagnosis.png'}")


def save(result: Diagnosis, out: Path) -> None:
    """Write the numbers and the picture, each whole or not at all."""
    from offsupport.core.files import atomic, write_json

    write_json(out / "diagnosis.json", result.to_dict())
    figure = result.plot()
    for kind in ("png", "svg"):
        with atomic(out / f"diagnosis.{kind}") as file:
            figure.savefig(file, format=kind, dpi=120)


def _parse(text: str) -> tuple[str, Any]:
    """Read ``name=value``; a value is JSON where it can be, else a word."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--set got {text!r}.", "Write name=value, for example --set radius=9.")
    try:
        return name, json_.loads(value)
    except ValueError:
        return name, value
