"""The data sets by name, where their files are looked for, and whether a corruption is read or computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from offsupport.core.errors import ConfigError, DataMissingError, nearest
from offsupport.core.registry import Registry
from offsupport.data.corrupted import Corrupted, check_corruption
from offsupport.data.dataset import Dataset
from offsupport.data.digits import Digits

SourceChoice: TypeAlias = Literal["auto", "files", "generated"]
SOURCES: tuple[SourceChoice, ...] = ("auto", "files", "generated")
ENVIRONMENT = "OFFSUPPORT_DATA"
STORED_SEVERITIES = 5


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set name.

    Args:
        about: One line for people.
        layout: The files that are expected, relative to the root.
        clean: Opens a clean split: (root, split, size).
        stored: Opens a stored corruption, or returns None where it is not there: (root, corruption, severity).
        rootless: Whether it needs no files.
        release_jpeg: Quality of the JPEG that the release passed its images through; None for raw pixels.
    """

    about: str
    layout: str
    clean: Callable[[Path | None, str, int | None], Dataset]
    stored: Callable[[Path, str, int], Dataset | None] | None = None
    rootless: bool = False
    release_jpeg: int | None = None


DATASETS: Registry[Entry] = Registry("data set")


def list_datasets() -> dict[str, str]:
    """Return the names of the known data sets and a line about each."""
    return {name: DATASETS[name].about for name in DATASETS}


def data_root(root: Path | str | None) -> Path | None:
    """Return ``root``, or ``$OFFSUPPORT_DATA``, or None."""
    given = root if root is not None else os.environ.get(ENVIRONMENT)
    return Path(given) if given else None


def load(
    name: str,
    root: Path | str | None = None,
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    block: int | None = None,
    corruption_seed: int | None = None,
    source: SourceChoice = "auto",
    size: int | None = None,
    frost_dir: Path | str | None = None,
) -> Dataset:
    """Open a data set; nothing is read but what is needed to know its rows.

    Args:
        name: One of :func:`list_datasets`.
        root: Where the data is; None for ``$OFFSUPPORT_DATA``. ``digits`` and ``digits-c`` need none.
        split: ``test`` or ``train``.
        corruption: A corruption; None for the clean data.
        severity: 1 to 5; impulse noise to 10.
        block: Corrupt only a square of this side.
        corruption_seed: Of the corruption's random draws; giving one means generating.
        source: ``files``, ``generated``, or ``auto``: stored files where they exist.
        size: Side to which a ``folder`` is resized and cropped.
        frost_dir: Folder of the official frost textures, for generated frost.
    """
    entry = DATASETS[name]
    place = data_root(root) if not entry.rootless or root is not None else None
    if source not in SOURCES:
        raise ConfigError(f"Unknown source {source!r}.", nearest(source, SOURCES))
    if place is None and not entry.rootless:
        raise DataMissingError(
            f"No folder was given for {name}, which needs {entry.layout}.", f"Pass root=..., or set ${ENVIRONMENT}."
        )
    if corruption is None:
        return entry.clean(place, split, size)
    check_corruption(corruption, severity)
    as_released = (
        split == "test" and severity <= STORED_SEVERITIES and (block, corruption_seed, frost_dir) == (None,) * 3
    )
    if source != "generated" and as_released and entry.stored is not None and place is not None:
        stored = entry.stored(place, corruption, severity)
        if stored is not None:
            return stored
    if source == "files":
        raise _no_files(name, entry, corruption, severity, place)
    base = _clean_for(name, entry, corruption, place, split, size)
    return Corrupted(
        base,
        corruption,
        severity,
        corruption_seed or 0,
        block=block,
        frost_dir=frost_dir,
        jpeg=entry.release_jpeg,
        name=name,
    )


def _no_files(name: str, entry: Entry, corruption: str, severity: int, place: Path | None) -> DataMissingError:
    return DataMissingError(
        f"No stored {name} holds {corruption} at severity {severity} as asked (looked for {entry.layout} in {place}).",
        'Use source="auto" to compute it, or ask for the test split, severity 1 to 5, no block and no seed.',
    )


def _clean_for(name: str, entry: Entry, corruption: str, place: Path | None, split: str, size: int | None) -> Dataset:
    """Open the clean data to corrupt; if that is missing too, say both places that were tried."""
    try:
        return entry.clean(place, split, size)
    except DataMissingError as error:
        if entry.stored is None:
            raise
        raise DataMissingError(
            f"Neither {corruption} of {name} ({entry.layout}) nor clean images to corrupt are in {place}: "
            f"{error.message}",
            f"Make it: offsupport data make {name} --data CLEAN --out {place}.",
        ) from error


def _digits(_root: Path | None, split: str, _size: int | None) -> Dataset:
    return Digits(split)


DATASETS.register("digits")(
    Entry(about="1,797 handwritten digits, 32x32, inside the package", layout="no files", clean=_digits, rootless=True)
)
DATASETS.register("digits-c")(
    Entry(about="digits under the corruptions, made on the fly", layout="no files", clean=_digits, rootless=True)
)
