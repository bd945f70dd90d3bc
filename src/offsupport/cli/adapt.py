"""``offsupport adapt``: a folder of images in; predictions, events of the guard and a diagnosis out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say
from offsupport.cli.settings import read_settings
from offsupport.core.errors import ConfigError

DEFAULT_OUT = Path("predictions.csv")
SHOWN = 10
"""So many predictions are printed; the file has them all."""


def adapt(
    model: str = typer.Option(
        ..., help="zoo:NAME, file:PATH, timm:NAME, digits-small, or module:function that returns a model."
    ),
    images: Path = typer.Option(..., help="Folder of the images to predict; folders inside it count."),
    method: str = typer.Option(..., help="How to adapt: a name of `offsupport list methods`, also with +sc."),
    out: Path = typer.Option(DEFAULT_OUT, help="The predictions; what else is known goes beside it as .json."),
    batch_size: int = typer.Option(64, min=1, help="Images per batch: what the model adapts to at a time."),
    hyper: list[str] = typer.Option(
        [], help="Hyper-parameter as name=value; may be repeated. Also window, collapse, head."
    ),
    preset: str | None = typer.Option(
        None, help="Hyper-parameters: cifar10, cifar100, imagenet (published), cifar10-small."
    ),
    source: Path | None = typer.Option(None, help="Folder of images the model was trained on."),
    size: int | None = typer.Option(None, min=1, help="Shorter side to this length, then the centred square."),
    network: str | None = typer.Option(None, help="For a file that does not say it: the architecture (resnet50)."),
    normalization: str | None = typer.Option(None, help="For such a file: the data it was trained on (cifar10)."),
    classes: Path | None = typer.Option(None, help="Text file with the names of the classes, one per line."),
    shuffle: bool = typer.Option(False, "--shuffle", help="Visit images in an order drawn from the seed, not sorted."),
    episodic: bool = typer.Option(False, "--episodic", help="Start anew from the source model for each batch."),
    seed: int = typer.Option(0, help="Seed of the method's draws, of --shuffle and of the choice of source images."),
    threads: int = typer.Option(1, min=1, help="Threads; the last digits of a confidence depend on them."),
    json: bool = JSON,
) -> None:
    """Adapt a model to a folder of images and predict them; images that cannot be read are named and left out."""
    from offsupport.core.files import require_folder, write_json, write_text
    from offsupport.serving.folder import Request, csv_text, run

    if out.is_dir():
        raise ConfigError(f"{out} is a folder.", f"Name a file: --out {out / DEFAULT_OUT.name}.")
    request = Request(
        model=model, images=images, method=method, batch_size=batch_size, preset=preset, source=source, size=size,
        network=network, normalization=normalization, classes=classes, shuffle=shuffle, episodic=episodic, seed=seed,
        threads=threads, hyper=read_settings(hyper, "--hyper", "lr=1e-3"), folder=out.parent,
    )  # fmt: skip
    require_folder(out.parent)
    predictions, about, diagnosis = run(request)
    write_text(out, csv_text(predictions))
    write_json(out.with_suffix(".json"), about)
    if diagnosis is not None:
        from offsupport.cli.diagnose import save_picture

        save_picture(diagnosis, out.with_suffix(""))
    for note in about["notes"]:
        say(note)
    if json:
        emit_json({"out": str(out), **about, "predictions": [row.values() for row in predictions]})
        return
    _show(predictions, about)
    if diagnosis is not None:
        typer.echo(str(diagnosis))
    say(f"Predictions: {out}, and all about them: {out.with_suffix('.json')}")


def _show(predictions: list[Any], about: dict[str, Any]) -> None:
    """Print the first predictions, and what happened on the way."""
    rows = [[p.file, f"{p.label} {p.name}".strip(), f"{p.confidence:.3f}", p.guard] for p in predictions[:SHOWN]]
    title = f"{about['method']}: {len(predictions)} images, the first {len(rows)}"
    emit_table(title, ["file", "class", "confidence", "guard"], rows, text_columns=2)
    events = ", ".join(f"{name} {count}" for name, count in about["events"].items() if count)
    typer.echo(f"guard: {events or 'nothing to do'}")
