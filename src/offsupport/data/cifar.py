"""CIFAR-10 and CIFAR-100 from their Python batches, and the corrupted sets from their .npy files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from offsupport.core.errors import ConfigError, DataMissingError, FileError, nearest
from offsupport.data.dataset import Arrays, Dataset, Images, Labels, Rows
from offsupport.data.pickles import read_pickle

SIDE = 32
SEVERITIES = 5


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one of the two data sets keeps what.

    Args:
        name: What it is called here.
        folder: The folder of its Python batches.
        corrupted: The folder of its corrupted version.
        splits: Batch files by split.
        labels: The key of the labels in a batch.
        meta: The file of class names, and their key in it.
        classes: How many there are.
    """

    name: str
    folder: str
    corrupted: str
    splits: dict[str, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]
    classes: int


CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-py",
    corrupted="CIFAR-10-C",
    splits={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    labels="labels",
    meta=("batches.meta", "label_names"),
    classes=10,
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-python",
    corrupted="CIFAR-100-C",
    splits={"train": ("train",), "test": ("test",)},
    labels="fine_labels",
    meta=("meta", "fine_label_names"),
    classes=100,
)


class Cifar(Arrays):
    """One split of CIFAR, read into memory (30 MB to test, 150 MB to train): pickles cannot be memory-mapped."""

    source = "files"

    def __init__(self, root: Path, layout: Layout, split: str = "test") -> None:
        if split not in layout.splits:
            raise ConfigError(f"{layout.name} has no split {split!r}.", nearest(split, layout.splits))
        folder = find_folder(root, layout.folder)
        files = [folder / file for file in (*layout.splits[split], layout.meta[0])]
        missing = [str(file) for file in files if not file.is_file()]
        if missing:
            raise DataMissingError(
                f"{layout.name} is not complete: expected {', '.join(missing)}.",
                f"Unpack the official Python archive so that {root} holds {layout.folder}/.",
            )
        batches = [_read_batch(file, layout) for file in files[:-1]]
        names = _read_names(files[-1], layout)
        images = np.concatenate([images for images, _ in batches])
        super().__init__(images, np.concatenate([labels for _, labels in batches]), names, layout.name)


class StoredCorruption(Dataset):
    """One corruption at one severity out of a CIFAR-C folder: rows (s-1)n to sn of ``<corruption>.npy``.

    The file is mapped for the length of each read only, so that the pages of many files do not add up. The hash is that
    of the pixels and labels of this severity.

    Args:
        folder: The folder of .npy files.
        corruption: Which file.
        severity: Which fifth of it.
        rows: How many rows the whole file must have.
        name: What the data set is called.
        classes: Class names.
    """

    def __init__(
        self, folder: Path, corruption: str, severity: int, *, rows: int, name: str, classes: Sequence[str] = ()
    ) -> None:
        self.path = folder / f"{corruption}.npy"
        labels = open_npy(folder / "labels.npy")
        pixels = open_npy(self.path)
        if pixels.dtype != np.uint8 or pixels.shape != (rows, SIDE, SIDE, 3):
            raise FileError(
                f"{self.path} holds {pixels.dtype} of shape {pixels.shape}, not uint8 of ({rows}, {SIDE}, {SIDE}, 3).",
                f"Make it again with `offsupport data make {name}`, or get the official file.",
            )
        if labels.dtype.kind not in "iu" or labels.shape != (rows,):
            raise FileError(
                f"{folder / 'labels.npy'} holds {labels.dtype} of shape {labels.shape}, not {rows} integers.",
                f"Make it again with `offsupport data make {name}`, or get the official file.",
            )
        size = rows // SEVERITIES
        self._first = (severity - 1) * size
        super().__init__(name, np.array(labels[self._first : self._first + size]), classes)

    def images(self, indices: Rows) -> Images:
        """Return these rows; the file is open during the call only."""
        rows = np.asarray(indices, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows must lie in 0 to {len(self) - 1}")  # else they would fall into another severity
        return np.asarray(open_npy(self.path)[rows + self._first])


def find_folder(root: Path, name: str) -> Path:
    """Return ``root/name``, or ``root`` itself if that is its name."""
    return root if root.name == name and not (root / name).is_dir() else root / name


def open_npy(path: Path) -> Any:
    """Return a .npy file, memory-mapped; one that is missing, cut short or of Python objects is an error."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataMissingError(f"{path} is missing.", "Make it with `offsupport data make`.") from error
    except (ValueError, EOFError, OSError, SyntaxError) as error:
        raise FileError(f"{path} is damaged ({error}).", "Make it again, or get the official file again.") from error


def stored_corruption(
    root: Path, layout: Layout, corruption: str, severity: int, clean_rows: int = 10_000
) -> Dataset | None:
    """Return a stored corruption, or None if there is no file for it."""
    folder = find_folder(root, layout.corrupted)
    if not (folder / f"{corruption}.npy").is_file():
        return None
    names = find_folder(root, layout.folder) / layout.meta[0]
    classes = _read_names(names, layout) if names.is_file() else tuple(map(str, range(layout.classes)))
    rows = SEVERITIES * clean_rows
    return StoredCorruption(folder, corruption, severity, rows=rows, name=f"{layout.name}-c", classes=classes)


def _read_batch(path: Path, layout: Layout) -> tuple[Images, Labels]:
    batch = read_pickle(path)
    pixels, labels = (batch.get("data"), batch.get(layout.labels)) if isinstance(batch, dict) else (None, None)
    if not _are_pixels(pixels) or not _are_labels(labels, len(pixels), layout.classes):
        raise FileError(
            f"{path} is not a {layout.name} batch: it needs uint8 data of (n, {3 * SIDE * SIDE}) and "
            f"n {layout.labels} below {layout.classes}.",
            "Unpack the official Python archive again.",
        )
    return pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), np.asarray(labels, dtype=np.int64)


def _are_pixels(pixels: Any) -> TypeGuard[Images]:
    return isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * SIDE * SIDE,)


def _are_labels(labels: Any, count: int, classes: int) -> bool:
    if not isinstance(labels, (list, np.ndarray)) or len(labels) != count:
        return False
    return all(isinstance(label, (int, np.integer)) and 0 <= label < classes for label in labels)


def _read_names(path: Path, layout: Layout) -> tuple[str, ...]:
    meta = read_pickle(path)
    names = meta.get(layout.meta[1]) if isinstance(meta, dict) else None
    if not isinstance(names, list) or len(names) != layout.classes:
        raise FileError(f"{path} does not name {layout.classes} classes.", "Unpack the official archive again.")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)
