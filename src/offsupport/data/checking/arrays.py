"""Checking CIFAR batches and folders of .npy corruptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offsupport.core.errors import OffsupportError
from offsupport.data.catalog import STORED_SEVERITIES
from offsupport.data.checking.finding import Finding, Sample
from offsupport.data.checking.manifest import read_manifest
from offsupport.data.cifar import CIFAR10, CIFAR100, SEVERITIES, Cifar, Layout, StoredCorruption, open_npy
from offsupport.data.corruptions import ALL, STANDARD
from offsupport.data.dataset import Images
from offsupport.data.digits import Digits
from offsupport.data.making.job import compare_file
from offsupport.data.shelf import DIGITS_FOLDER

_ROWS: dict[str, Callable[[], int]] = {
    CIFAR10.corrupted: lambda: 50_000,
    CIFAR100.corrupted: lambda: 50_000,
    DIGITS_FOLDER: lambda: SEVERITIES * len(Digits("test")),
}


def find_cifar(folder: Path) -> Finding | None:
    """Recognise the Python batches of CIFAR-10 or CIFAR-100 and read them all."""
    for layout in (CIFAR10, CIFAR100):
        batches = [file for files in layout.splits.values() for file in files]
        if folder.name == layout.folder or (layout is CIFAR10 and (folder / batches[0]).is_file()):
            return _check_cifar(folder, layout)
    return None


def _check_cifar(folder: Path, layout: Layout) -> Finding:
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
    stored = [name for name in ALL if (folder / f"{name}.npy").is_file()]
    if not stored and not (folder.name in _ROWS and (folder / "labels.npy").is_file()):
        return None
    finding = Finding(folder.name if folder.name in _ROWS else "corruptions as .npy", folder)
    listed = read_manifest(folder, finding)
    rows = _check_labels(folder, finding, listed)
    for name in stored:
        problem = _problem(folder, name, rows, listed)
        if problem:
            finding.damaged[f"{name}.npy"] = problem
        else:
            finding.present.append(name)
            finding.samples[name] = {severity: _sample(folder, name, severity) for severity in _severities()}
    finding.missing += [f"{name}.npy" for name in STANDARD if name not in stored]
    return finding


def _severities() -> range:
    return range(1, STORED_SEVERITIES + 1)


def _check_labels(folder: Path, finding: Finding, listed: dict[str, Any]) -> int | None:
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
    if len(labels) % SEVERITIES or len(labels) != (expected or len(labels)):
        return f"has {len(labels)} rows, not {expected or 'a multiple of 5'}"
    blocks = np.asarray(labels).reshape(SEVERITIES, -1)
    return "" if (blocks == blocks[0]).all() else "does not repeat the same labels for each severity"


def _problem(folder: Path, name: str, rows: int | None, listed: dict[str, Any]) -> str:
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
        rows = len(open_npy(folder / f"{name}.npy"))
        stored = StoredCorruption(folder, name, severity, rows=rows, name=folder.name)
        return np.asarray(stored.images([number % len(stored)])[0])

    return read
