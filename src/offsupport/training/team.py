"""The processes of one training run: those that torchrun started, or this one alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Team:
    """Who takes part.

    Args:
        rank: Which one this process is; the first one writes.
        size: How many there are.
        device: Where this one computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, x: Tensor) -> Tensor:
        """Return this process's part of a batch, on its device.

        Everyone draws the order and the views of the whole batch from equal generators, so that what is learnt from
        does not depend on how many share the work.
        """
        return x[self.rank :: self.size].to(self.device)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return what to call instead of ``module`` so that gradients are averaged over the team."""
        return module if self.size == 1 else nn.parallel.DistributedDataParallel(module)

    def total(self, *values: float) -> list[float]:
        """Return the sums of the values over the team."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        return [float(value) for value in sums]

    def wait(self) -> None:
        """Wait until everyone is here."""
        if self.size > 1:
            distributed.barrier()


@contextlib.contextmanager
def gather_team(device: str) -> Iterator[Team]:
    """Join the processes torchrun started, for the length of the block; without torchrun, be alone.

    Args:
        device: ``cpu`` or ``cuda``; with the latter each process of a machine takes a GPU of its own.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    if size == 1:
        yield Team(device=local)
        return
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Team(rank, size, local)
    finally:
        distributed.destroy_process_group()
