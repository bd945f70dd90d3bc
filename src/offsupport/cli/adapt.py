"""``offsupport adapt``: a folder of images in; predictions, events of the guard and a diagnosis out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.output import JSON, as_option, emit_json, emit_table, say, tell
from offsupport.cli.settings import AllowCode, allowed, parse_settings
from offsupport.core.errors import ConfigError
from offsupport.core.escaping import escape

if TYPE_CHECKING:
    from offsupport.monitor import Estimate
    from offsupport.serving.folder import FolderResult
    from offsupport.serving.source_model import SourceModel

SHOWN = 10
"""So many predictions are printed; the file has them all."""
OWN_OPTIONS = (
    *("batch_size", "classes", "episodic", "images", "method", "model"),
    *("out", "overwrite", "preset", "resize", "seed", "shuffle", "size", "source", "top"),
)
"""What belongs to an option of its own and not behind --hyper: the arguments of adapt_folder() beside it."""
NEEDS_PYTHON = ("logits", "inplace", "spell")


def adapt(
    model: str = typer.Option(
        ..., help="zoo:NAME, file:PATH, pip:NAME, timm:NAME, digits-small, or module:function with --allow-code."
    ),
    images: Path = typer.Option(..., help="Folder of the images to predict; folders inside it count."),
    method: str = typer.Option("auto", help="How to adapt: a name of `offsupport list methods`, also with +sc."),
    out: Path = typer.Option(
        Path("predictions.csv"), help="The predictions (.csv); what else is known goes beside it as .json."
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace predictions of ours that were changed since; never anything else."
    ),
    batch_size: int = typer.Option(64, min=1, help="Images per batch: what the model adapts to at a time."),
    hyper: list[str] = typer.Option(
        [], help="Hyper-parameter as name=value; may be repeated. Also window, collapse, head."
    ),
    preset: str | None = typer.Option(
        None, help="Hyper-parameters: cifar10, cifar100, imagenet (published), cifar10-small."
    ),
    source: Path | None = typer.Option(
        None, help="Folder of images as the model was trained on; in class folders they calibrate the estimate."
    ),
    size: int | None = typer.Option(None, min=1, help="Shorter side to this length, then the centred square."),
    resize: int | None = typer.Option(
        None, min=1, help="Shorter side before the square of --size is cut: 256 for 224."
    ),
    network: str | None = typer.Option(None, help="For a file that does not say it: the architecture (resnet50)."),
    normalization: str | None = typer.Option(None, help="For such a file: the data it was trained on (cifar10)."),
    classes: Path | None = typer.Option(None, help="Text file with the names of the classes, one per line."),
    shuffle: bool | None = typer.Option(
        None,
        "--shuffle/--no-shuffle",
        help="Visit images in an order drawn from the seed, or sorted; drawn if they lie in several folders.",
    ),
    episodic: bool = typer.Option(False, "--episodic", help="Start anew from the source model for each batch."),
    seed: int = typer.Option(0, help="Seed of the method's draws, of --shuffle and of the choice of source images."),
    top: int = typer.Option(3, min=1, help="So many of the likeliest classes are written for each image."),
    threads: int = typer.Option(1, min=1, help="Threads; the last digits of a confidence depend on them."),
    allow_code: AllowCode = False,
    json: bool = JSON,
) -> None:
    """Adapt a model to a folder of images and predict them; class folders are taken for labels."""
    import torch

    from offsupport.report.folder_page import folder_page
    from offsupport.report.page import require_own_page, write
    from offsupport.serving.folder import about_file, adapt_folder

    settings = parse_settings(hyper, "--hyper", "lr=1e-3")
    check_hyper(settings)
    page = about_file(out).with_suffix(".html")
    require_own_page(page)
    torch.set_num_threads(threads)  # here, not in the library: it is a setting of the whole process
    given = source_model(model, network, normalization, out.parent, allowed([model], allow_code))
    result = adapt_folder(
        given, images, method, out=out, overwrite=overwrite, batch_size=batch_size,
        preset=preset, source=source, size=size, resize=resize, classes=classes, shuffle=shuffle, episodic=episodic,
        seed=seed, top=top, spell=as_option, **settings,
    )  # fmt: skip
    write(folder_page(result), page)
    for note in result.notes:
        say(note)
    if json:
        emit_json({"out": escape(out), **result.to_dict(), "predictions": [row.values() for row in result.predictions]})
        return
    _show(result)
    say(f"Predictions: {out}; all about them: {about_file(out)}; what changed, in pictures: {page}")


def check_hyper(settings: Mapping[str, Any]) -> None:
    """Refuse what has an option of its own, or cannot be typed."""
    for name in settings:
        if name in OWN_OPTIONS:
            raise ConfigError(f"--hyper cannot set {name!r}.", f"Use --{name.replace('_', '-')}.")
        if name in NEEDS_PYTHON:
            raise ConfigError(f"--hyper cannot set {name!r}.", "Use offsupport.adapt in Python.")


def source_model(
    name: str, network: str | None, normalization: str | None, folder: Path, code: frozenset[str]
) -> SourceModel:
    """Return the source model by any of its names; one that is trained on the spot is kept in the folder."""
    from offsupport.nn.loading import load_model
    from offsupport.serving.source_model import SourceModel, trained_on
    from offsupport.studies import models

    if network is None and normalization is None:
        models.check_name(name, code)
        return SourceModel(name, lambda: models.source_model(name, folder, code), trained_on(name))
    if not name.startswith("file:"):
        raise ConfigError(f"{name} says itself which network it is.", "Leave --network and --normalization out.")
    return SourceModel(name, lambda: load_model(name, network=network, normalization=normalization))


def estimate_text(found: Estimate) -> str:
    """Return what an estimate says, with the remedy that a person at the command line can follow."""
    if found.shift is not None or found.agreement is None:  # clean images are known, or these are too few
        return str(found)
    lacking = "accuracies are estimated where clean images are known: --source DIR, with a folder for each class."
    return "\n".join([f"{found.verdict}; {lacking}", *str(found).splitlines()[1:]])


def _guess(label: int | None, name: str, confidence: float | None) -> str:
    return "" if confidence is None else f"{escape(name) or label} ({100 * confidence:.0f} %)"


def _show(result: FolderResult) -> None:
    """Print the first predictions, and what happened on the way."""
    shown = result.predictions[:SHOWN]
    rows = [
        [
            escape(p.file),
            _guess(p.label, p.name, p.confidence),
            _guess(p.source_label, p.source_name, p.source_confidence),
        ]
        for p in shown
    ]
    title = f"{result.method}: {len(result.predictions)} images, the first {len(rows)}"
    emit_table(title, ["file", "adapted", "model alone"], rows, text_columns=3)
    tell(f"adapting changed {len(result.changed)} of {len(result.predictions)} predictions")
    if result.accuracy is not None:
        measured = result.accuracy
        tell(f"accuracy by the class folders: {measured.source} alone, {measured.adapted} adapted")
    if result.estimate is not None:
        tell(f"without labels: {estimate_text(result.estimate)}")
    events = ", ".join(f"{name} {count}" for name, count in result.events.items() if count)
    tell(f"guard: {events or 'nothing to do'}")
    if result.diagnosis is not None:
        diagnosed, n = len(result.diagnosis.regime), len(result.predictions)
        tell(f"diagnosis{f' of {diagnosed} of them' if diagnosed < n else ''}: {result.diagnosis}")
