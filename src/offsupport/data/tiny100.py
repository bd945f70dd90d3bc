"""tiny100: a hundred classes of photographs at the size of CIFAR-100, from four plain arrays and a list of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offsupport.core.errors import ConfigError, DataMissingError, FileError, nearest
from offsupport.core.files import read_json
from offsupport.data.cifar import SIDE, find_folder
from offsupport.data.dataset import Arrays
from offsupport.data.stored import open_npy

NAME = "tiny100"
"""Of the data set and of its folder."""
CLASSES = 100
NAMES = "classes.json"
"""The file of class names, in the order of their numbers."""
SPLITS = ("test", "train")


class Tiny100(Arrays):
    """One split, read into memory (15 MB to test, 154 MB to train).

    Half of the classes of Tiny ImageNet (Le & Yang, 2015), scaled from 64 to 32 pixels: 500 images of each to train
    and 50 to test.
    """

    source = "files"

    def __init__(self, root: Path, split: str = "test") -> None:
        if split not in SPLITS:
            raise ConfigError(f"{NAME} has no split {split!r}.", nearest(split, SPLITS))
        folder = find_folder(root, NAME)
        files = [folder / f"{split}_images.npy", folder / f"{split}_labels.npy", folder / NAMES]
        missing = [str(file) for file in files if not file.is_file()]
        if missing:
            raise DataMissingError(
                f"{NAME} is not complete: expected {', '.join(missing)}.",
                f"Put its arrays into {NAME}/ below the folder of the data.",
            )
        pixels, labels = (np.array(open_npy(file)) for file in files[:2])
        shape = (len(labels), SIDE, SIDE, 3)
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            raise FileError(
                f"{files[0]} holds {pixels.dtype} of shape {pixels.shape}, not uint8 of {shape}.",
                "Write the arrays again.",
            )
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not np.isin(labels, range(CLASSES)).all():
            raise FileError(f"{files[1]} does not hold class numbers below {CLASSES}.", "Write the arrays again.")
        super().__init__(pixels, labels, _names(files[2]), NAME)


def _names(path: Path) -> tuple[str, ...]:
    names = read_json(path)
    if not (isinstance(names, list) and len(names) == CLASSES and all(isinstance(name, str) for name in names)):
        raise FileError(f"{path} does not name {CLASSES} classes.", "Write the arrays again.")
    return tuple(names)
