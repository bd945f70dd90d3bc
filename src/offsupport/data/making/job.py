"""What is being made, the units it is cut into, and what a layout has to know about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from offsupport.core.files import sha256_file
from offsupport.data import cifar
from offsupport.data.catalog import Access
from offsupport.data.dataset import Dataset

PARTS = ".parts"
SEVERITIES = range(1, 6)

Files = dict[str, dict[str, Any]]
"""Hash and size of each file, by its path relative to the data set's folder."""


@dataclass(frozen=True)
class Job:
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
    return Access(name.removesuffix("-c"), data).clean


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
    def prepare(self, job: Job, manifest: dict[str, Any]) -> None:
        """Write what all corruptions share and remove what a killed run left half-written."""

    @abstractmethod
    def pending(self, job: Job, corruption: str) -> list[Unit]:
        """Return the units that are not done."""

    @abstractmethod
    def size(self, job: Job, unit: Unit) -> int:
        """Return how many images a unit makes."""

    @abstractmethod
    def run(self, job: Job, unit: Unit) -> None:
        """Compute a unit (in a worker)."""

    @abstractmethod
    def finish(self, job: Job, corruption: str) -> tuple[Files, list[str]]:
        """Put a finished corruption in its place; return its entries of the manifest and the images left out."""

    @abstractmethod
    def listed(self, corruption: str) -> list[str]:
        """Return the manifest entries that a finished corruption has."""

    @abstractmethod
    def clear(self, job: Job, corruption: str) -> None:
        """Remove the units of a finished corruption."""

    @abstractmethod
    def discard(self, job: Job, corruption: str) -> None:
        """Remove a corruption that turned out damaged."""

    @abstractmethod
    def problems(self, folder: Path, files: Files) -> dict[str, str]:
        """Return what is wrong with the listed files, by path; empty if all are as the manifest says."""


def describe_file(path: Path) -> dict[str, Any]:
    """Return a file's entry of the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def compare_file(path: Path, entry: dict[str, Any]) -> str:
    """Return what is wrong with a file that the manifest lists; empty if nothing is."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"has {path.stat().st_size} bytes instead of {entry['bytes']}"
    return "" if sha256_file(path) == entry["sha256"] else "has another sha256 than the manifest says"
