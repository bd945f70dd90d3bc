"""The layout of CIFAR-10-C: one .npy file per corruption with the five severities stacked, and the labels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from offsupport.core.files import atomic
from offsupport.data.corrupted import Corrupted
from offsupport.data.making.job import PARTS, SEVERITIES, Files, Job, Layout, Unit, compare_file, describe_file

_CHUNK = 1000


class NpyLayout(Layout):
    """``<corruption>.npy`` with the five severities stacked, and ``labels.npy``."""

    def prepare(self, job: Job, manifest: dict[str, Any]) -> None:
        """Write ``labels.npy``: the labels five times over, as 8-bit numbers."""
        path = job.folder / "labels.npy"
        with atomic(path) as file:
            np.save(file, np.tile(job.clean.labels.astype(np.uint8), len(SEVERITIES)))
        manifest["files"]["labels.npy"] = describe_file(path)

    def pending(self, job: Job, corruption: str) -> list[Unit]:
        """One unit per severity; a part under its final name is whole."""
        units = [Unit(corruption, severity, "") for severity in SEVERITIES]
        return [unit for unit in units if not _part(job, unit).is_file()]

    def size(self, job: Job, unit: Unit) -> int:
        """All images at one severity."""
        return len(job.clean)

    def run(self, job: Job, unit: Unit) -> None:
        """Corrupt the whole split at one severity, piece by piece, into a file of raw pixels."""
        corrupted = Corrupted(job.clean, unit.corruption, unit.severity, job.seed, frost_dir=job.frost_dir)
        with atomic(_part(job, unit)) as file:
            for start in range(0, len(corrupted), _CHUNK):
                rows = np.arange(start, min(start + _CHUNK, len(corrupted)))
                file.write(np.ascontiguousarray(corrupted.images(rows)).data)

    def finish(self, job: Job, corruption: str) -> tuple[Files, list[str]]:
        """Join the five parts to one .npy file."""
        path = job.folder / f"{corruption}.npy"
        height, width = job.clean.image_size
        shape = (len(SEVERITIES) * len(job.clean), height, width, 3)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        with atomic(path) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for severity in SEVERITIES:
                with _part(job, Unit(corruption, severity, "")).open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        return {path.name: describe_file(path)}, []

    def listed(self, corruption: str) -> list[str]:
        """The one file."""
        return [f"{corruption}.npy"]

    def clear(self, job: Job, corruption: str) -> None:
        """Delete the five parts."""
        for severity in SEVERITIES:
            _part(job, Unit(corruption, severity, "")).unlink(missing_ok=True)

    def discard(self, job: Job, corruption: str) -> None:
        """Delete the file."""
        (job.folder / f"{corruption}.npy").unlink(missing_ok=True)

    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Compare size and hash of each file."""
        found = {file: compare_file(folder / file, entry) for file, entry in files.items()}
        return {file: problem for file, problem in found.items() if problem}


def _part(job: Job, unit: Unit) -> Path:
    return job.folder / PARTS / f"{unit.corruption}-{unit.severity}.pixels"
