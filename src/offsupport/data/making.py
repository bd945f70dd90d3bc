"""Making corrupted data sets in their official layouts: parallel, resumable, whole or absent.

A request is cut into units. Workers write finished units to ``.parts``; when all units of a corruption are there, its
files move to their final place and ``manifest.json`` is written anew. Whatever moment it is killed at, a rerun does
what is missing and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import scipy

from offsupport import __version__
from offsupport.core.errors import ConfigError, FileError, OffsupportError, nearest
from offsupport.core.escaping import escape
from offsupport.core.files import atomic, flush_file, folder_lock, read_json, sha256_file, write_json, write_text
from offsupport.core.ownership import foreign
from offsupport.core.processes import follow_parent, worker_environment
from offsupport.core.progress import progress
from offsupport.data import cifar
from offsupport.data.catalog import CORRUPTED, DATASETS, DIGITS_FOLDER, Access
from offsupport.data.cifar import CIFAR10, CIFAR100, STORED_SEVERITIES
from offsupport.data.corrupted import Corrupted, frost_source
from offsupport.data.corruptions import CORRUPTIONS, STANDARD, corrupt
from offsupport.data.dataset import Dataset, Images
from offsupport.data.folders import Folder, list_images, sub_folders
from offsupport.data.pictures import encode_jpeg
from offsupport.data.spec import StreamSpec
from offsupport.data.stored import (
    MANIFEST,
    MANIFEST_FORMAT,
    Files,
    compare_file,
    describe_file,
    read_manifest,
    sums_name,
)

PARTS = ".parts"
SEVERITIES = range(1, STORED_SEVERITIES + 1)


@dataclass(frozen=True)
class MakeRequest:
    """What is being made; small enough to send to every worker."""

    name: str
    data: Path | None
    folder: Path
    seed: int
    frost_dir: Path | None
    skip_bad: bool

    @property
    def clean(self) -> Dataset:
        """The clean test images, opened once per process."""
        return open_clean(self.name, self.data)


class Unit(NamedTuple):
    """A piece of work that is done or not: one severity, or one class of one severity."""

    corruption: str
    severity: int
    part: str


@lru_cache(maxsize=1)
def open_clean(name: str, data: Path | None) -> Dataset:
    """Open the clean images that ``name`` is made of; kept for the units that follow."""
    # cifar10-c is made of cifar10: what is missing, if anything, is the clean set.
    return Access(StreamSpec(dataset=name.removesuffix(CORRUPTED)), data).clean


class Layout(ABC):
    """How units are computed and where they go.

    Args:
        folder_name: The official name of the data set's folder.
    """

    def __init__(self, folder_name: str) -> None:
        self.folder_name = folder_name

    def folder(self, out: Path) -> Path:
        """Return where the data set goes below ``out``."""
        return cifar.find_folder(out.absolute(), self.folder_name)

    @abstractmethod
    def prepare(self, request: MakeRequest, manifest: dict[str, Any]) -> None:
        """Write what all corruptions share and remove what a killed run left half-written."""

    @abstractmethod
    def pending(self, request: MakeRequest, corruption: str) -> list[Unit]:
        """Return the units that are not done."""

    @abstractmethod
    def size(self, request: MakeRequest, unit: Unit) -> int:
        """Return how many images a unit makes."""

    @abstractmethod
    def run(self, request: MakeRequest, unit: Unit) -> None:
        """Compute a unit (in a worker)."""

    @abstractmethod
    def finish(self, request: MakeRequest, corruption: str) -> tuple[Files, list[str]]:
        """Put a finished corruption in its place; return its entries of the manifest and the images left out."""

    @abstractmethod
    def listed(self, corruption: str) -> list[str]:
        """Return the manifest entries that a finished corruption has."""

    @abstractmethod
    def place(self, request: MakeRequest, corruption: str) -> Path:
        """Return the file or folder that a finished corruption is."""

    @abstractmethod
    def clear(self, request: MakeRequest, corruption: str) -> None:
        """Remove the units of a finished corruption."""

    @abstractmethod
    def discard(self, request: MakeRequest, corruption: str) -> None:
        """Remove a corruption that turned out damaged."""

    @abstractmethod
    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Return what is wrong with the listed files, by path; empty if all are as the manifest says."""


