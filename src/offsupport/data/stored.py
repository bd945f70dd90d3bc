"""Files of stored data: arrays whose header is held against the file, and the manifest that lists hashes of files.

``offsupport data make`` writes the manifest. Whoever reads a file that one lists holds it against its hash first: a
flipped bit in pixels would otherwise be streamed as data.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from offsupport.core.errors import DataMissingError, FileError
from offsupport.core.files import read_json, sha256_file

# Arrays.


_NUMBERS_AND_WORDS = "biufUS"
"""Kinds of NumPy types that are read: no objects, no records, no dates."""


def open_npy(path: Path) -> Any:
    """Return a .npy file, memory-mapped; one that is missing, cut short or of Python objects is an error.

    Nothing is allocated before the header was held against the size of the file.
    """
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _read_header(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
        _require_room(shape, dtype, size - offset)
        if not math.prod(shape):
            return np.empty(shape, dtype)  # nothing to map
        return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    except FileNotFoundError as error:
        raise DataMissingError(f"{path} is missing.", "Make it with `offsupport data make`.") from error
    # NumPy reads a header with Python's own parser and tokenizer: a damaged one can fail in any of their ways.
    except Exception as error:
        raise FileError(f"{path} is damaged ({error}).", "Make it again, or get the official file again.") from error


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers that Python 2 wrote
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its format is {version[0]}.{version[1]}")


def _require_room(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
    if dtype.kind not in _NUMBERS_AND_WORDS or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, neither numbers nor words")
    if any(side < 0 or side > np.iinfo(np.intp).max for side in shape):
        raise ValueError(f"it claims the shape {shape}")
    needed = math.prod(shape) * dtype.itemsize
    if needed > size:
        raise ValueError(f"its header claims {needed} bytes of data, and the file has {size}")


# The manifest.


MANIFEST_FORMAT = "offsupport-data-1"
MANIFEST = "manifest.json"

Files = dict[str, dict[str, Any]]
"""Hash and size of each file, by its path relative to the data set's folder."""

_REMAKE = "Run the same `offsupport data make` again: it replaces what is damaged. Or get the official file."


def sums_name(corruption: str, severity: int | str) -> str:
    """Return the list of the hashes of a tree of images, relative to the data set's folder."""
    return f"checksums/{corruption}-{severity}.sha256"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, whole, or None without one; a damaged one is an error.

    A file of the same name that somebody else wrote there, without any list of files, counts as none.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = read_json(path)
    if isinstance(manifest, dict) and not {"format", "files", "recipe"} & set(manifest):
        return None
    if not (
        isinstance(manifest, dict)
        and manifest.setdefault("format", MANIFEST_FORMAT) == MANIFEST_FORMAT
        and isinstance(manifest.setdefault("skipped", []), list)
        and isinstance(manifest.get("recipe"), dict)
        and _are_files(manifest.get("files"))
    ):
        raise FileError(f"{path} is not a manifest of `offsupport data make`.", "Make the data again.")
    return manifest


def _are_files(files: Any) -> bool:
    return isinstance(files, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and type(entry.get("bytes")) is int
        for entry in files.values()
    )


def describe_file(path: Path) -> dict[str, Any]:
    """Return a file's entry of the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def compare_file(path: Path, entry: dict[str, Any], digest: Callable[[Path], str] = sha256_file) -> str:
    """Return what is wrong with a file that the manifest lists; empty if nothing is."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"has {path.stat().st_size} bytes instead of {entry['bytes']}"
    return "" if digest(path) == entry["sha256"] else "has another sha256 than the manifest says"


# Files in use: hashed when first read, and again when size or time say that they are others.


def require_intact(path: Path) -> None:
    """Refuse a file that is not as the manifest in its folder says; what none lists is taken as it is."""
    entry = listed_files(path.parent).get(path.name)
    problem = compare_file(path, entry, known_sha256) if entry else ""
    if problem:
        raise FileError(f"{path} {problem}: it is damaged.", _REMAKE)


def require_hash(path: Path, sha256: str | None) -> None:
    """Refuse a file of another hash; None is taken as it is."""
    if sha256 is not None and path.is_file() and known_sha256(path) != sha256:
        raise FileError(f"{path} has another sha256 than the list of its folder says: it is damaged.", _REMAKE)


def listed_files(folder: Path) -> Files:
    """Return what the manifest of a folder lists; nothing without one. Kept while the manifest stays the same file."""
    try:
        found = (folder / MANIFEST).stat()
    except OSError:
        return {}
    return _listed(folder, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=16)
def _listed(folder: Path, _size: int, _time: int) -> Files:
    manifest = read_manifest(folder)
    return manifest["files"] if manifest else {}


def listed_images(tree: Path) -> dict[str, str]:
    """Return the hashes of the images of ``<corruption>/<severity>`` by path within it; nothing where none are listed.

    The list itself is held against the manifest first.
    """
    folder = tree.parent.parent
    sums = sums_name(tree.parent.name, tree.name)
    entry = listed_files(folder).get(sums)
    if entry is None:
        return {}
    problem = compare_file(folder / sums, entry)
    if problem:
        raise FileError(f"{folder / sums} {problem}: it is damaged.", _REMAKE)
    prefix = f"{tree.parent.name}/{tree.name}/"
    lines = (folder / sums).read_text(encoding="utf-8").splitlines()
    return {name.removeprefix(prefix): sha for sha, _, name in (line.partition("  ") for line in lines)}


def known_sha256(path: Path) -> str:
    """Return the sha256 of a file, which is read once per process while its size and time of change stay the same."""
    found = path.stat()
    return _sha256(path.absolute(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _sha256(path: Path, _size: int, _time: int) -> str:
    return sha256_file(path)
