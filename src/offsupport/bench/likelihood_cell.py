"""Cells of kind ``likelihood``: how well a model explains held-out source samples. No label of a target is read."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """Everything the likelihoods of one block of synthetic runs depend on."""

    method: str
    """``vae`` or ``imsda``."""
    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the estimator that differ from its defaults."""
    distance: float = 18.0
    """Distance of the target the model is fitted beside."""
    held_out: int = 2000
    """Source samples of a run that the model is not fitted to."""
    first: int = 10_000
    """Seed of the first run."""
    runs: int = 20
    """Runs, with consecutive seeds."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("likelihood", self)


def run_likelihood(config: LikelihoodConfig, place: Place) -> Outcome:
    """Draw the runs, fit the model to each, and average the log-likelihood of the held-out source samples."""
    import torch

    from offsupport.latent.score import held_out_likelihood

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    nats = held_out_likelihood(
        config.shift, config.method, seeds, config.distance, held_out=config.held_out, options=config.options
    )
    seconds = time.perf_counter() - started
    return Outcome({"nats": nats.tolist()}, {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("likelihood")(Kind(LikelihoodConfig, run_likelihood))
