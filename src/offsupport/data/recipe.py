"""The options of a stream, and how its data is opened again from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.data.catalog import SourceChoice, load
from offsupport.data.corrupted import Corrupted
from offsupport.data.dataset import Dataset
from offsupport.data.order import Order

Schedule: TypeAlias = Literal["sequence", "mixed", "ramp"]
SCHEDULES: tuple[Schedule, ...] = ("sequence", "mixed", "ramp")
CLEAN = "clean"
ARRAYS = "arrays"
"""The data set name of a user's own pair of arrays."""


class Domain(NamedTuple):
    """One domain of a stream: data under one corruption at one severity, or clean data."""

    name: str
    dataset: Dataset
    corruption: str | None
    severity: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every option a stream was made with; with the data it fixes every pixel."""

    dataset: str
    split: str = "test"
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    block: int | None = None
    corruption_seed: int | None = None
    wanted_source: SourceChoice = "auto"
    size: int | None = None
    order: Order = "iid"
    schedule: Schedule = "sequence"
    concentration: float | None = None
    seed: int = 0
    limit: int | None = None
    batch_size: int = 128

    @staticmethod
    def from_json(values: dict[str, Any]) -> Recipe:
        """Return the recipe that ``dataclasses.asdict`` wrote."""
        lists = {name: tuple(values[name]) for name in ("corruptions", "severities")}
        return Recipe(**{**values, **lists})

    def open(
        self,
        root: Path | str | None,
        name: str,
        corruption: str | None,
        severity: int | None,
        arrays: Dataset | None = None,
        frost_dir: Path | str | None = None,
    ) -> Domain:
        """Open the data of one domain.

        Args:
            root: Where the data is.
            name: What the domain is called.
            corruption: Its corruption; None for clean data.
            severity: Its severity; None for clean data.
            arrays: The data of a recipe whose data set is ``arrays``.
            frost_dir: Folder of the official frost textures.
        """
        if self.dataset == ARRAYS:
            dataset = self._corrupt_arrays(arrays, corruption, severity, frost_dir)
        else:
            dataset = load(
                self.dataset,
                root,
                self.split,
                corruption=corruption,
                severity=severity or 5,
                block=self.block,
                corruption_seed=self.corruption_seed,
                source=self.wanted_source,
                size=self.size,
                frost_dir=frost_dir,
            )
        return Domain(name, dataset, corruption, severity)

    def _corrupt_arrays(
        self, arrays: Dataset | None, corruption: str | None, severity: int | None, frost_dir: Path | str | None
    ) -> Dataset:
        if arrays is None:
            raise DataMissingError(
                "This stream was made from arrays, which are not in its file.",
                "Give them: Stream.load(path, arrays=offsupport.data.Arrays(images, labels)).",
            )
        if corruption is None:
            return arrays
        seed = self.corruption_seed or 0
        return Corrupted(arrays, corruption, severity or 5, seed, block=self.block, frost_dir=frost_dir)

    def stages(self) -> list[tuple[str, str | None, int | None]]:
        """Return the domains in the order of their visits, as (name, corruption, severity); a ramp repeats some."""
        if not self.corruptions:
            return [(CLEAN, None, None)]
        severities = list(self.severities)
        if self.schedule == "ramp":
            if len(severities) != 1:
                raise ConfigError(f"A ramp has one peak, got severities {severities}.", "Give its highest severity.")
            severities = [*range(1, severities[0]), *range(severities[0], 0, -1)]
        return [(f"{c}/{s}", c, s) for c in self.corruptions for s in severities]
