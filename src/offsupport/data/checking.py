"""Checking what a folder holds: which data sets, what is whole, missing or damaged, and how it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from offsupport.core.errors import DataMissingError, FileError, OffsupportError
from offsupport.core.progress import progress
from offsupport.data.catalog import DIGITS_FOLDER
from offsupport.data.cifar import (
    CIFAR10,
    CIFAR100,
    STORED_SEVERITIES,
    Cifar,
    CifarLayout,
    StoredCorruption,
)
from offsupport.data.corruptions import CORRUPTIONS, STANDARD, list_corruptions
from offsupport.data.dataset import Images
from offsupport.data.digits import Digits
from offsupport.data.folders import IMAGENET100, IMAGENET_CLASSES, list_images, sub_folders
from offsupport.data.making import LAYOUTS, PARTS, SEVERITIES
from offsupport.data.pictures import picture_problem, read_picture
from offsupport.data.sheet import draw_grid
from offsupport.data.stored import MANIFEST, Files, compare_file, open_npy, read_manifest, sums_name

Sample: TypeAlias = Callable[[int], Images]
"""Reads one picture (height, width, 3): the n-th of its kind."""


@dataclass
class Finding:
    """One data set in a folder.

    Args:
        kind: What it was recognised as.
        path: Where it is.
        present: The parts that are there and whole.
        missing: The parts that should be there.
        damaged: What is wrong, by file.
        notes: Remarks for people.
        samples: For contact sheets: how to read a picture of a corruption and severity.
    """

    kind: str
    path: Path
    present: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, dict[int, Sample]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.missing and not self.damaged

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "complete": self.complete,
            "present": self.present,
            "missing": self.missing,
            "damaged": self.damaged,
            "notes": self.notes,
        }


# Reading what ``data make`` wrote about its files.


def listed_by(folder: Path, finding: Finding) -> Files:
    """Return the files that a folder's manifest lists, and note what it says; empty without one."""
    if (folder / PARTS).is_dir():
        finding.notes.append("an unfinished `offsupport data make` is here; run it again to go on")
    try:
        manifest = read_manifest(folder)
    except FileError as error:
        finding.damaged[MANIFEST] = f"is not a manifest ({error.message})"
        return {}
    if manifest is None:
        finding.notes.append("no manifest.json: sizes and types are checked, not content")
        return {}
    made = {name: manifest["recipe"].get(name) for name in ("offsupport", "seed", "frost")}
    finding.notes.append(f"made by offsupport {made['offsupport']}, seed {made['seed']}, frost {made['frost']}")
    if manifest["skipped"]:
        finding.notes.append(f"{len(manifest['skipped'])} unreadable images were left out")
    files: Files = manifest["files"]
    return files


# Checking CIFAR batches and folders of .npy corruptions.


_ROWS: dict[str, Callable[[], int]] = {
    CIFAR10.corrupted: lambda: 50_000,
    CIFAR100.corrupted: lambda: 50_000,
    DIGITS_FOLDER: lambda: STORED_SEVERITIES * len(Digits("test")),
}


def find_cifar(folder: Path) -> Finding | None:
    """Recognise the Python batches of CIFAR-10 or CIFAR-100 and read them all."""
    for layout in (CIFAR10, CIFAR100):
        batches = [file for files in layout.splits.values() for file in files]
        if folder.name == layout.folder or (layout is CIFAR10 and (folder / batches[0]).is_file()):
            return _check_cifar(folder, layout)
    return None


def _check_cifar(folder: Path, layout: CifarLayout) -> Finding:
    finding = Finding(layout.name, folder)
    for split, files in layout.splits.items():
        absent = [file for file in (*files, layout.meta[0]) if not (folder / file).is_file()]
        finding.missing += [file for file in absent if file not in finding.missing]
        if absent:
            continue
        try:
            rows = len(Cifar(folder, layout, split))
        except OffsupportError as error:
            finding.damaged[split] = error.message
        else:
            finding.present.append(f"{split}: {rows} images")
    return finding


def find_npy(folder: Path) -> Finding | None:
    """Recognise a folder of ``<corruption>.npy`` files and check each: size, type, labels, and hash if one is known."""
    stored = [name for name in list_corruptions() if (folder / f"{name}.npy").is_file()]
    if not stored and not (folder.name in _ROWS and (folder / "labels.npy").is_file()):
        return None
    finding = Finding(folder.name if folder.name in _ROWS else "corruptions as .npy", folder)
    listed = listed_by(folder, finding)
    rows = _check_labels(folder, finding, listed)
    for name in stored:
        problem = _problem(folder, name, rows, listed)
        if problem:
            finding.damaged[f"{name}.npy"] = problem
        else:
            finding.present.append(name)
            finding.samples[name] = {severity: _sample(folder, name, severity) for severity in SEVERITIES}
    finding.missing += [f"{name}.npy" for name in STANDARD if name not in stored]
    return finding


