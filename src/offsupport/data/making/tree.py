"""The layout of ImageNet-C: ``<corruption>/<severity>/<class>/*.JPEG`` of quality 85.

Hashes are in ``checksums/<corruption>-<severity>.sha256``, in the format of ``sha256sum``; the manifest lists the
hashes of those lists.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from offsupport.core.errors import FileError
from offsupport.core.files import sha256_file, write_text
from offsupport.data.corruptions import corrupt
from offsupport.data.dataset import Images
from offsupport.data.folders import Folder, list_images, sub_folders
from offsupport.data.making.job import PARTS, SEVERITIES, Files, Job, Layout, Unit, compare_file, describe_file
from offsupport.data.pictures import encode_jpeg

CHECKSUMS = "checksums"


class TreeLayout(Layout):
    """JPEG files in class folders, one tree per corruption and severity."""

    def prepare(self, job: Job, manifest: dict[str, Any]) -> None:
        """Remove class folders that a killed run left half-written."""
        for stale in (job.folder / PARTS).glob("*/*.tmp"):
            shutil.rmtree(stale)

    def pending(self, job: Job, corruption: str) -> list[Unit]:
        """One unit per class and severity; a class folder under its final name is whole."""
        units = []
        for severity in SEVERITIES:
            if not _final(job.folder, corruption, severity).is_dir():
                units += [Unit(corruption, severity, name) for name in job.clean.classes]
        return [unit for unit in units if not _part(job, unit).is_dir()]

    def size(self, job: Job, unit: Unit) -> int:
        """The images of the class."""
        return len(_rows_of(job, unit.part))

    def run(self, job: Job, unit: Unit) -> None:
        """Corrupt the images of one class at one severity into a folder of JPEG files."""
        final = _part(job, unit)
        half = final.with_name(f"{final.name}.{os.getpid()}.tmp")
        half.mkdir(parents=True)
        for row in _rows_of(job, unit.part):
            image = _read(job, row)
            if image is not None:
                corrupted = corrupt(
                    image[None], unit.corruption, unit.severity, job.seed, index=[row], frost_dir=job.frost_dir
                )
                (half / Path(_target(_folder(job).files[row])).name).write_bytes(encode_jpeg(corrupted[0]))
        for file in half.iterdir():
            _sync(file)
        half.rename(final)

    def finish(self, job: Job, corruption: str) -> tuple[Files, list[str]]:
        """Move the five trees to their place and list the hashes of their files."""
        files: Files = {}
        for severity in SEVERITIES:
            final = _final(job.folder, corruption, severity)
            if not final.is_dir():
                final.parent.mkdir(exist_ok=True)
                _part(job, Unit(corruption, severity, "")).rename(final)
            sums = job.folder / _sums(corruption, severity)
            write_text(sums, _checksums(job.folder, final))
            files[_sums(corruption, severity)] = describe_file(sums)
        return files, _skipped(job, _final(job.folder, corruption, 1))

    def listed(self, corruption: str) -> list[str]:
        """The five lists of hashes."""
        return [_sums(corruption, severity) for severity in SEVERITIES]

    def clear(self, job: Job, corruption: str) -> None:
        """Nothing is left: the units were moved."""

    def discard(self, job: Job, corruption: str) -> None:
        """Delete the five trees."""
        shutil.rmtree(job.folder / corruption, ignore_errors=True)

    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Compare every image with the list that names it, and the lists with the manifest."""
        found: dict[str, str] = {}
        for name, entry in files.items():
            problem = compare_file(folder / name, entry)
            found |= {name: problem} if problem else _broken_images(folder, folder / name)
        return found


def _broken_images(folder: Path, sums: Path) -> dict[str, str]:
    found = {}
    for line in sums.read_text().splitlines():
        sha256, _, name = line.partition("  ")
        if not (folder / name).is_file():
            found[name] = "is missing"
        elif sha256_file(folder / name) != sha256:
            found[name] = "has another sha256 than the list says"
    return found


def _checksums(folder: Path, tree: Path) -> str:
    names = [tree / file for sub in sub_folders(tree) for file in list_images(tree, sub)]
    return "".join(f"{sha256_file(file)}  {file.relative_to(folder).as_posix()}\n" for file in names)


def _read(job: Job, row: int) -> Images | None:
    """Return an image; None for one that cannot be read and may be skipped."""
    try:
        return _folder(job).read(row)
    except FileError as error:
        if job.skip_bad:
            return None
        raise FileError(error.message, "Replace or remove it, or leave such images out with --skip-bad.") from error


def _skipped(job: Job, tree: Path) -> list[str]:
    """Return the clean images that have no counterpart in a finished tree."""
    return [file for file in _folder(job).files if not (tree / _target(file)).is_file()]


def _target(file: str) -> str:
    return Path(file).with_suffix(".JPEG").as_posix()


def _rows_of(job: Job, name: str) -> list[int]:
    clean = job.clean
    return [int(row) for row in np.flatnonzero(clean.labels == clean.classes.index(name))]


def _folder(job: Job) -> Folder:
    clean = job.clean
    assert isinstance(clean, Folder)  # noqa: S101 - data sets in this layout come from folders
    return clean


def _part(job: Job, unit: Unit) -> Path:
    return job.folder / PARTS / f"{unit.corruption}-{unit.severity}" / unit.part


def _final(folder: Path, corruption: str, severity: int) -> Path:
    return folder / corruption / str(severity)


def _sums(corruption: str, severity: int) -> str:
    return f"{CHECKSUMS}/{corruption}-{severity}.sha256"


def _sync(path: Path) -> None:
    """Flush a file to disk; done for a whole folder after it is written, since the first flush carries the others."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
