"""Looking through a folder: every data set in it is recognised and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from offsupport.core.errors import DataMissingError, OffsupportError
from offsupport.data.checking.arrays import find_cifar, find_npy
from offsupport.data.checking.finding import Finding, Sample
from offsupport.data.checking.trees import find_images, find_tree
from offsupport.data.dataset import Images
from offsupport.data.folders import sub_folders
from offsupport.data.sheet import draw_grid

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
