"""Making corrupted data sets in their official layouts: parallel, resumable, whole or absent.

A job is cut into units. Workers write finished units to ``.parts``; when all units of a corruption are there, its files
move to their final place and ``manifest.json`` is written anew. Whatever moment it is killed at, a rerun does what is
missing and ends with the same bytes.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import scipy

from offsupport import __version__
from offsupport.core.errors import ConfigError, FileError, OffsupportError, nearest
from offsupport.core.files import folder_lock, read_json, write_json
from offsupport.core.progress import progress
from offsupport.data.cifar import CIFAR10, CIFAR100
from offsupport.data.corrupted import frost_source
from offsupport.data.corruptions import ALL, STANDARD
from offsupport.data.making.job import PARTS, Job, Layout, Unit, open_clean
from offsupport.data.making.npy import NpyLayout
from offsupport.data.making.pool import worker_pool
from offsupport.data.making.tree import TreeLayout
from offsupport.data.shelf import DIGITS_FOLDER

FORMAT = "offsupport-data-1"
MANIFEST = "manifest.json"
LAYOUTS: dict[str, Layout] = {
    "digits-c": NpyLayout(DIGITS_FOLDER),
    "cifar10-c": NpyLayout(CIFAR10.corrupted),
    "cifar100-c": NpyLayout(CIFAR100.corrupted),
    "imagenet-c": TreeLayout("ImageNet-C"),
    "imagenet100-c": TreeLayout("ImageNet100-C"),
}


def make(
    name: str,
    data: Path | str | None,
    out: Path | str,
    *,
    corruptions: Sequence[str] = STANDARD,
    workers: int = 2,
    seed: int = 0,
    frost_dir: Path | str | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Write a corrupted data set below ``out`` and return its manifest; what is there already is kept.

    Args:
        name: ``digits-c``, ``cifar10-c``, ``cifar100-c``, ``imagenet-c`` or ``imagenet100-c``.
        data: Where the clean data is; None for ``$OFFSUPPORT_DATA``. ``digits-c`` needs none.
        out: Gets the official folder (``CIFAR-10-C``, ``ImageNet-C``, ...).
        corruptions: Which ones, each at severities 1 to 5.
        workers: How many processes.
        seed: Of the corruptions' random draws.
        frost_dir: Folder of the official frost textures; None synthesises them.
        skip_bad: Leave out images that cannot be read and list them in the manifest, instead of stopping.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"{name!r} cannot be made.", nearest(name, LAYOUTS))
    for corruption in corruptions:
        if corruption not in ALL:
            raise ConfigError(f"Unknown corruption {corruption!r}.", nearest(corruption, ALL))
    if workers < 1:
        raise ConfigError(f"workers is {workers}.", "It must be at least 1.")
    job = Job(name, _path(data), LAYOUTS[name].folder(Path(out)), seed, _path(frost_dir), skip_bad)
    open_clean.cache_clear()  # the files may have changed since an earlier call
    recipe = _recipe(job)
    with folder_lock(job.folder):
        manifest = _claim(job, recipe)
        _work_off(job, [c for c in dict.fromkeys(corruptions) if not _is_done(job, c, manifest)], manifest, workers)
        shutil.rmtree(job.folder / PARTS, ignore_errors=True)
    return manifest


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).absolute()


def _recipe(job: Job) -> dict[str, Any]:
    """Return everything that decides about the bytes; images that were left out are listed in the manifest."""
    return {
        "dataset": job.name,
        "clean_sha256": job.clean.sha256,
        "images": len(job.clean),
        "seed": job.seed,
        "frost": frost_source(job.frost_dir),
        "offsupport": __version__,
    }


def _claim(job: Job, recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of an earlier run with this recipe, or a new one; a folder of other content is refused."""
    path, begun = job.folder / MANIFEST, job.folder / PARTS / "recipe.json"
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "recipe": recipe,
        "made_with": _versions(),
        "files": {},
        "skipped": [],
    }
    if path.is_file():
        manifest = read_json(path)
    elif not begun.is_file() and any(not entry.name.startswith(".") for entry in job.folder.iterdir()):
        raise FileError(
            f"{job.folder} holds files that `offsupport data make` did not write.", "Choose another --out folder."
        )
    earlier = read_json(begun) if begun.is_file() else manifest.get("recipe")
    if earlier != recipe or manifest.get("recipe") != recipe:
        known = earlier if isinstance(earlier, dict) else {}
        changed = sorted(key for key in recipe.keys() | known.keys() if known.get(key) != recipe.get(key))
        raise FileError(
            f"{job.folder} was begun with other settings ({', '.join(changed)}).",
            "Choose another --out folder, or delete this one.",
        )
    write_json(begun, recipe)
    return manifest


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
    }


def _is_done(job: Job, corruption: str, manifest: dict[str, Any]) -> bool:
    """Whether the manifest lists this corruption and its files are as it says; damaged ones are removed."""
    layout = LAYOUTS[job.name]
    listed = {file: manifest["files"][file] for file in layout.listed(corruption) if file in manifest["files"]}
    if not listed:
        return False
    if layout.problems(job.folder, listed):
        layout.discard(job, corruption)
        return False
    return True


def _work_off(job: Job, corruptions: Sequence[str], manifest: dict[str, Any], workers: int) -> None:
    layout = LAYOUTS[job.name]
    layout.prepare(job, manifest)
    pending = {corruption: set(layout.pending(job, corruption)) for corruption in corruptions}
    total = sum(layout.size(job, unit) for units in pending.values() for unit in units)
    with progress(f"Making {job.name}", total) as advance:
        for corruption in [c for c, units in pending.items() if not units]:
            _finish(job, corruption, manifest)
        for unit in _compute(job, [unit for units in pending.values() for unit in sorted(units)], workers):
            pending[unit.corruption].discard(unit)
            advance(layout.size(job, unit), f"{unit.corruption} {unit.severity}")
            if not pending[unit.corruption]:
                _finish(job, unit.corruption, manifest)
    write_json(job.folder / MANIFEST, manifest)


def _compute(job: Job, units: Sequence[Unit], workers: int) -> Iterator[Unit]:
    """Yield the units as the workers finish them."""
    if not units:
        return
    try:
        with worker_pool(workers) as pool:
            waiting = {pool.submit(LAYOUTS[job.name].run, job, unit): unit for unit in units}
            for future in as_completed(waiting):
                future.result()
                yield waiting[future]
    except BrokenProcessPool as error:
        raise OffsupportError(
            "A worker process died (it was killed, or memory ran out).",
            "Run the same command again: it goes on where it stopped.",
        ) from error


def _finish(job: Job, corruption: str, manifest: dict[str, Any]) -> None:
    files, skipped = LAYOUTS[job.name].finish(job, corruption)
    manifest["files"].update(files)
    manifest["skipped"] = sorted({*manifest["skipped"], *skipped})
    write_json(job.folder / MANIFEST, manifest)
    LAYOUTS[job.name].clear(job, corruption)
