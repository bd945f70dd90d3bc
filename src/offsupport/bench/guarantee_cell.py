"""Cells of kind ``guarantee``: a block of runs of one study of what the theorems promise."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuaranteeConfig:
    """Everything the result of one block of a study depends on."""

    study: Literal["sparse", "inside", "gap"]
    """sparse: Theorem 2 at all distances; inside: Theorem 1 within its radius; gap: where its assumptions fail."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 10
    """Runs in the block, with consecutive seeds."""
    targets: int = 20
    """Targets predicted per run and column."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("guarantee", self)


def run_guarantee(config: GuaranteeConfig, place: Place) -> Outcome:
    """Run the study on the runs of the block."""
    import torch

    from offsupport.theory.gap import gap_study
    from offsupport.theory.studies import inside_study, sparse_study

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    study = {"sparse": sparse_study, "inside": inside_study, "gap": gap_study}[config.study](seeds, config.targets)
    seconds = time.perf_counter() - started
    return Outcome(dataclasses.asdict(study), {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("guarantee")(Kind(GuaranteeConfig, run_guarantee))