def _check_labels(folder: Path, finding: Finding, listed: Files) -> int | None:
    """Check ``labels.npy`` and return how many rows the files must have, if that is known."""
    path = folder / "labels.npy"
    expected = _ROWS[folder.name]() if folder.name in _ROWS else None
    if not path.is_file():
        finding.missing.append(path.name)
        return expected
    try:
        labels = open_npy(path)
    except OffsupportError as error:
        finding.damaged[path.name] = error.message
        return expected
    problem = _label_problem(labels, expected)
    if not problem and path.name in listed:
        problem = compare_file(path, listed[path.name])
    if problem:
        finding.damaged[path.name] = problem
    else:
        finding.present.append(path.name)
    return expected or len(labels)


def _label_problem(labels: Any, expected: int | None) -> str:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        return f"holds {labels.dtype} of shape {labels.shape}, not a list of integers"
    if len(labels) % STORED_SEVERITIES or len(labels) != (expected or len(labels)):
        return f"has {len(labels)} rows, not {expected or 'a multiple of 5'}"
    blocks = np.asarray(labels).reshape(STORED_SEVERITIES, -1)
    return "" if (blocks == blocks[0]).all() else "does not repeat the same labels for each severity"


def _problem(folder: Path, name: str, rows: int | None, listed: Files) -> str:
    path = folder / f"{name}.npy"
    try:
        pixels = open_npy(path)
    except OffsupportError as error:
        return error.message
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        return f"holds {pixels.dtype} of shape {pixels.shape}, not uint8 images (rows, height, width, 3)"
    if rows is not None and len(pixels) != rows:
        return f"has {len(pixels)} rows, not {rows}"
    return compare_file(path, listed[path.name]) if path.name in listed else ""


def _sample(folder: Path, name: str, severity: int) -> Sample:
    def read(number: int) -> Images:
        rows, *size, _channels = open_npy(folder / f"{name}.npy").shape
        stored = StoredCorruption(folder, name, severity, rows=rows, name=folder.name, image_size=size)
        return np.asarray(stored.images([number % len(stored)])[0])

    return read


# Checking trees of images: ImageNet-C, ImageNet, and any folder.


_THUMBNAIL = (32, 32)
"""What JPEG files are decoded to when only their health is asked about."""


def find_tree(folder: Path) -> Finding | None:
    """Recognise ``<corruption>/<severity>/<class>/*.JPEG``, also below group folders, and read every image."""
    places = {name: place for name in list_corruptions() if (place := _place(folder, name)) is not None}
    if not places:
        return None
    trees = {
        (name, severity): place / str(severity)
        for name, place in places.items()
        for severity in SEVERITIES
        if (place / str(severity)).is_dir()
    }
    classes = sorted({sub for tree in trees.values() for sub in sub_folders(tree)})
    kind, expected = _kind(folder, classes)
    finding = Finding(kind, folder)
    listed = listed_by(folder, finding)
    for name in [name for name in list_corruptions() if name in places or name in STANDARD]:
        _check_corruption(finding, name, trees, expected, listed)
    return finding


def _place(folder: Path, corruption: str) -> Path | None:
    # The archives of the release have a folder per group.
    for place in (folder / corruption, folder / CORRUPTIONS[corruption].group / corruption):
        if place.is_dir() and any(name.isdigit() for name in sub_folders(place)):
            return place
    return None


def _kind(folder: Path, classes: Sequence[str]) -> tuple[str, int]:
    """Return what a tree of these classes is, and how many it should have."""
    if folder.name == "ImageNet100-C" or set(classes) == set(IMAGENET100):
        return "ImageNet100-C", len(IMAGENET100)
    if folder.name == "ImageNet-C" or len(classes) == IMAGENET_CLASSES:
        return "ImageNet-C", IMAGENET_CLASSES
    return "corruptions as image folders", len(classes)


