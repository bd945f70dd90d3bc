"""``offsupport diagnose --model M --images DIR``: how far from the source, where in the image, which kind of shift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from offsupport.cli.output import emit_json, emit_table, say
from offsupport.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from offsupport.theory import ModelDiagnosis

MOST_SOURCE, MOST_TARGETS = 400, 200
ONE_SIZE = "Bring all images to one square size: --size N."


def diagnose_images(
    model: str | None, images: Path | None, source: Path | None, size: int | None, out: Path, as_json: bool
) -> None:
    """Diagnose a folder of images under a network and write the numbers and the picture.

    Args:
        model: Name of the network.
        images: Folder of target images.
        source: Folder of source images; None for the data a model of the zoo was trained on, where that is embedded.
        size: Side that all images are brought to; None for that of the autoencoder in the network, or of the source.
        out: Folder for diagnosis.json, diagnosis.png and diagnosis.svg.
        as_json: Whether the numbers go to standard output as JSON.
    """
    if model is None or images is None:
        raise ConfigError("A network and its images come together.", "Give --model and --images.")
    from offsupport.bench.models import load_model
    from offsupport.core.files import write_json
    from offsupport.theory import diagnose_model

    network = load_model(model, out)
    reference = _source(model, source, _own_side(network) if size is None else size)
    targets, names = _folder(images, reference.shape[-1], MOST_TARGETS)
    found = diagnose_model(network, reference, targets)
    data = {"model": model, "images": names, **found.to_dict()}
    write_json(out / "diagnosis.json", data)
    save_picture(found, out / "diagnosis")
    if as_json:
        emit_json(data)
    else:
        rows = [
            [name, kind, f"{d:.2f}", f"{q:.2f}", f"{s:.0%}"]
            for name, kind, d, q, s in zip(
                names, found.regime, found.distance.tolist(), found.quantile.tolist(), found.share.tolist(), strict=True
            )
        ]
        emit_table(model, ["image", "regime", "distance", "quantile", "patches off"], rows)
        typer.echo(str(found))
    say(f"picture: {out / 'diagnosis.png'}")


def save_picture(found: ModelDiagnosis, path: Path) -> None:
    """Write the picture of a diagnosis as ``path.png`` and ``path.svg``, each whole or not at all."""
    from offsupport.core.files import atomic

    figure = found.plot()
    for kind in ("png", "svg"):
        with atomic(path.with_name(f"{path.name}.{kind}")) as file:
            figure.savefig(file, format=kind, dpi=120)


def _own_side(network: nn.Module) -> int | None:
    """Return the side of the images that the autoencoder in a network takes; None where there is none."""
    from offsupport.nn import MaskedAutoencoder

    sides = (module.config.image for module in network.modules() if isinstance(module, MaskedAutoencoder))
    return next(sides, None)


def _source(model: str, folder: Path | None, side: int | None) -> Tensor:
    """Return square source images: those of the folder, or the embedded ones."""
    if folder is not None:
        found = _folder(folder, side, MOST_SOURCE)[0]
        if found.shape[2] != found.shape[3]:
            raise InputError(f"The images in {folder} are {found.shape[3]}x{found.shape[2]}.", ONE_SIZE)
        return found
    found = embedded_source(model)
    if side not in (None, found.shape[-1]):
        raise ConfigError(
            f"The embedded digits have {found.shape[-1]} pixels along a side, not {side}.",
            "Leave --size out, or give a folder of source images: --source DIR.",
        )
    return found


def embedded_source(model: str) -> Tensor:
    """Return the embedded digits for a network that was trained on them; ask for a folder for any other."""
    import numpy as np

    from offsupport.data import load

    if not model.startswith("digits"):
        raise ConfigError(
            "What is usual for this network is not known.", "Give a folder of images it was trained on: --source DIR."
        )
    digits = load("digits", split="train")
    return digits.tensor(np.arange(min(len(digits), MOST_SOURCE)))


def _folder(folder: Path, size: int | None, most: int) -> tuple[Tensor, list[str]]:
    """Return the images of a folder and their names, resized and cropped to one size where one is given."""
    import numpy as np

    from offsupport.data.folders import open_folder

    found = open_folder(folder, size)
    rows = np.linspace(0, len(found) - 1, min(len(found), most)).astype(int)
    try:
        pixels = found.tensor(rows)
    except InputError as error:
        raise InputError(error.message, ONE_SIZE) from error
    return pixels, [Path(found.files[row]).name for row in rows]
