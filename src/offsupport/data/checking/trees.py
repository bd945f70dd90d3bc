"""Checking trees of images: ImageNet-C, ImageNet, and any folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from offsupport.core.progress import progress
from offsupport.data.catalog import STORED_SEVERITIES
from offsupport.data.checking.finding import Finding, Sample
from offsupport.data.checking.manifest import read_manifest
from offsupport.data.corruptions import ALL, GROUPS, STANDARD
from offsupport.data.dataset import Images
from offsupport.data.folders import IMAGENET_CLASSES, list_images, sub_folders
from offsupport.data.imagenet100 import IMAGENET100
from offsupport.data.making import LAYOUTS
from offsupport.data.pictures import read_picture

_THUMBNAIL = (32, 32)


def find_tree(folder: Path) -> Finding | None:
    """Recognise ``<corruption>/<severity>/<class>/*.JPEG``, also below group folders, and read every image."""
    places = {name: place for name in ALL if (place := _place(folder, name)) is not None}
    if not places:
        return None
    trees = {
        (name, severity): place / str(severity)
        for name, place in places.items()
        for severity in range(1, STORED_SEVERITIES + 1)
        if (place / str(severity)).is_dir()
    }
    classes = sorted({sub for tree in trees.values() for sub in sub_folders(tree)})
    kind, expected = _kind(folder, classes)
    finding = Finding(kind, folder)
    listed = read_manifest(folder, finding)
    for name in [name for name in ALL if name in places or name in STANDARD]:
        _check_corruption(finding, name, trees, expected, listed)
    return finding


def _place(folder: Path, corruption: str) -> Path | None:
    group = next(group for group, names in GROUPS.items() if corruption in names)
    for place in (folder / corruption, folder / group / corruption):
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
    finding: Finding, name: str, trees: dict[tuple[str, int], Path], expected: int, listed: dict[str, Any]
) -> None:
    before = len(finding.missing) + len(finding.damaged)
    for severity in range(1, STORED_SEVERITIES + 1):
        tree = trees.get((name, severity))
        classes = sub_folders(tree) if tree else []
        if tree is None:
            finding.missing.append(f"{name}/{severity}")
            continue
        if len(classes) < expected:
            finding.missing.append(f"{name}/{severity}: {expected - len(classes)} of {expected} classes")
        files = [file for sub in classes for file in list_images(tree, sub)]
        sums = f"checksums/{name}-{severity}.sha256"
        if sums in listed:
            finding.damaged |= LAYOUTS["imagenet-c"].problems(finding.path, {sums: listed[sums]})
        else:
            finding.damaged |= unreadable(tree, files, f"Reading {name}/{severity}")
        if files:
            finding.samples.setdefault(name, {})[severity] = _sample(tree, files)
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
            problem = _image_problem(folder / name)
            if problem:
                found[str(folder / name)] = problem
            advance()
    return found


def _image_problem(path: Path) -> str:
    try:
        with Image.open(path) as picture:
            picture.draft("RGB", _THUMBNAIL)  # JPEG decodes to a small version: the whole file is read, in less time
            picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"cannot be read ({error})"
    return ""


def _sample(tree: Path, files: Sequence[str]) -> Sample:
    def read(number: int) -> Images:
        return read_picture(tree / files[number * 37 % len(files)])

    return read
