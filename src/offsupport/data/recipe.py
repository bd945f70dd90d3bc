"""The options of a stream, and how its data is opened again from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.data.catalog import Access, SourceChoice
from offsupport.data.corrupted import Corrupted
from offsupport.data.dataset import Dataset
from offsupport.data.order import Order

Schedule: TypeAlias = Literal["sequence", "mixed", "ramp"]
SCHEDULES: tuple[Schedule, ...] = ("sequence", "mixed", "ramp")
CLEAN = "clean"
ARRAYS = "arrays"
"""The data set name of a user's own pair of arrays."""


class Stage(NamedTuple):
    """What a domain is."""

    name: str
    corruption: str | None
    severity: int
    """0 for clean data."""


class Domain(NamedTuple):
    """One domain of a stream, with its data."""

    stage: Stage
    dataset: Dataset

    @property
    def name(self) -> str:
        """Corruption and severity (``fog/5``), or ``clean``."""
        return self.stage.name


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
        stages: Sequence[Stage],
        root: Path | str | None = None,
        arrays: Dataset | None = None,
        frost_dir: Path | str | None = None,
    ) -> list[Domain]:
        """Open the data of every domain.

        Args:
            stages: The domains.
            root: Where the data is.
            arrays: The data of a recipe whose data set is ``arrays``.
            frost_dir: Folder of the official frost textures.
        """
        if self.dataset == ARRAYS:
            opened = [self._from_arrays(arrays, stage, frost_dir) for stage in stages]
        else:
            access = Access(
                self.dataset,
                root,
                self.split,
                self.block,
                self.corruption_seed,
                self.wanted_source,
                self.size,
                frost_dir,
            )
            opened = [
                access.clean if stage.corruption is None else access.corrupted(stage.corruption, stage.severity)
                for stage in stages
            ]
        return [Domain(stage, dataset) for stage, dataset in zip(stages, opened, strict=True)]

    def _from_arrays(self, arrays: Dataset | None, stage: Stage, frost_dir: Path | str | None) -> Dataset:
        if arrays is None:
            raise DataMissingError(
                "This stream was made from arrays, which are not in its file.",
                "Give them: Stream.load(path, arrays=offsupport.data.Arrays(images, labels)).",
            )
        if stage.corruption is None:
            return arrays
        seed = self.corruption_seed or 0
        return Corrupted(arrays, stage.corruption, stage.severity, seed, block=self.block, frost_dir=frost_dir)

    def stages(self) -> list[Stage]:
        """Return the domains in the order of their visits; a ramp comes back to some."""
        if not self.corruptions:
            return [Stage(CLEAN, None, 0)]
        severities = list(self.severities)
        if self.schedule == "ramp":
            if len(severities) != 1:
                raise ConfigError(f"A ramp has one peak, got severities {severities}.", "Give its highest severity.")
            severities = [*range(1, severities[0]), *range(severities[0], 0, -1)]
        return [Stage(f"{c}/{s}", c, s) for c in self.corruptions for s in severities]
