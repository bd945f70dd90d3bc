"""A folder of image files as a stream of batches: always in the same order, without those that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offsupport.core.errors import ConfigError, DataMissingError, FileError, InputError, Spelling, as_keyword
from offsupport.core.escaping import escape
from offsupport.core.seeds import derive_seed
from offsupport.data.dataset import Images
from offsupport.data.folders import list_images
from offsupport.data.pictures import open_picture

_NAMED = 5
"""So many files are named where there may be thousands."""


def walk_images(folder: Path, leave_out: Collection[Path] = ()) -> list[str]:
    """Return the image files in a folder and all folders below it, as sorted relative paths; hidden ones aside.

    Args:
        folder: Where to look. Links to files are images, links to folders are read one level deep.
        leave_out: Pictures that the command itself writes: an earlier run may have put them there.
    """
    if not folder.is_dir():
        raise DataMissingError(f"{folder} is not a folder.", "Give the folder that holds the images.")
    found = list_images(folder, "")
    for place, subs, _ in os.walk(folder):
        subs[:] = [sub for sub in subs if not sub.startswith(".")]  # in place, so that the walk does not enter them
        for sub in subs:
            found += list_images(folder, (Path(place) / sub).relative_to(folder).as_posix())
    ours = {path.absolute() for path in leave_out}
    found = [file for file in found if (folder / file).absolute() not in ours] if ours else found
    if not found:
        raise DataMissingError(
            f"The folder {escape(folder)} holds no images.", "Give a folder of .png, .jpg or other image files."
        )
    # Sorted as a whole: file systems list folders in orders of their own, and the order decides what is adapted to.
    return sorted(found)


def shuffle_files(files: Sequence[str], seed: int, purpose: str) -> list[str]:
    """Return the files in an order drawn from the seed, another one for each purpose."""
    generator = torch.Generator().manual_seed(derive_seed("adapt", purpose, seed))
    return [files[row] for row in torch.randperm(len(files), generator=generator).tolist()]


def square(
    size: int | None, resize: int | None, usual: tuple[int, int] | None, spell: Spelling = as_keyword
) -> tuple[int | None, int | None]:
    """Return the side of the square to cut out, and what the shorter side is brought to before.

    Args:
        size: The side, where somebody asked for one.
        resize: The shorter side, where somebody asked for it.
        usual: Shorter side and square that are usual for the model, where that is known.
        spell: How remedies write arguments.
    """
    if size is None and resize is None:
        return (None, None) if usual is None else (usual[1], usual[0])
    if size is None or (resize is not None and resize < size):
        raise ConfigError(
            f"The shorter side is to become {resize}, and the square that is cut out {size or 'is not given'}.",
            f"Give both, the square no larger: {spell('resize', '256')} {spell('size', '224')}.",
        )
    return size, resize


@dataclass
class ImageFiles:
    """Image files that are read when asked for.

    Args:
        folder: Where they are.
        files: Their paths relative to the folder, in the order of the stream.
        size: Side of the centred square that is cut out; None leaves all as they are.
        expected: The only size (width and height) that is right for the model, where that is known.
        spell: How remedies write the argument ``size``.
        resize: Bring the shorter side to this length before the square is cut out; None to ``size``.
        skipped: Filled while reading: files that cannot be read, and why.
        animated: Filled while reading: files that have more frames than the first, which is read.
    """

    folder: Path
    files: Sequence[str]
    size: int | None = None
    expected: int | None = None
    spell: Spelling = as_keyword
    resize: int | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    animated: set[str] = field(default_factory=set)
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
                yield names, as_tensor(pictures)
                names, pictures = [], []
        if names:
            yield names, as_tensor(pictures)

    def first(self, most: int) -> Tensor:
        """Return the first images that can be read, at most so many."""
        for _, x in self.batches(most):
            return x
        why = next(iter(self.skipped.values()))
        raise DataMissingError(f"None of the {len(self.skipped)} images can be read: {why}", "Replace them.")

    def _read(self, name: str) -> Images | None:
        try:
            picture, animated = open_picture(self.folder / name, self.resize or self.size, self.size)
        except FileError as error:
            # One broken file must not end a stream of thousands; it is named in the result.
            self.skipped[name] = error.message
            return None
        if animated:
            self.animated.add(name)
        self._check(picture.shape, escape(name))
        return picture

    def _check(self, shape: tuple[int, ...], name: str) -> None:
        """Refuse sizes that cannot be right; unlike a broken file, these are a setting the user forgot."""
        height, width = shape[:2]
        if self.size is None and self.expected is not None and (height, width) != (self.expected, self.expected):
            raise InputError(
                f"The model takes images of {self.expected}x{self.expected}, and {name} is {width}x{height}.",
                f"Give {self.spell('size', str(self.expected))}: the shorter side is brought to it, and the centred "
                "square is taken.",
            )
        if self._shape is not None and shape != self._shape:
            raise InputError(
                f"The images in {escape(self.folder)} have several sizes: {name} is {width}x{height}, and those before "
                f"it are {self._shape[1]}x{self._shape[0]}.",
                f"Give {self.spell('size', 'N')}: the shorter side is brought to N pixels, and the centred square is "
                "taken.",
            )
        self._shape = shape


def as_tensor(pictures: Sequence[Images]) -> Tensor:
    """Return pictures of one size as a batch (N, 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().float().div_(255)


def first_frames(animated: Collection[str]) -> str:
    """Return the sentence about files with several frames."""
    shown = ", ".join(map(escape, sorted(animated)[:_NAMED])) + (", ..." if len(animated) > _NAMED else "")
    return f"Of files with several frames the first was read ({len(animated)}): {shown}."
