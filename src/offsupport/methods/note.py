"""NOTE without its own norm layers: running statistics and entropy steps on a memory balanced by predicted class.

The published method also trains the source network with instance-aware batch norm. That is another network; here any
network is taken as it came, and what remains is the memory and the statistics that follow it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter, require_whole
from offsupport.engine.bank import Bank
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.functional import Loss, uncertainty
from offsupport.nn import affine_parameters
from offsupport.nn.norm import Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoteConfig(StepConfig):
    """Hyper-parameters of NOTE."""

    min_batch: int | None = None
    """Smaller batches are predicted and not remembered; None is 1, as predictions use no statistics of the batch."""
    lr: float = 1e-4
    """Step size."""
    bn_momentum: float = 0.01
    """How far batch-norm statistics move towards those of the memory at a step."""
    capacity: int = 64
    """Images in the memory."""
    update_every: int = 64
    """A step is taken whenever so many images have come."""
    loss: Loss = "entropy"
    """What is minimised: the entropy, or that of an opinion that may withhold its belief (COME)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("bn_momentum", 0 <= self.bn_momentum <= 1, "in [0, 1]")
        require("capacity", self.capacity >= 1, "at least 1")
        require("update_every", self.update_every >= 1, "at least 1")


@register_method(
    MethodInfo(
        name="note",
        summary="Entropy steps on a class-balanced memory; NOTE without the norm layers it retrains a network with.",
        paper="Gong et al. 2022",
        adapts="scale and shift of norm layers, batch-norm statistics",
        scored="before the step",
        norm="any",
        source="none",
        single="as any other batch; a step per update_every images",
        passes="1F, and per 64 images 1F 1B of 64",
    ),
    NoteConfig,
)
class Note(Adapter):
    """Predicts by running statistics; every so many images one step down the entropy of the memory."""

    config: NoteConfig
    statistics: ClassVar[Statistics] = "running"
    small_batch_with_norm: ClassVar[int] = 1
    any_order: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"lr": 1e-4, "optimizer": "adam", "bn_momentum": 0.01, "capacity": 64, "update_every": 64}
        for name in ("cifar10", "cifar100", "imagenet")
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the statistics, the images, and how many of each class came."""
        statistics = self.norm_statistics.follow(self.model, self.config.bn_momentum).clone()
        return {"running": statistics, "came": torch.empty(0)} | Bank.initial(self.config.capacity)

    def step(self, x: Tensor) -> Tensor:
        """Predict, then remember the images one by one, with a step whenever one is due."""
        logits = require_whole(self.predict(x), self.info.name)
        bank = Bank(self.memory, self.config.capacity)
        if not bank.fits(x):
            bank.clear()
        came = [0] * logits.shape[1] if not self.memory["came"].numel() else self.memory["came"].tolist()
        # One at a time, as each place depends on who came before; numbers alone, images are copied at the end.
        for image, label in zip(x, logits.argmax(1).tolist(), strict=True):
            came[label] += 1
            self._remember(bank, image, label, came[label])
            bank.seen += 1
            if bank.seen % self.config.update_every == 0:
                self._learn(bank)
        self.memory.update(bank.remembered() | {"came": torch.tensor(came)})
        return logits

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits by the statistics followed so far."""
        self.norm_statistics.running = self.memory["running"].clone()
        return self.network(x)

    def _remember(self, bank: Bank, image: Tensor, label: int, came: int) -> None:
        """Take an image in; the memory full, one of the most frequent class leaves, or by chance one of its own."""
        counts, leaving = bank.counts(), None
        if len(bank.items) >= bank.capacity:
            largest = sorted(name for name, count in counts.items() if count == max(counts.values()))
            if label not in largest:
                chosen = largest[self._draw(len(largest))]
            elif torch.rand((), generator=self.generator, dtype=torch.float64) <= counts[label] / came:
                chosen = label
            else:
                return
            own = [item for item in bank.items if item.label == chosen]
            leaving = own[self._draw(len(own))]
        bank.put(image, label, 0.0, leaving)

    def _draw(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator))

    def _learn(self, bank: Bank) -> None:
        """Take one step down the mean entropy of the memory, and let the statistics follow it."""
        self.norm_statistics.running = self.memory["running"].clone()
        with self.norm_statistics.using("ema"):
            loss = uncertainty(self.network(bank.images()), self.config.loss).mean()
        self.descend(loss)
        self.memory["running"] = self.norm_statistics.running
