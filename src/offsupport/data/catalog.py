"""Data sets by name: how one is registered, where its files are looked for, and whether a corruption is read or made.

A corrupted data set is called after its clean one with ``-c`` behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy.typing as npt

from offsupport.core.errors import ConfigError, DataMissingError, InputError, nearest
from offsupport.core.registry import Registry, same_definition
from offsupport.data import cifar, folders
from offsupport.data.cifar import STORED_SEVERITIES
from offsupport.data.corrupted import Corrupted
from offsupport.data.corruptions import CORRUPTIONS
from offsupport.data.dataset import Arrays, Dataset
from offsupport.data.digits import CLASSES, Digits
from offsupport.data.pictures import RELEASE_QUALITY
from offsupport.data.spec import SEVERITY, SourceChoice, StreamSpec
from offsupport.data.tiny100 import Tiny100

if TYPE_CHECKING:
    from torch import Tensor

ENVIRONMENT = "OFFSUPPORT_DATA"
DIGITS_FOLDER = "DIGITS-C"
CORRUPTED = "-c"
"""What follows the name of a clean data set in that of its corrupted one."""


Pair: TypeAlias = "tuple[npt.ArrayLike | Tensor, npt.ArrayLike | Tensor]"
Triple: TypeAlias = "tuple[npt.ArrayLike | Tensor, npt.ArrayLike | Tensor, Sequence[str]]"
Opener: TypeAlias = Callable[[Path, str], "Dataset | Pair | Triple"]
"""Takes the root and a split; returns images and labels, perhaps with class names, or a :class:`Dataset`."""
O = TypeVar("O", bound=Opener)  # noqa: E741 - an opener


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
        splits: The splits it has.
        function: The function that somebody registered through :func:`register_dataset`; None for our own.
    """

    about: str
    layout: str
    clean: Callable[[Path, str, int | None], Dataset]
    stored: Callable[[Path, str, int], Dataset | None] | None = None
    needs_root: bool = True
    release_jpeg: int | None = None
    splits: tuple[str, ...] = ("test", "train")
    function: Opener | None = None


