"""A folder of image files as a stream of batches: always in the same order, without those that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from offsupport.core.errors import DataMissingError, FileError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from offsupport.data.dataset import Images


def find_images(folder: Path) -> list[str]:
    """Return the image files in a folder and all folders below it, as sorted relative paths; hidden ones aside."""
    from offsupport.data.folders import list_images

    if not folder.is_dir():
        raise DataMissingError(f"{folder} is not a folder.", "Give the folder that holds the images.")
    found = list_images(folder, "")
    for place, subs, _ in os.walk(folder):
        subs[:] = [sub for sub in subs if not sub.startswith(".")]
        for sub in subs:
            found += list_images(folder, (Path(place) / sub).relative_to(folder).as_posix())
    if not found:
        raise DataMissingError(f"There are no images in {folder}.", "Give a folder of .png, .jpg or other image files.")
    return sorted(found)


@dataclass
class ImageFiles:
    """Image files that are read when asked for.

    Args:
        folder: Where they are.
        files: Their paths relative to the folder, in the order of the stream.
        size: Bring the shorter side to this length and cut out the centred square; None leaves all as they are.
        expected: The only size (width and height) that is right for the model, where that is known.
        skipped: Filled while reading: files that cannot be read, and why.
    """

    folder: Path
    files: Sequence[str]
    size: int | None = None
    expected: int | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    _shape: tuple[int, ...] | None = None

    def batches(self, batch_size: int) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names and images (N, 3, H, W) in [0, 1]; an unreadable file leaves no gap in its batch."""
        names: list[str] = []
        pictures: list[Images] = []
        for name in self.files:
            picture = self._read(name)
            if picture is None:
                continue
            names.append(name)
            pictures.append(picture)
            if len(names) == batch_size:
                yield names, _tensor(pictures)
                names, pictures = [], []
        if names:
            yield names, _tensor(pictures)

    def _read(self, name: str) -> Images | None:
        from offsupport.data.pictures import read_picture

        try:
            picture = read_picture(self.folder / name, self.size, self.size)
        except FileError as error:
            self.skipped[name] = error.message
            return None
        self._check(picture.shape, name)
        return picture

    def _check(self, shape: tuple[int, ...], name: str) -> None:
        height, width = shape[:2]
        if self.size is None and self.expected is not None and (height, width) != (self.expected, self.expected):
            raise InputError(
                f"The model takes images of {self.expected}x{self.expected}, and {name} is {width}x{height}.",
                f"Give --size {self.expected}: the shorter side is brought to it, and the centred square is taken.",
            )
        if self._shape is not None and shape != self._shape:
            raise InputError(
                f"The images in {self.folder} have several sizes: {name} is {width}x{height}, and those before it are "
                f"{self._shape[1]}x{self._shape[0]}.",
                "Give --size N: the shorter side is brought to N pixels, and the centred square is taken.",
            )
        self._shape = shape


def _tensor(pictures: list[Images]) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().float().div_(255)
