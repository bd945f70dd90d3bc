"""Images in folders: any folder, ImageNet, ImageNet-C and their 100-class versions. Files are read when asked for."""

from __future__ import annotations

import copy
import difflib
import functools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from offsupport.core.errors import ConfigError, DataMissingError, InputError, nearest
from offsupport.core.files import canonical_json, sha256_bytes
from offsupport.data.corruptions import CORRUPTIONS
from offsupport.data.dataset import Dataset, Images, Rows
from offsupport.data.pictures import read_picture
from offsupport.data.stored import listed_images, require_hash

# The 100 ImageNet classes of Tian, Krishnan and Isola (Contrastive Multiview Coding, 2020).
#
# Class numbers follow the sorted names, as folder-based readers count, not the order of the published list.


IMAGENET100: tuple[str, ...] = tuple(
    sorted(
        """
        n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890 n03062245 n01773797
        n01735189 n07831146 n07753275 n03085013 n04485082 n02105505 n01983481 n02788148 n03530642 n04435653
        n02086910 n02859443 n13040303 n03594734 n02085620 n02099849 n01558993 n04493381 n02109047 n04111531
        n02877765 n04429376 n02009229 n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855
        n03785016 n03764736 n03775546 n02087046 n07836838 n04099969 n04592741 n03891251 n02701002 n03379051
        n02259212 n07715103 n03947888 n04026417 n02326432 n03637318 n01980166 n02113799 n02086240 n03903868
        n02483362 n04127249 n02089973 n03017168 n02093428 n02804414 n02396427 n04418357 n02172182 n01729322
        n02113978 n03787032 n02089867 n02119022 n03777754 n04238763 n02231487 n03032252 n02138441 n02104029
        n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630 n03584829 n02123045
        n04229816 n02100583 n03642806 n04336792 n03259280 n02116738 n02108089 n03424325 n01855672 n02090622
        """.split()  # noqa: SIM905 - a table of names reads better than a hundred strings
    )
)


_CLASS_LIST = Path(__file__).with_name("imagenet_classes.txt")
"""The 1,000 classes of ImageNet in the order of their numbers: the wnid, then the names that WordNet has for it."""
IMAGENET_CLASSES = 1000
RESIZE, CROP = 256, 224
_SPLITS = {"test": "val", "val": "val", "train": "train"}
_EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}


