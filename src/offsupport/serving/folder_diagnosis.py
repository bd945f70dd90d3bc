"""A folder of images, seen by a network: how far from the source they are, where in the image, which kind of shift."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from offsupport.core.errors import ConfigError, InputError, Spelling, as_keyword
from offsupport.core.escaping import escape
from offsupport.diagnosis.network import MOST_SOURCE, MOST_TARGETS, ModelDiagnosis, diagnose_model
from offsupport.nn.mae import MaskedAutoencoder
from offsupport.serving.image_files import ImageFiles, square, walk_images
from offsupport.serving.source_model import SourceModel, as_source_model


@dataclass(frozen=True)
class FolderDiagnosis:
    """The diagnosis of a folder.

    Args:
        model: Name of the network.
        images: Names of the files, in the order of the diagnosis.
        diagnosis: What was found.
        skipped: Files, of the source too, that could not be read, and why.
        animated: Files that have more frames than the first, which was read.
    """

    model: str
    images: list[str]
    diagnosis: ModelDiagnosis
    skipped: dict[str, str] = field(default_factory=dict)
    animated: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values; names of files are escaped."""
        about = {
            "model": self.model,
            "images": [escape(file) for file in self.images],
            "skipped": {escape(file): why for file, why in self.skipped.items()},
            "animated": [escape(file) for file in self.animated],
        }
        return {**about, **self.diagnosis.to_dict()}


def diagnose_folder(
    model: nn.Module | str | SourceModel,
    images: Path | str,
    *,
    source: Path | str | None = None,
    size: int | None = None,
    resize: int | None = None,
    leave_out: Collection[Path] = (),
    spell: Spelling = as_keyword,
) -> FolderDiagnosis:
    """Diagnose a folder of images under a network; of large folders a part, evenly over the sorted files.

    Args:
        model: A classifier of images in [0, 1], or a name that :func:`offsupport.load_model` knows.
        images: Folder of target images, or of class folders of them.
        source: Folder of source images; None for the data a model of ours was trained on, where that is embedded.
        size: Side that all images are brought to; None for that of the autoencoder in the network, or of the source.
        resize: Bring the shorter side to this length before the square of ``size`` is cut out; None to ``size``.
        leave_out: Pictures in the folder that are none of its images, such as that of an earlier diagnosis.
        spell: How remedies write arguments; the command line writes its options.
    """
    given = as_source_model(model)
    network = given.load()
    one_size = f"Bring all images to one square size: {spell('size', 'N')}."
    asked, resize = square(size, resize, given.cut, spell)
    side = _own_side(network) if asked is None else asked
    seen: list[ImageFiles] = []
    if source is None:
        reference = _embedded(given, side, spell)
    else:
        usual, _, reference = _read(Path(source), side, resize, MOST_SOURCE, spell, leave_out)
        seen.append(usual)
        if reference.shape[2] != reference.shape[3]:
            raise InputError(f"The images in {source} are {reference.shape[3]}x{reference.shape[2]}.", one_size)
    # Targets are brought to the size of the source, as patches are compared place by place.
    shown, names, targets = _read(Path(images), reference.shape[-1], resize, MOST_TARGETS, spell, leave_out)
    seen.append(shown)
    skipped = {file: why for each in seen for file, why in each.skipped.items()}
    animated = sorted({file for each in seen for file in each.animated})
    return FolderDiagnosis(given.name, names, diagnose_model(network, reference, targets), skipped, animated)


def _own_side(network: nn.Module) -> int | None:
    """Return the side of the images that the autoencoder in a network takes; None where there is none."""
    sides = (module.config.image for module in network.modules() if isinstance(module, MaskedAutoencoder))
    return next(sides, None)


def _embedded(model: SourceModel, side: int | None, spell: Spelling) -> Tensor:
    found = model.usual_images(MOST_SOURCE, spell)
    if side not in (None, found.shape[-1]):
        raise ConfigError(
            f"The embedded digits have {found.shape[-1]} pixels along a side, not {side}.",
            f"Leave {spell('size', str(side))} out, or give a folder of source images: {spell('source', 'DIR')}.",
        )
    return found


def _read(
    folder: Path, size: int | None, resize: int | None, most: int, spell: Spelling, leave_out: Collection[Path]
) -> tuple[ImageFiles, list[str], Tensor]:
    """Return images of a folder, evenly over its sorted files, and their names; those that cannot be read are noted."""
    files = walk_images(folder, leave_out)
    rows = np.linspace(0, len(files) - 1, min(len(files), most)).astype(int)
    found = ImageFiles(folder, [files[row] for row in rows], size, spell=spell, resize=resize)
    images = found.first(most)
    return found, [file for file in found.files if file not in found.skipped], images