# The layout of CIFAR-10-C: one .npy file per corruption with the five severities stacked, and the labels.


_CHUNK = 1000


class NpyLayout(Layout):
    """``<corruption>.npy`` with the five severities stacked, and ``labels.npy``."""

    def prepare(self, request: MakeRequest, manifest: dict[str, Any]) -> None:
        """Write ``labels.npy``: the labels five times over, as 8-bit numbers."""
        path = request.folder / "labels.npy"
        with atomic(path) as file:
            np.save(file, np.tile(request.clean.labels.astype(np.uint8), len(SEVERITIES)))
        manifest["files"]["labels.npy"] = describe_file(path)

    def pending(self, request: MakeRequest, corruption: str) -> list[Unit]:
        """One unit per severity; a part under its final name is whole."""
        units = [Unit(corruption, severity, "") for severity in SEVERITIES]
        return [unit for unit in units if not _npy_part(request, unit).is_file()]

    def size(self, request: MakeRequest, unit: Unit) -> int:
        """All images at one severity."""
        return len(request.clean)

    def run(self, request: MakeRequest, unit: Unit) -> None:
        """Corrupt the whole split at one severity, piece by piece, into a file of raw pixels."""
        corrupted = Corrupted(request.clean, unit.corruption, unit.severity, request.seed, frost_dir=request.frost_dir)
        # Raw pixels without a header, so that the five parts can be joined by copying.
        with atomic(_npy_part(request, unit)) as file:
            for start in range(0, len(corrupted), _CHUNK):
                rows = np.arange(start, min(start + _CHUNK, len(corrupted)))
                file.write(np.ascontiguousarray(corrupted.images(rows)).data)

    def finish(self, request: MakeRequest, corruption: str) -> tuple[Files, list[str]]:
        """Join the five parts to one .npy file."""
        path = self.place(request, corruption)
        height, width = request.clean.image_size
        shape = (len(SEVERITIES) * len(request.clean), height, width, 3)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        with atomic(path) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for severity in SEVERITIES:
                with _npy_part(request, Unit(corruption, severity, "")).open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        return {path.name: describe_file(path)}, []

    def listed(self, corruption: str) -> list[str]:
        """The one file."""
        return [f"{corruption}.npy"]

    def place(self, request: MakeRequest, corruption: str) -> Path:
        """The one file."""
        return request.folder / f"{corruption}.npy"

    def clear(self, request: MakeRequest, corruption: str) -> None:
        """Delete the five parts."""
        for severity in SEVERITIES:
            _npy_part(request, Unit(corruption, severity, "")).unlink(missing_ok=True)

    def discard(self, request: MakeRequest, corruption: str) -> None:
        """Delete the file."""
        self.place(request, corruption).unlink(missing_ok=True)

    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Compare size and hash of each file."""
        found = {file: compare_file(folder / file, entry) for file, entry in files.items()}
        return {file: problem for file, problem in found.items() if problem}


def _npy_part(request: MakeRequest, unit: Unit) -> Path:
    return request.folder / PARTS / f"{unit.corruption}-{unit.severity}.pixels"


# The layout of ImageNet-C: ``<corruption>/<severity>/<class>/*.JPEG`` of quality 85.
#
# Hashes are in ``checksums/<corruption>-<severity>.sha256``, in the format of ``sha256sum``; the manifest lists the
# hashes of those lists.


_HALF = ".offsupport.tmp"
"""How the folder of a class ends until it is whole."""


class TreeLayout(Layout):
    """JPEG files in class folders, one tree per corruption and severity."""

    def prepare(self, request: MakeRequest, manifest: dict[str, Any]) -> None:
        """Remove class folders that a killed run left half-written."""
        for stale in (request.folder / PARTS).glob(f"*/*{_HALF}"):
            if not stale.parent.is_symlink():
                shutil.rmtree(stale)

    def pending(self, request: MakeRequest, corruption: str) -> list[Unit]:
        """One unit per class and severity; a class folder under its final name is whole."""
        units = []
        for severity in SEVERITIES:
            if not _final(request.folder, corruption, severity).is_dir():
                units += [Unit(corruption, severity, name) for name in request.clean.classes]
        return [unit for unit in units if not _tree_part(request, unit).is_dir()]

    def size(self, request: MakeRequest, unit: Unit) -> int:
        """The images of the class."""
        return len(_rows_of(request, unit.part))

    def run(self, request: MakeRequest, unit: Unit) -> None:
        """Corrupt the images of one class at one severity into a folder of JPEG files."""
        final = _tree_part(request, unit)
        # By process: a worker that outlives a killed run for a moment must not write into a new one's folder.
        half = final.with_name(f"{final.name}.{os.getpid()}{_HALF}")
        half.mkdir(parents=True)
        for row in _rows_of(request, unit.part):
            image = _read(request, row)
            if image is not None:
                corrupted = corrupt(
                    image[None], unit.corruption, unit.severity, request.seed, index=[row], frost_dir=request.frost_dir
                )
                (half / Path(_target(_folder(request).files[row])).name).write_bytes(encode_jpeg(corrupted[0]))
        for file in half.iterdir():
            flush_file(file)  # after all are written: the first flush carries the others
        half.rename(final)

    def finish(self, request: MakeRequest, corruption: str) -> tuple[Files, list[str]]:
        """Move the five trees to their place and list the hashes of their files."""
        files: Files = {}
        for severity in SEVERITIES:
            final = _final(request.folder, corruption, severity)
            if not final.is_dir():
                final.parent.mkdir(exist_ok=True)
                _tree_part(request, Unit(corruption, severity, "")).rename(final)
            sums = request.folder / sums_name(corruption, severity)
            write_text(sums, _checksums(request.folder, final))
            files[sums_name(corruption, severity)] = describe_file(sums)
        return files, _skipped(request, _final(request.folder, corruption, 1))

    def listed(self, corruption: str) -> list[str]:
        """The five lists of hashes."""
        return [sums_name(corruption, severity) for severity in SEVERITIES]

    def place(self, request: MakeRequest, corruption: str) -> Path:
        """The folder of the five trees."""
        return request.folder / corruption

    def clear(self, request: MakeRequest, corruption: str) -> None:
        """Nothing is left: the units were moved."""

    def discard(self, request: MakeRequest, corruption: str) -> None:
        """Delete the five trees, unless something in them is not ours."""
        place = self.place(request, corruption)
        ours = {_target(file) for file in _folder(request).files}
        names = (path.relative_to(place) for path in place.rglob("*") if not path.is_dir())
        strange = next((name for name in names if Path(*name.parts[1:]).as_posix() not in ours), None)
        if strange is not None or place.is_symlink():
            what = "it is a link" if strange is None else f"{escape(strange)} is not of `offsupport data make`"
            raise FileError(f"{place} is damaged, and {what}.", "Move it, and run the same command again.")
        shutil.rmtree(place)

    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Compare every image with the list that names it, and the lists with the manifest."""
        found: dict[str, str] = {}
        for name, entry in files.items():
            problem = compare_file(folder / name, entry)
            found |= {name: problem} if problem else _broken_images(folder, folder / name)
        return found