class _Datasets(Registry[Entry]):
    """The registry; an installed package names its clean data set alone, and the corrupted one comes with it."""

    def __getitem__(self, name: str) -> Entry:
        self._load_twin(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._load_twin(name)
        return super().__contains__(name)

    def _load_twin(self, name: object) -> None:
        clean = str(name).removesuffix(CORRUPTED)
        if clean != name and clean not in self.registered() and super().__contains__(clean):
            super().__getitem__(clean)  # which registers both


DATASETS: Registry[Entry] = _Datasets("data set", group="offsupport.datasets")
"""Every data set by name, those of installed packages included."""


# Other people's data sets.


def register_dataset(
    name: str,
    about: str = "",
    *,
    splits: Sequence[str] = ("test", "train"),
    needs_root: bool = True,
    layout: str = "its files",
) -> Callable[[O], O]:
    """Return a decorator that makes a function a data set, and with it a corrupted one called ``<name>-c``.

    The function takes the root folder and a split, and returns images and labels, or images, labels and class names:
    uint8 images (n, height, width, 3) or floats (n, 3, height, width) in [0, 1], and class numbers, -1 where there is
    none. It may return a :class:`offsupport.data.Dataset` instead, for images that are read when asked for.

    Args:
        name: What it is called: letters, digits, ``_`` and ``-``.
        about: One line for ``offsupport list datasets``.
        splits: The splits it has; ``test`` is what streams and ``data make`` take unless told otherwise.
        needs_root: Whether it needs a folder of files; without one the function gets the folder it runs in.
        layout: The files it looks for in that folder, for the message that says they are missing.

    Example:
        >>> import numpy as np
        >>> @register_dataset("greys", "sixteen grey squares", splits=["test"], needs_root=False)
        ... def greys(root, split):
        ...     levels = np.arange(0, 256, 16, dtype=np.uint8)
        ...     return np.tile(levels[:, None, None, None], (1, 32, 32, 3)), levels // 128, ["dark", "bright"]
        >>> len(load("greys")), load("greys-c", corruption="fog").name
        (16, 'greys-c')
    """
    # Folders are called after it, and "-c" behind a name means corrupted.
    if not re.fullmatch(r"[\w-]+", name, re.ASCII) or name.endswith(CORRUPTED):
        raise ConfigError(
            f"{name!r} cannot be the name of a data set.", f"Use letters, digits, _ and -, without {CORRUPTED} behind."
        )
    if "test" not in splits:
        raise ConfigError(f"The data set {name!r} has no split 'test'.", "Call the one that is tested on so.")

    def store(function: O) -> O:
        clean = partial(_open_registered, name, function, tuple(splits), needs_root)
        entry = Entry(
            about=about, layout=layout, clean=clean, needs_root=needs_root, splits=tuple(splits), function=function
        )
        earlier = DATASETS.registered().get(name)
        known = earlier.function if earlier else None
        again = known is not None and same_definition(known, function)
        DATASETS.register(name, replace=again)(entry)
        twin = Entry(
            about=f"{name} under the corruptions; made on the fly where files are missing",
            layout=f"{layout}, or {name}{CORRUPTED}/<corruption>.npy and labels.npy",
            clean=clean,
            stored=partial(_stored_npy, f"{name}{CORRUPTED}", clean),
            needs_root=needs_root,
            splits=tuple(splits),
            function=function,
        )
        DATASETS.register(f"{name}{CORRUPTED}", replace=again)(twin)
        return function

    return store


def _open_registered(
    name: str, function: Opener, splits: tuple[str, ...], needs_root: bool, root: Path, split: str, _size: int | None
) -> Dataset:
    if split not in splits:
        raise ConfigError(f"{name} has no split {split!r}.", nearest(split, splits))
    found = function(root, split)
    if isinstance(found, Dataset):
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise InputError(
            f"The function of the data set {name!r} returned {type(found).__name__}.",
            "Have it return images and labels, images, labels and class names, or a Dataset.",
        )
    images, labels, *classes = found
    dataset = Arrays(images, labels, classes[0] if classes else (), name)
    if needs_root:
        dataset.source = "files"
    return dataset


def _stored_npy(
    name: str, clean: Callable[[Path, str, int | None], Dataset], root: Path, corruption: str, severity: int
) -> Dataset | None:
    """Open what ``offsupport data make`` wrote of a registered data set; the clean one says how long it must be."""
    folder = cifar.find_folder(root, name)
    if not (folder / f"{corruption}.npy").is_file():
        return None
    base = clean(root, "test", None)
    return cifar.StoredCorruption(
        folder,
        corruption,
        severity,
        rows=STORED_SEVERITIES * len(base),
        image_size=base.image_size,
        name=name,
        classes=base.classes,
    )


# The data sets of the package, with the readers of their official layouts.


def _digits(_root: Path, split: str, _size: int | None) -> Dataset:
    return Digits(split)


def _stored_digits(root: Path, corruption: str, severity: int) -> Dataset | None:
    folder = cifar.find_folder(root, DIGITS_FOLDER)
    if not (folder / f"{corruption}.npy").is_file():
        return None
    rows = STORED_SEVERITIES * len(Digits("test"))
    return cifar.StoredCorruption(folder, corruption, severity, rows=rows, name="digits-c", classes=CLASSES)


def _cifar(layout: cifar.CifarLayout, root: Path, split: str, _size: int | None) -> Dataset:
    return cifar.Cifar(root, layout, split)


def _stored_cifar(layout: cifar.CifarLayout, root: Path, corruption: str, severity: int) -> Dataset | None:
    return cifar.stored_corruption(root, layout, corruption, severity)


def _tiny100(root: Path, split: str, _size: int | None) -> Dataset:
    return Tiny100(root, split)


def _imagenet(name: str, root: Path, split: str, _size: int | None) -> Dataset:
    return folders.open_imagenet(root, split, folders.imagenet_classes(name), name)


def _stored_imagenet(name: str, root: Path, corruption: str, severity: int) -> Dataset | None:
    if folders.find_imagenet_c(root, corruption, severity, name) is None:
        return None
    return folders.open_imagenet_c(root, corruption, severity, folders.imagenet_classes(name), name)


def _imagenet_folder(root: Path, split: str, _size: int | None) -> Dataset:
    return folders.open_imagenet_folder(root, split, "imagenet-folder")


def _folder(root: Path, _split: str, size: int | None) -> Dataset:
    return folders.open_folder(root, size)


def _register(name: str, entry: Entry) -> None:
    DATASETS.register(name)(entry)


_register(
    "digits",
    Entry(
        about="1,797 handwritten digits, 32x32; inside the package",
        layout="",
        clean=_digits,
        needs_root=False,
        splits=Digits.SPLITS,
    ),
)
_register(
    "digits-c",
    Entry(
        about="digits under the corruptions; made on the fly",
        layout=f"{DIGITS_FOLDER}/<corruption>.npy",
        clean=_digits,
        stored=_stored_digits,
        needs_root=False,
        splits=Digits.SPLITS,
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
_register(
    "tiny100",
    Entry(
        about="100 classes of Tiny ImageNet, 32x32",
        layout="tiny100/{train,test}_{images,labels}.npy and classes.json",
        clean=_tiny100,
    ),
)
_register(
    "tiny100-c",
    Entry(
        about="tiny100 under the corruptions, 32x32; made on the fly from clean tiny100 where files are missing",
        layout="tiny100-c/<corruption>.npy and labels.npy",
        clean=_tiny100,
        stored=partial(_stored_npy, "tiny100-c", _tiny100),
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
for _name in ("imagenet-folder", "imagenet-folder-c"):
    _register(
        _name,
        Entry(
            about="photographs of any of ImageNet's classes, 224x224, numbered among all 1,000"
            + ("; under the corruptions, made on the fly" if _name.endswith(CORRUPTED) else ""),
            layout="class folders called by wnid or name, perhaps in val/ and train/",
            clean=_imagenet_folder,
            release_jpeg=RELEASE_QUALITY if _name.endswith(CORRUPTED) else None,
        ),
    )
_register(
    "folder",
    Entry(about="any folder of images or of class folders", layout="image files", clean=_folder, splits=("test",)),
)


def list_datasets() -> dict[str, str]:
    """Return the names of the known data sets and a line about each."""
    return {name: DATASETS[name].about for name in DATASETS}


def load(
    name: str,
    root: Path | str | None = None,
    split: str = StreamSpec.split,
    *,
    corruption: str | None = None,
    severity: int = SEVERITY,
    block: int | None = StreamSpec.block,
    corruption_seed: int | None = StreamSpec.corruption_seed,
    source: SourceChoice = StreamSpec.wanted_source,
    size: int | None = StreamSpec.size,
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
    spec = StreamSpec.asked(
        name, split=split, block=block, corruption_seed=corruption_seed, wanted_source=source, size=size
    )
    return Access(spec, root, frost_dir).open(corruption, severity)


@dataclass(frozen=True)
class Access:
    """The way to one data set: its clean data is opened once, however many corruptions are taken of it.

    Args:
        spec: Which data; what it says about corruptions and batches is left to the caller.
        root: Where the data is; None for ``$OFFSUPPORT_DATA``.
        frost_dir: Folder of the official frost textures, for generated frost.
    """

    spec: StreamSpec
    root: Path | str | None = None
    frost_dir: Path | str | None = None

    def __post_init__(self) -> None:
        if self.entry.needs_root and self.place is None:
            raise DataMissingError(
                f"No folder was given for {self.spec.dataset}, which needs {self.entry.layout}.",
                f"Pass root=... (--data on the command line), or set ${ENVIRONMENT}. Corrupted sets can be made from "
                "clean ones: offsupport data make.",
            )

    @property
    def entry(self) -> Entry:
        """What is known about the name."""
        return DATASETS[self.spec.dataset]

    @property
    def place(self) -> Path | None:
        """The given root, else ``$OFFSUPPORT_DATA`` for data sets that need one."""
        # digits-c is made without files, so that a folder for other data must not be searched for it unasked.
        fallback = os.environ.get(ENVIRONMENT) if self.entry.needs_root else None
        given = self.root if self.root is not None else fallback
        return Path(given) if given else None

    @cached_property
    def clean(self) -> Dataset:
        """The clean split."""
        return self.entry.clean(self.place or Path(), self.spec.split, self.spec.size)

    def open(self, corruption: str | None, severity: int, over: tuple[str, int] | None = None) -> Dataset:
        """Open the clean split, or a corruption of it: a stored one if one fits what is asked, else on the fly.

        Args:
            corruption: Its name; None for clean images.
            severity: Its severity.
            over: A corruption and its severity that come before it; the second is always made.
        """
        if corruption is None:
            return self.clean
        self._check_severity(corruption, severity)
        if over is not None:
            return self._made(self.open(*over), corruption, severity)
        stored = self._stored(corruption, severity)
        if stored is not None:
            return stored
        if self.spec.wanted_source == "files":
            raise DataMissingError(
                f"No stored {self.spec.dataset} holds {corruption} at severity {severity} as asked "
                f"(looked for {self.entry.layout or 'nothing'} in {self.place}).",
                'Use source="auto" to compute it, or ask for the test split, severity 1 to 5, no block and no seed.',
            )
        return self._made(self._clean_to_corrupt(corruption), corruption, severity)

    def _made(self, base: Dataset, corruption: str, severity: int) -> Dataset:
        return Corrupted(
            base,
            corruption,
            severity,
            self.spec.corruption_seed or 0,
            block=self.spec.block,
            frost_dir=self.frost_dir,
            jpeg=self.entry.release_jpeg,
            name=self.spec.dataset,
        )

    def _check_severity(self, corruption: str, severity: int) -> None:
        """Refuse what no size of images has, before any file is looked for; the images' own size is checked later."""
        found = CORRUPTIONS[corruption]
        found.arguments(max(found.rows, key=lambda side: len(found.rows[side])), severity)

    def _stored(self, corruption: str, severity: int) -> Dataset | None:
        # The release has one seed, whole images and its own frost; anything else was never stored.
        own_wishes = (self.spec.block, self.spec.corruption_seed, self.frost_dir) != (None, None, None)
        in_release = self.spec.split == "test" and severity <= STORED_SEVERITIES and not own_wishes
        if self.spec.wanted_source == "generated" or not in_release or self.entry.stored is None or self.place is None:
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
                f"Neither {corruption} of {self.spec.dataset} ({self.entry.layout}) nor clean images to corrupt are in "
                f"{self.place}: {error.message}",
                f"Make it: offsupport data make {self.spec.dataset} --data CLEAN --out {self.place}.",
            ) from error
