"""Opening data sets by name: where files are looked for, and whether a corruption is read or computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, TypeAlias

from offsupport.core.errors import ConfigError, DataMissingError, nearest
from offsupport.core.registry import Registry
from offsupport.data import cifar, folders
from offsupport.data.corrupted import Corrupted
from offsupport.data.corruptions.registry import parameters
from offsupport.data.dataset import Dataset
from offsupport.data.digits import CLASSES, Digits
from offsupport.data.pictures import RELEASE_QUALITY

# Every data set that has a name, with the reader of its official layout.


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


SourceChoice: TypeAlias = Literal["auto", "files", "generated"]
SOURCES: tuple[SourceChoice, ...] = ("auto", "files", "generated")
ENVIRONMENT = "OFFSUPPORT_DATA"
STORED_SEVERITIES = 5


def list_datasets() -> dict[str, str]:
    """Return the names of the known data sets and a line about each."""
    return {name: DATASETS[name].about for name in DATASETS}


def load(
    name: str,
    root: Path | str | None = None,
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    block: int | None = None,
    corruption_seed: int | None = None,
    source: SourceChoice = "auto",
    size: int | None = None,
    frost_dir: Path | str | None = None,
) -> Dataset:
    """Open a data set; nothing is read but what is needed to know its rows.

    Args:
        name: One of :func:`list_datasets`.
        root: Where the data is; None for ``$OFFSUPPORT_DATA``. ``digits`` and ``digits-c`` need none.
        split: ``test`` or ``train``.
        corruption: A corruption; None for the clean data.
        severity: 1 to 5; impulse noise to 10.
        block: Corrupt only a square of this side.
        corruption_seed: Of the corruption's random draws; giving one means generating.
        source: ``files``, ``generated``, or ``auto``: stored files where they exist.
        size: Side to which a ``folder`` is resized and cropped.
        frost_dir: Folder of the official frost textures, for generated frost.
    """
    access = Access(name, root, split, block, corruption_seed, source, size, frost_dir)
    return access.clean if corruption is None else access.corrupted(corruption, severity)


@dataclass(frozen=True)
class Access:
    """The way to one data set: its clean data is opened once, however many corruptions are taken of it.

    The fields are the arguments of :func:`load`.
    """

    name: str
    root: Path | str | None = None
    split: str = "test"
    block: int | None = None
    corruption_seed: int | None = None
    source: SourceChoice = "auto"
    size: int | None = None
    frost_dir: Path | str | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigError(f"Unknown source {self.source!r}.", nearest(self.source, SOURCES))
        if self.entry.needs_root and self.place is None:
            raise DataMissingError(
                f"No folder was given for {self.name}, which needs {self.entry.layout}.",
                f"Pass root=... (--data on the command line), or set ${ENVIRONMENT}. Corrupted sets can be made from "
                "clean ones: offsupport data make.",
            )

    @property
    def entry(self) -> Entry:
        """What is known about the name."""
        return DATASETS[self.name]

    @property
    def place(self) -> Path | None:
        """The given root, else ``$OFFSUPPORT_DATA`` for data sets that need one."""
        fallback = os.environ.get(ENVIRONMENT) if self.entry.needs_root else None
        given = self.root if self.root is not None else fallback
        return Path(given) if given else None

    @cached_property
    def clean(self) -> Dataset:
        """The clean split."""
        return self.entry.clean(self.place or Path(), self.split, self.size)

    def corrupted(self, corruption: str, severity: int) -> Dataset:
        """Open a stored corruption if one fits what is asked, else corrupt the clean split on the fly."""
        parameters(corruption, 32, severity)  # the most severities any size has; the images' own is checked below
        stored = self._stored(corruption, severity)
        if stored is not None:
            return stored
        if self.source == "files":
            raise DataMissingError(
                f"No stored {self.name} holds {corruption} at severity {severity} as asked "
                f"(looked for {self.entry.layout or 'nothing'} in {self.place}).",
                'Use source="auto" to compute it, or ask for the test split, severity 1 to 5, no block and no seed.',
            )
        return Corrupted(
            self._clean_to_corrupt(corruption),
            corruption,
            severity,
            self.corruption_seed or 0,
            block=self.block,
            frost_dir=self.frost_dir,
            jpeg=self.entry.release_jpeg,
            name=self.name,
        )

    def _stored(self, corruption: str, severity: int) -> Dataset | None:
        own_wishes = (self.block, self.corruption_seed, self.frost_dir) != (None, None, None)
        in_release = self.split == "test" and severity <= STORED_SEVERITIES and not own_wishes
        if self.source == "generated" or not in_release or self.entry.stored is None or self.place is None:
            return None
        return self.entry.stored(self.place, corruption, severity)

    def _clean_to_corrupt(self, corruption: str) -> Dataset:
        """Open the clean data; if that is missing too, say both places that were tried."""
        try:
            return self.clean
        except DataMissingError as error:
            if self.entry.stored is None:
                raise
            raise DataMissingError(
                f"Neither {corruption} of {self.name} ({self.entry.layout}) nor clean images to corrupt are in "
                f"{self.place}: {error.message}",
                f"Make it: offsupport data make {self.name} --data CLEAN --out {self.place}.",
            ) from error