def _broken_images(folder: Path, sums: Path) -> dict[str, str]:
    found = {}
    for line in sums.read_text(encoding="utf-8").splitlines():
        sha256, _, name = line.partition("  ")
        if not (folder / name).is_file():
            found[name] = "is missing"
        elif sha256_file(folder / name) != sha256:
            found[name] = "has another sha256 than the list says"
    return found


def _checksums(folder: Path, tree: Path) -> str:
    names = [tree / file for sub in sub_folders(tree) for file in list_images(tree, sub)]
    return "".join(f"{sha256_file(file)}  {file.relative_to(folder).as_posix()}\n" for file in names)


def _read(request: MakeRequest, row: int) -> Images | None:
    """Return an image; None for one that cannot be read and may be skipped."""
    try:
        return _folder(request).read(row)
    except FileError as error:
        if request.skip_bad:
            return None
        raise FileError(error.message, "Replace or remove it, or leave such images out with --skip-bad.") from error


def _skipped(request: MakeRequest, tree: Path) -> list[str]:
    """Return the clean images that have no counterpart in a finished tree."""
    return [file for file in _folder(request).files if not (tree / _target(file)).is_file()]


def _target(file: str) -> str:
    return Path(file).with_suffix(".JPEG").as_posix()


def _rows_of(request: MakeRequest, name: str) -> list[int]:
    clean = request.clean
    return [int(row) for row in np.flatnonzero(clean.labels == clean.classes.index(name))]


