"""Cells of kind ``radius``: how far off the support Theorem 1 allows a target to be, run by run."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class RadiusConfig:
    """Everything the radii of one block of synthetic runs depend on."""

    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    distance: float = 5.0
    """Distance of the target from the origin; the line to it is where the local radius looks."""
    process: str = "table"
    """Preset of the process."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the process that differ from the preset."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 25
    """Runs in the block, with consecutive seeds."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("radius", self)


def run_radius(config: RadiusConfig, place: Place) -> Outcome:
    """Draw the runs and measure each way of computing D / (2 J_u) for the first target of each."""
    import torch

    from offsupport.latent.draws import draw
    from offsupport.latent.process import preset
    from offsupport.theory.measure import measure
    from offsupport.theory.subject import from_draws

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    draws = draw(preset(config.process, config.shift, **config.changes), seeds, [config.distance])
    found: dict[str, list[float]] = {}
    for run in range(len(seeds)):
        for radius in measure(from_draws(draws, run=run)).radii:
            found.setdefault(radius.way, []).append(radius.radius)
    seconds = time.perf_counter() - started
    return Outcome({"radius": found}, {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("radius")(Kind(RadiusConfig, run_radius))