def _check_corruption(
    finding: Finding, name: str, trees: dict[tuple[str, int], Path], expected: int, listed: Files
) -> None:
    before = len(finding.missing) + len(finding.damaged)
    for severity in SEVERITIES:
        tree = trees.get((name, severity))
        classes = sub_folders(tree) if tree else []
        if tree is None:
            finding.missing.append(f"{name}/{severity}")
            continue
        if len(classes) < expected:
            finding.missing.append(f"{name}/{severity}: {expected - len(classes)} of {expected} classes")
        files = [file for sub in classes for file in list_images(tree, sub)]
        sums = sums_name(name, severity)
        if sums in listed:
            finding.damaged |= LAYOUTS["imagenet-c"].problems(finding.path, {sums: listed[sums]})
        else:
            finding.damaged |= unreadable(tree, files, f"Reading {name}/{severity}")
        if files:
            finding.samples.setdefault(name, {})[severity] = _sample_files(tree, files)
    if len(finding.missing) + len(finding.damaged) == before:
        finding.present.append(name)


def find_images(folder: Path) -> Finding | None:
    """Recognise class folders of images, ImageNet among them, or a flat folder, and read every image."""
    classes = [sub for sub in sub_folders(folder) if list_images(folder, sub)]
    files = [file for sub in classes for file in list_images(folder, sub)] or list_images(folder, "")
    if not files:
        return None
    finding = Finding(_image_kind(classes), folder)
    finding.damaged = unreadable(folder, files, f"Reading {folder.name}")
    whole = len(files) - len(finding.damaged)
    finding.present.append(f"{whole} readable images" + (f" in {len(classes)} classes" if classes else ""))
    return finding


def _image_kind(classes: Sequence[str]) -> str:
    if set(classes) == set(IMAGENET100):
        return "imagenet100"
    wnids = all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in classes)
    return "imagenet" if wnids and len(classes) == IMAGENET_CLASSES else "folder"


def unreadable(folder: Path, files: Iterable[str], title: str) -> dict[str, str]:
    """Decode every image and return those that fail, by path."""
    found = {}
    names = list(files)
    with progress(title, len(names)) as advance:
        for name in names:
            problem = picture_problem(folder / name, _THUMBNAIL)
            if problem:
                found[str(folder / name)] = problem
            advance()
    return found


def _sample_files(tree: Path, files: Sequence[str]) -> Sample:
    def read(number: int) -> Images:
        # A stride that is no divisor of usual counts: rows show pictures of several classes.
        return read_picture(tree / files[number * 37 % len(files)])

    return read


# Looking through a folder: every data set in it is recognised and checked.


_RECOGNISERS = (find_cifar, find_npy, find_tree)


def check(folder: Path | str) -> list[Finding]:
    """Return what a folder and its sub-folders hold; nothing recognised is an error.

    Args:
        folder: A data set's folder, or one that holds several.
    """
    top = Path(folder)
    if not top.is_dir():
        raise DataMissingError(f"{top} is not a folder.", "Give the folder that holds the data.")
    places = [top, *(top / name for name in sub_folders(top))]
    findings = [found for place in places if (found := _recognise(place)) is not None]
    # Last, since any corrupted set is a folder of images too.
    if not findings:
        images = (find_images(place) for place in (top / "val", top / "train", top))
        findings = [found for found in images if found is not None]
    if not findings:
        raise DataMissingError(
            f"Nothing in {top} is a data set that offsupport knows.",
            "It looks for cifar-10-batches-py/, CIFAR-10-C/<corruption>.npy, "
            "ImageNet-C/<corruption>/<severity>/<class>/*.JPEG, or images in class folders.",
        )
    return findings


def _recognise(place: Path) -> Finding | None:
    for recognise in _RECOGNISERS:
        found = recognise(place)
        if found is not None:
            return found
    return None


def draw_findings(findings: Sequence[Finding]) -> Image.Image | None:
    """Return a contact sheet of every corruption and severity that is there, or None without any."""
    several = sum(bool(finding.samples) for finding in findings) > 1
    rows: dict[str, dict[str, Images]] = {}
    for finding in findings:
        for number, (name, samples) in enumerate(finding.samples.items()):
            rows[f"{finding.kind} {name}" if several else name] = {
                str(severity): picture
                for severity, sample in samples.items()
                if (picture := _read(sample, number)) is not None
            }
    titles = sorted({title for pictures in rows.values() for title in pictures}, key=int)
    return draw_grid(titles, rows) if rows else None


def _read(sample: Sample, number: int) -> Images | None:
    """Read a picture; one that cannot be read is left out, for the check reports it already."""
    try:
        return sample(number)
    except OffsupportError:
        return None