def _folder(request: MakeRequest) -> Folder:
    clean = request.clean
    assert isinstance(clean, Folder)  # noqa: S101 - data sets in this layout come from folders
    return clean


def _tree_part(request: MakeRequest, unit: Unit) -> Path:
    return request.folder / PARTS / f"{unit.corruption}-{unit.severity}" / unit.part


def _final(folder: Path, corruption: str, severity: int) -> Path:
    return folder / corruption / str(severity)


# Worker processes.


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh single-thread processes; on an error or an interrupt, work not yet begun is dropped."""
    with worker_environment():
        # spawn, not fork: the same on every system, and a fork of a process with threads can hang
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()


# From a request to a manifest.


LAYOUTS: dict[str, Layout] = {
    "digits-c": NpyLayout(DIGITS_FOLDER),
    "cifar10-c": NpyLayout(CIFAR10.corrupted),
    "cifar100-c": NpyLayout(CIFAR100.corrupted),
    "imagenet-c": TreeLayout("ImageNet-C"),
    "imagenet100-c": TreeLayout("ImageNet100-C"),
}
"""The corrupted data sets of the package, with the folders their releases come in."""


def find_layout(name: str) -> Layout:
    """Return the layout of a corrupted data set; one that somebody registered is stored as arrays."""
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name.endswith(CORRUPTED) and name in DATASETS:
        return NpyLayout(name)
    others = [other for other in DATASETS if other.endswith(CORRUPTED) and other not in LAYOUTS]
    raise ConfigError(f"{name!r} cannot be made.", nearest(name, [*LAYOUTS, *others]))


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
        name: ``digits-c``, ``cifar10-c``, ``cifar100-c``, ``imagenet-c``, ``imagenet100-c``, or ``<name>-c`` of a data
            set that somebody registered.
        data: Where the clean data is; None for ``$OFFSUPPORT_DATA``. ``digits-c`` needs none.
        out: Gets the official folder (``CIFAR-10-C``, ``ImageNet-C``, ...), or one called after the data set.
        corruptions: Which ones, each at severities 1 to 5.
        workers: How many processes.
        seed: Of the corruptions' random draws.
        frost_dir: Folder of the official frost textures; None synthesises them.
        skip_bad: Leave out images that cannot be read and list them in the manifest, instead of stopping.
    """
    layout = find_layout(name)
    for corruption in corruptions:
        _check_severities(corruption)
    if workers < 1:
        raise ConfigError(f"workers is {workers}.", "It must be at least 1.")
    request = MakeRequest(name, _path(data), layout.folder(Path(out)), seed, _path(frost_dir), skip_bad)
    open_clean.cache_clear()  # the files may have changed since an earlier call
    recipe = _recipe(request)
    with folder_lock(request.folder):
        manifest = _claim(request, recipe, corruptions)
        _work_off(
            request, [c for c in dict.fromkeys(corruptions) if not _is_done(request, c, manifest)], manifest, workers
        )
        shutil.rmtree(request.folder / PARTS, ignore_errors=True)
    return manifest


def _check_severities(corruption: str) -> None:
    """Refuse a corruption without the five severities that the layouts have; of more the first five are made."""
    fewest = min(map(len, CORRUPTIONS[corruption].rows.values()))
    if fewest < len(SEVERITIES):
        raise ConfigError(
            f"The corruption {corruption!r} has {fewest} severities; data sets are made with {len(SEVERITIES)}.",
            "Register it with five, or let streams make it on the fly.",
        )


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).absolute()


def _recipe(request: MakeRequest) -> dict[str, Any]:
    """Return everything that decides about the bytes; images that were left out are listed in the manifest."""
    return {
        "dataset": request.name,
        "clean_sha256": request.clean.sha256,
        "images": len(request.clean),
        "seed": request.seed,
        "frost": frost_source(request.frost_dir),
        "offsupport": __version__,
    }