class Folder(Dataset):
    """Images in class sub-folders, or in one flat folder (labels -1); classes and files in sorted order.

    The hash covers the relative path, size in bytes and class of every file, and how the images are resized: cheap for
    any number of images, blind to a change that keeps a file's size.

    Args:
        folder: Where the class folders, or the images, are.
        name: What it is called in results.
        classes: The class folders to read; None for all of them.
        resize: Bring the shorter side to this length first (bilinear).
        crop: Cut a centred square of this side. Without it all images must have one size.
        hashes: The sha256 that files must have when they are read, by relative path; of the others nothing is known.
        upright: Turn photographs as the camera noted.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "folder",
        *,
        classes: Sequence[str] | None = None,
        resize: int | None = None,
        crop: int | None = None,
        hashes: Mapping[str, str] | None = None,
        upright: bool = True,
    ) -> None:
        self.folder = folder
        self.hashes = hashes or {}
        self.upright = upright
        self.resize = resize
        self.crop = crop
        found = sub_folders(folder) if classes is None else list(classes)
        self.files = list_images(folder, "")
        labels = [-1] * len(self.files)
        if found:
            by_class = [list_images(folder, sub) for sub in found]
            self.files = [file for files in by_class for file in files]
            labels = [number for number, files in enumerate(by_class) for _ in files]
        if not self.files:
            raise DataMissingError(
                f"Neither {folder} nor its class folders hold images.",
                f"Put them there as {', '.join(sorted(_EXTENSIONS))}.",
            )
        super().__init__(name, labels, found)

    def images(self, indices: Rows) -> Images:
        """Read these files; one that cannot be read is an error that names it."""
        pictures = [self.read(int(row)) for row in np.asarray(indices, dtype=np.int64)]
        if len({picture.shape for picture in pictures}) > 1:
            sizes = sorted({f"{picture.shape[1]}x{picture.shape[0]}" for picture in pictures})
            raise InputError(f"The images in {self.folder} have several sizes: {', '.join(sizes)}.", "Pass size=N.")
        return np.stack(pictures)

    def read(self, row: int) -> Images:
        """Return one image (height, width, 3)."""
        require_hash(self.folder / self.files[row], self.hashes.get(self.files[row]))
        return read_picture(self.folder / self.files[row], self.resize, self.crop, upright=self.upright)

    def numbered(self, numbers: Sequence[int], classes: Sequence[str]) -> Folder:
        """Return the same files with the class numbers of a model.

        Args:
            numbers: For each class folder the number of its class.
            classes: The names of the model's classes.
        """
        found = copy.copy(self)
        found.labels = np.asarray(numbers, dtype=np.int64)[self.labels]
        found.classes = tuple(classes)
        return found

    def _hash(self) -> str:
        # Reading a million images to name a data set would take longer than most experiments on it.
        sizes = [(self.folder / file).stat().st_size for file in self.files]
        parts = [self.files, sizes, self.labels.tolist(), self.resize, self.crop]
        return sha256_bytes(canonical_json(parts).encode())


def list_images(folder: Path, sub: str) -> list[str]:
    """Return the images directly in ``folder/sub``, sorted, as paths relative to ``folder``."""
    place = folder / sub
    if not place.is_dir():
        return []
    # By name and without asking the system about each: ImageNet has 1.2 million files.
    with os.scandir(place) as entries:
        names = [e.name for e in entries if Path(e.name).suffix.lower() in _EXTENSIONS and not e.name.startswith(".")]
    return [f"{sub}/{name}" if sub else name for name in sorted(names)]


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders in ``folder``, sorted; hidden ones aside."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def open_folder(root: Path, size: int | None) -> Folder:
    """Open any image folder, resized to ``size`` on the shorter side and cropped to a square if given."""
    if not root.is_dir():
        raise DataMissingError(f"{root} is not a folder.", "Pass the folder that holds the images or class folders.")
    return Folder(root, resize=size, crop=size)


def open_imagenet(root: Path, split: str, classes: Sequence[str] | None, name: str) -> Folder:
    """Open clean ImageNet (bilinear to 256 on the shorter side, centre crop of 224).

    Args:
        root: Holds ``val/<wnid>/*.JPEG`` (or ``train/``), also below ``imagenet/``; or the class folders themselves.
        split: ``test`` (the validation images) or ``train``.
        classes: The classes to read; None for all 1,000.
        name: What the data set is called.
    """
    if split not in _SPLITS:
        raise ConfigError(f"{name} has no split {split!r}.", nearest(split, _SPLITS))
    part = _SPLITS[split]
    # Archives are unpacked under several names; a folder that holds the classes itself comes last.
    tops = [top for top in (name, "imagenet", "ImageNet", "ILSVRC2012", "") if (root / top).is_dir()]
    places = [root / top / part for top in tops] + [root]
    for place in places:
        if _has_classes(place, classes):
            # Published numbers on ImageNet are of pictures as they lie in the files, turned or not.
            return Folder(place, name, classes=classes, resize=RESIZE, crop=CROP, upright=False)
    raise DataMissingError(
        f"{name} needs {len(classes or range(IMAGENET_CLASSES))} class folders in {root / part} "
        f"({part}/<wnid>/*.JPEG); {_best(places)}.",
        f"Point to the folder that holds {part}/, or to the class folders themselves. Photographs of some of its "
        "classes are the data set imagenet-folder.",
    )


def open_imagenet_folder(root: Path, split: str, name: str) -> Folder:
    """Open photographs of some of ImageNet's classes, read as :func:`open_imagenet` reads all of them.

    Args:
        root: Holds ``val/`` (or ``train/``) with the class folders, or for ``test`` the class folders themselves; each
            is called by its wnid or by a name of the class.
        split: ``test`` or ``train``.
        name: What the data set is called.
    """
    if split not in _SPLITS:
        raise ConfigError(f"{name} has no split {split!r}.", nearest(split, _SPLITS))
    part = root / _SPLITS[split]
    place = root if not part.is_dir() and split != "train" else part
    subs = sub_folders(place)
    if not subs:
        raise DataMissingError(
            f"{name} needs class folders in {place}; found none.",
            "Point to the folder that holds them, each called by its wnid (n01440764) or its name (tench).",
        )
    known = imagenet_class_names()
    found = Folder(place, name, resize=RESIZE, crop=CROP, upright=False)
    return found.numbered(match_classes(subs, known), [names[1] for names in known])


@functools.cache
def imagenet_class_names() -> tuple[tuple[str, ...], ...]:
    """Return for each of ImageNet's 1,000 classes its wnid, and then the names WordNet has for it."""
    lines = _CLASS_LIST.read_text(encoding="utf-8").splitlines()
    parts = (line.partition(" ") for line in lines)
    return tuple((wnid, *names.split(", ")) for wnid, _, names in parts)


def match_classes(folders: Sequence[str], classes: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of each folder's class; a folder that is no class, or could be several, is refused.

    Letters of either case are the same, and so are spaces, hyphens and underscores. A wnid may stand before a name.

    Args:
        folders: Names of class folders.
        classes: For each class of a model the names it goes by.
    """
    owners: dict[str, list[int]] = {}
    for number, names in enumerate(classes):
        for key in {_plain(name) for name in names}:
            owners.setdefault(key, []).append(number)
    found = [_match(folder, owners, classes) for folder in folders]
    twice = [number for number, count in Counter(found).items() if count > 1]
    if twice:
        same = [folder for folder, number in zip(folders, found, strict=True) if number == twice[0]]
        raise InputError(f"The folders {', '.join(same)} are the same class.", "Put their images into one.")
    return found


def _match(folder: str, owners: Mapping[str, list[int]], classes: Sequence[Sequence[str]]) -> int:
    wnid = _WNID.match(folder)
    numbers = owners.get(_plain(wnid[0] if wnid else folder), [])
    if len(numbers) == 1:
        return numbers[0]
    if numbers:
        choices = ", ".join(classes[number][0] for number in numbers)
        raise InputError(f"Several classes are called {folder!r}: {choices}.", "Call the folder by one of these.")
    close = [] if wnid else difflib.get_close_matches(_plain(folder), owners, n=1, cutoff=0.8)
    example = close[0] if close else classes[0][-1]
    raise InputError(
        f"The folder {folder!r} is none of the model's {len(classes):,} classes.",
        f"Move it away, or call it as its class is{', perhaps' if close else ', for example'} {example!r}.",
    )


_WNID = re.compile(r"n\d{8}(?![^\W_])")


def _plain(name: str) -> str:
    return " ".join(re.sub(r"[\W_]+", " ", name).casefold().split())


def open_imagenet_c(root: Path, corruption: str, severity: int, classes: Sequence[str] | None, name: str) -> Folder:
    """Open a stored ImageNet-C folder (centre crop of 224 only: it is 224 pixels wide already)."""
    place = find_imagenet_c(root, corruption, severity, name)
    if place is None or not _has_classes(place, classes):
        raise DataMissingError(
            f"{name} needs {len(classes or range(IMAGENET_CLASSES))} class folders in {corruption}/{severity} below "
            f"{root}; {_best([place] if place else [])}.",
            "Unpack the official archive again, or make it with `offsupport data make`.",
        )
    return Folder(place, name, classes=classes, crop=CROP, hashes=listed_images(place))


def find_imagenet_c(root: Path, corruption: str, severity: int, name: str) -> Path | None:
    """Return the folder of a corruption and severity, with or without the group folder of the archives, or None."""
    own = "ImageNet100-C" if name == "imagenet100-c" else "ImageNet-C"
    for top in dict.fromkeys((own, "ImageNet-C", "")):
        for place in (root / top / corruption, root / top / CORRUPTIONS[corruption].group / corruption):
            if (place / str(severity)).is_dir():
                return place / str(severity)
    return None


def _has_classes(place: Path, classes: Sequence[str] | None) -> bool:
    found = sub_folders(place)
    return set(classes) <= set(found) if classes is not None else len(found) == IMAGENET_CLASSES


def _best(places: Sequence[Path]) -> str:
    counts = [(len(sub_folders(place)), str(place)) for place in places]
    most, where = max(counts, default=(0, ""))
    return f"found {most} in {where}" if most else "found none"


def imagenet_classes(name: str) -> Sequence[str] | None:
    """Return the class folders that a data set name stands for; None for all of ImageNet."""
    return IMAGENET100 if name.startswith("imagenet100") else None
