"""Every data set that has a name, with the reader of its official layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from offsupport.core.registry import Registry
from offsupport.data import cifar, folders
from offsupport.data.dataset import Dataset
from offsupport.data.digits import CLASSES, Digits
from offsupport.data.pictures import RELEASE_QUALITY

DIGITS_FOLDER = "DIGITS-C"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set name.

    Args:
        about: One line for people.
        layout: The files that are expected, relative to the root.
        clean: Opens a clean split: (root, split, size).
        stored: Opens a stored corruption, or returns None where it is not there: (root, corruption, severity).
        needs_root: Whether it needs files.
        release_jpeg: Quality of the JPEG that the release passed its images through; None for raw pixels.
    """

    about: str
    layout: str
    clean: Callable[[Path, str, int | None], Dataset]
    stored: Callable[[Path, str, int], Dataset | None] | None = None
    needs_root: bool = True
    release_jpeg: int | None = None


DATASETS: Registry[Entry] = Registry("data set")


def _digits(_root: Path, split: str, _size: int | None) -> Dataset:
    return Digits(split)


def _stored_digits(root: Path, corruption: str, severity: int) -> Dataset | None:
    folder = cifar.find_folder(root, DIGITS_FOLDER)
    if not (folder / f"{corruption}.npy").is_file():
        return None
    rows = cifar.SEVERITIES * len(Digits("test"))
    return cifar.StoredCorruption(folder, corruption, severity, rows=rows, name="digits-c", classes=CLASSES)


def _cifar(layout: cifar.Layout, root: Path, split: str, _size: int | None) -> Dataset:
    return cifar.Cifar(root, layout, split)


def _stored_cifar(layout: cifar.Layout, root: Path, corruption: str, severity: int) -> Dataset | None:
    return cifar.stored_corruption(root, layout, corruption, severity)


def _imagenet(name: str, root: Path, split: str, _size: int | None) -> Dataset:
    return folders.open_imagenet(root, split, folders.imagenet_classes(name), name)


def _stored_imagenet(name: str, root: Path, corruption: str, severity: int) -> Dataset | None:
    if folders.find_imagenet_c(root, corruption, severity, name) is None:
        return None
    return folders.open_imagenet_c(root, corruption, severity, folders.imagenet_classes(name), name)


def _folder(root: Path, _split: str, size: int | None) -> Dataset:
    return folders.open_folder(root, size)


def _register(name: str, entry: Entry) -> None:
    DATASETS.register(name)(entry)


_register(
    "digits",
    Entry(about="1,797 handwritten digits, 32x32; inside the package", layout="", clean=_digits, needs_root=False),
)
_register(
    "digits-c",
    Entry(
        about="digits under the corruptions; made on the fly",
        layout=f"{DIGITS_FOLDER}/<corruption>.npy",
        clean=_digits,
        stored=_stored_digits,
        needs_root=False,
    ),
)
for _layout in (cifar.CIFAR10, cifar.CIFAR100):
    _clean = partial(_cifar, _layout)
    _title = _layout.corrupted.removesuffix("-C")
    _register(_layout.name, Entry(about=f"{_title}, 32x32", layout=f"{_layout.folder}/", clean=_clean))
    _register(
        f"{_layout.name}-c",
        Entry(
            about=f"{_layout.corrupted}, 32x32; made on the fly from clean {_title} where files are missing",
            layout=f"{_layout.corrupted}/<corruption>.npy and labels.npy",
            clean=_clean,
            stored=partial(_stored_cifar, _layout),
        ),
    )
for _name, _title in (("imagenet", "ImageNet"), ("imagenet100", "ImageNet-100 (Tian et al., 2020)")):
    _clean = partial(_imagenet, _name)
    _register(_name, Entry(about=f"{_title}, 224x224", layout="val/<wnid>/*.JPEG", clean=_clean))
    _register(
        f"{_name}-c",
        Entry(
            about=f"{_title} under the corruptions; made on the fly where files are missing",
            layout="<corruption>/<severity>/<wnid>/*.JPEG",
            clean=_clean,
            stored=partial(_stored_imagenet, f"{_name}-c"),
            release_jpeg=RELEASE_QUALITY,
        ),
    )
_register("folder", Entry(about="any folder of images or of class folders", layout="image files", clean=_folder))