def _claim(request: MakeRequest, recipe: dict[str, Any], corruptions: Sequence[str]) -> dict[str, Any]:
    """Return the manifest of an earlier run with this recipe, or a new one; a folder of other content is refused."""
    begun = request.folder / PARTS / "recipe.json"
    manifest = read_manifest(request.folder)
    if manifest is None:
        if not begun.is_file() and any(not entry.name.startswith(".") for entry in request.folder.iterdir()):
            raise FileError(
                f"{request.folder} holds files that `offsupport data make` did not write.",
                "Choose another --out folder.",
            )
        fixed = {"format": MANIFEST_FORMAT, "recipe": recipe, "made_with": _versions()}
        manifest = {**fixed, "files": {}, "skipped": []}
    earlier = read_json(begun) if begun.is_file() else manifest["recipe"]
    if earlier != recipe or manifest["recipe"] != recipe:
        known = earlier if isinstance(earlier, dict) else {}
        changed = sorted(key for key in recipe.keys() | known.keys() if known.get(key) != recipe.get(key))
        raise FileError(
            f"{request.folder} was begun with other settings ({', '.join(changed)}).",
            "Choose another --out folder, or delete this one.",
        )
    _refuse_foreign(request, corruptions, manifest["files"])
    write_json(begun, recipe)
    return manifest


def _refuse_foreign(request: MakeRequest, corruptions: Sequence[str], listed: Mapping[str, Any]) -> None:
    """Refuse, where no run was interrupted, what the manifest does not list and would be replaced or cleared away."""
    parts, layout = request.folder / PARTS, find_layout(request.name)
    if (parts / "recipe.json").is_file() and not parts.is_symlink():
        return  # what an interrupted run had made by then is not listed yet
    if os.path.lexists(parts) and (parts.is_symlink() or not parts.is_dir() or any(parts.iterdir())):
        raise foreign(parts, "Move it, or choose another --out folder.")
    for corruption in corruptions:
        place = layout.place(request, corruption)
        if os.path.lexists(place) and not any(file in listed for file in layout.listed(corruption)):
            raise foreign(place, "Move it, or choose another --out folder.")


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
    }


def _is_done(request: MakeRequest, corruption: str, manifest: dict[str, Any]) -> bool:
    """Whether the manifest lists this corruption and its files are as it says; damaged ones are removed."""
    layout = find_layout(request.name)
    listed = {file: manifest["files"][file] for file in layout.listed(corruption) if file in manifest["files"]}
    if not listed:
        return False
    if layout.problems(request.folder, listed):
        layout.discard(request, corruption)
        return False
    return True


def _work_off(request: MakeRequest, corruptions: Sequence[str], manifest: dict[str, Any], workers: int) -> None:
    layout = find_layout(request.name)
    layout.prepare(request, manifest)
    pending = {corruption: set(layout.pending(request, corruption)) for corruption in corruptions}
    total = sum(layout.size(request, unit) for units in pending.values() for unit in units)
    with progress(f"Making {request.name}", total) as advance:
        for corruption in [c for c, units in pending.items() if not units]:
            _finish(request, corruption, manifest)
        for unit in _compute(request, [unit for units in pending.values() for unit in sorted(units)], workers):
            pending[unit.corruption].discard(unit)
            advance(layout.size(request, unit), f"{unit.corruption} {unit.severity}")
            if not pending[unit.corruption]:
                _finish(request, unit.corruption, manifest)
    write_json(request.folder / MANIFEST, manifest)


def _compute(request: MakeRequest, units: Sequence[Unit], workers: int) -> Iterator[Unit]:
    """Yield the units as the workers finish them."""
    if not units:
        return
    try:
        with worker_pool(workers) as pool:
            waiting = {pool.submit(find_layout(request.name).run, request, unit): unit for unit in units}
            for future in as_completed(waiting):
                future.result()
                yield waiting[future]
    except BrokenProcessPool as error:
        raise OffsupportError(
            "A worker process died (it was killed, or memory ran out).",
            "Run the same command again: it goes on where it stopped.",
        ) from error


def _finish(request: MakeRequest, corruption: str, manifest: dict[str, Any]) -> None:
    files, skipped = find_layout(request.name).finish(request, corruption)
    manifest["files"].update(files)
    manifest["skipped"] = sorted({*manifest["skipped"], *skipped})
    # Listed before its parts are removed: killed in between, a rerun finds it done.
    write_json(request.folder / MANIFEST, manifest)
    find_layout(request.name).clear(request, corruption)
