"""Cells of kind ``latent``: a block of runs of one estimator on a synthetic process."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Everything the result of one block of synthetic runs depends on."""

    method: str
    """Name of the estimator, or of a reference (``given-c``, ``constant``)."""
    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    distances: list[float]
    """Distances of the target from the origin; one column each."""
    task: Literal["classification", "regression"] = "classification"
    """What is predicted."""
    process: str = "table"
    """Preset of the process."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the process that differ from the preset."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the estimator that differ from its defaults."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 25
    """Runs in the block, with consecutive seeds."""
    targets: int = 1
    """Targets per run and distance. An estimator that trains on its targets trains on all of them together."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("latent", self)


def run_latent(config: LatentConfig, place: Place) -> Outcome:
    """Draw the runs, fit the estimator to each, and score its predictions of the targets."""
    import torch

    from offsupport.latent.score import run_block

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    block = run_block(
        config.shift,
        config.task,
        config.method,
        range(config.first, config.first + config.runs),
        config.distances,
        process=config.process,
        changes=config.changes,
        options=config.options,
        n_targets=config.targets,
        memory=str(place.folder / "flows"),
    )
    seconds = time.perf_counter() - started
    measured = {"metric": block.metric, "outcome": block.per_run().tolist()}
    if config.targets > 1:  # to be compared with methods that see the first target alone
        measured["first_target"] = block.outcome[..., 0].tolist()
    return Outcome(measured, {"seeds": [config.first, config.first + config.runs - 1]}, {"seconds": seconds})


KINDS.register("latent")(Kind(LatentConfig, run_latent))
