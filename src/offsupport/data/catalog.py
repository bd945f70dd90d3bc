"""Opening data sets by name: where files are looked for, and whether a corruption is read or computed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from offsupport.core.errors import ConfigError, DataMissingError, nearest
from offsupport.data.corrupted import Corrupted
from offsupport.data.corruptions.parameters import parameters
from offsupport.data.dataset import Dataset
from offsupport.data.shelf import DATASETS, Entry

SourceChoice: TypeAlias = Literal["auto", "files", "generated"]
SOURCES: tuple[SourceChoice, ...] = ("auto", "files", "generated")
ENVIRONMENT = "OFFSUPPORT_DATA"
STORED_SEVERITIES = 5


def list_datasets() -> dict[str, str]:
    """Return the names of the known data sets and a line about each."""
    return {name: DATASETS[name].about for name in DATASETS}


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
    access = Access(name, root, split, block, corruption_seed, source, size, frost_dir)
    return access.clean if corruption is None else access.corrupted(corruption, severity)


@dataclass(frozen=True)
class Access:
    """The way to one data set: its clean data is opened once, however many corruptions are taken of it.

    The fields are the arguments of :func:`load`.
    """

    name: str
    root: Path | str | None = None
    split: str = "test"
    block: int | None = None
    corruption_seed: int | None = None
    source: SourceChoice = "auto"
    size: int | None = None
    frost_dir: Path | str | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigError(f"Unknown source {self.source!r}.", nearest(self.source, SOURCES))
        if self.entry.needs_root and self.place is None:
            raise DataMissingError(
                f"No folder was given for {self.name}, which needs {self.entry.layout}.",
                f"Pass root=... (--data on the command line), or set ${ENVIRONMENT}. Corrupted sets can be made from "
                "clean ones: offsupport data make.",
            )

    @property
    def entry(self) -> Entry:
        """What is known about the name."""
        return DATASETS[self.name]

    @property
    def place(self) -> Path | None:
        """The given root, else ``$OFFSUPPORT_DATA`` for data sets that need one."""
        fallback = os.environ.get(ENVIRONMENT) if self.entry.needs_root else None
        given = self.root if self.root is not None else fallback
        return Path(given) if given else None

    @cached_property
    def clean(self) -> Dataset:
        """The clean split."""
        return self.entry.clean(self.place or Path(), self.split, self.size)

    def corrupted(self, corruption: str, severity: int) -> Dataset:
        """Open a stored corruption if one fits what is asked, else corrupt the clean split on the fly."""
        parameters(corruption, 32, severity)  # the most severities any size has; the images' own is checked below
        stored = self._stored(corruption, severity)
        if stored is not None:
            return stored
        if self.source == "files":
            raise DataMissingError(
                f"No stored {self.name} holds {corruption} at severity {severity} as asked "
                f"(looked for {self.entry.layout or 'nothing'} in {self.place}).",
                'Use source="auto" to compute it, or ask for the test split, severity 1 to 5, no block and no seed.',
            )
        return Corrupted(
            self._clean_to_corrupt(corruption),
            corruption,
            severity,
            self.corruption_seed or 0,
            block=self.block,
            frost_dir=self.frost_dir,
            jpeg=self.entry.release_jpeg,
            name=self.name,
        )

    def _stored(self, corruption: str, severity: int) -> Dataset | None:
        own_wishes = (self.block, self.corruption_seed, self.frost_dir) != (None, None, None)
        in_release = self.split == "test" and severity <= STORED_SEVERITIES and not own_wishes
        if self.source == "generated" or not in_release or self.entry.stored is None or self.place is None:
            return None
        return self.entry.stored(self.place, corruption, severity)

    def _clean_to_corrupt(self, corruption: str) -> Dataset:
        """Open the clean data; if that is missing too, say both places that were tried."""
        try:
            return self.clean
        except DataMissingError as error:
            if self.entry.stored is None:
                raise
            raise DataMissingError(
                f"Neither {corruption} of {self.name} ({self.entry.layout}) nor clean images to corrupt are in "
                f"{self.place}: {error.message}",
                f"Make it: offsupport data make {self.name} --data CLEAN --out {self.place}.",
            ) from error
