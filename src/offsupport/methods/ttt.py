"""TTT: go on with the other task of training, to tell by how many quarters an image was turned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import flip, shifted, turned
from offsupport.core.errors import ConfigError, ModelError
from offsupport.engine.adapter import require_finite_loss
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.episodes import Episodes
from offsupport.engine.registry import register_method
from offsupport.nn.norm import Statistics
from offsupport.nn.rotated import TURNS, WithRotation, find_rotation

ALONE, ONLINE = 10, 1
"""Steps as published: on an image that is forgotten again, and on one of a stream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TttConfig(StepConfig):
    """Hyper-parameters of TTT."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 1, as every image is its own batch."""
    prior: float = 16.0
    """Source statistics of batch norm count as this many images beside those at hand."""
    lr: float = 1e-3
    """Step size."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    momentum: float = 0.0
    """Momentum of SGD; first moment decay of Adam."""
    steps: int | None = None
    """Steps per image (per batch with ``together`` or ``online``); None is 10, and 1 with ``online``."""
    copies: int = 32
    """Turned copies of the image (of the batch: at least one of each image) in a step."""
    shift: float = 0.125
    """Copies are moved by up to this share of a side along each axis."""
    mirror: bool = True
    """Whether every other copy is mirrored, by chance; only for networks that saw mirrored images in training."""
    tune: Literal["encoder", "encoder-and-head"] = "encoder-and-head"
    """What steps change: what both tasks share, or the head that tells turns, too."""
    online: bool = False
    """Treat each batch as one episode that goes on from the last one, instead of each image as one of its own."""
    together: bool = False
    """Treat each batch as one episode, and put everything back after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("steps", self.steps is None or self.steps >= 1, "at least 1")
        require("copies", self.copies >= 1, "at least 1")
        require("shift", 0 <= self.shift < 0.5, "in [0, 0.5)")
        if self.online and self.together:
            raise ConfigError(
                "online=True goes on after a batch and together=True puts everything back.", "Leave one of them out."
            )

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: each is an episode, unless a batch is one."""
        alone = not (self.online or self.together)
        return alone and self.statistics not in ("running", "ema", "dua", "minimal")


@register_method(
    MethodInfo(
        name="ttt",
        summary="Learns to tell by how many quarters each image was turned, predicts it, and forgets it again.",
        paper="Sun et al. 2020",
        adapts="the layers that the rotation head shares with the classifier, and that head",
        scored="after the last step",
        norm="none",
        source="none",
        needs="a rotation head",
        single="each image is an episode of its own, whatever the batch; with together or online, the batch is",
        passes="per image 10 times 1F 1B of 32 copies, and 1F",
    ),
    TttConfig,
)
class Ttt(Episodes):
    """Steps down the error of telling turned copies apart, from the source for each image, or all along a stream."""

    config: TttConfig
    purpose: ClassVar[str] = "ttt"
    statistics: ClassVar[Statistics] = "blend"
    small_batch_with_norm: ClassVar[int] = 1
    # Published for CIFAR-10 alone; the others take its values.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"lr": 1e-3, "optimizer": "sgd", "momentum": 0.0, "copies": 32}
        for name in ("cifar10", "cifar100", "imagenet")
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the head depends on; a model without such a head is refused."""
        found = self.rotation()
        left_out = [*found.behind(), *([found.rotation] if self.config.tune == "encoder" else [])]
        kept = {parameter for module in left_out for parameter in module.parameters()}
        inside = set(found.parameters()) - kept
        return {name: p for name, p in self.model.named_parameters() if p in inside}

    def rotation(self) -> WithRotation:
        """Return the part of the model that has the rotation head."""
        found = find_rotation(self.model)
        if found is None:
            raise ModelError(
                "The method 'ttt' goes on with telling turned images apart, and this model has no head for it.",
                "Train one with its head: offsupport train digits-rotation or cifar10-resnet18x0.25-rotation, or wrap "
                "yours: offsupport.nn.WithRotation(model, head). 'memo' adapts any model to single images.",
            )
        return found

    def never_updated(self) -> list[nn.Module]:
        """Return the modules that no step reaches, which a sparsity constraint must leave alone, too."""
        return self.rotation().behind()

    def episodes(self, x: Tensor) -> Sequence[Tensor]:
        """Return the images of each episode: one each, or the batch."""
        return [x] if self.config.together or self.config.online else super().episodes(x)

    def step(self, x: Tensor) -> Tensor:
        """Adapt to each image by itself and predict it, or to the batch as a whole."""
        if not self.config.online:
            return super().step(x)
        for loss in self.losses(self.images(x), self.generator):
            self.descend(loss)
        return self.predict(x)

    def losses(self, x: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the cross-entropy of the turns of freshly drawn copies for each step."""
        each, found = max(1, self.config.copies // len(x)), self.rotation()
        for _ in range(self.config.steps or (ONLINE if self.config.online else ALONE)):
            copies = shifted(x.repeat_interleave(each, 0), round(self.config.shift * x.shape[-1]), generator)
            copies = flip(copies, generator) if self.config.mirror else copies
            quarters = torch.randint(TURNS, (len(copies),), generator=generator).to(x.device)
            # Copies of an image together weigh as one image beside the source.
            kind, prior = self.statistics_policy.kind, each * self.config.prior
            with self.norm_statistics.using(kind, prior=prior), found.listening() as features:
                logits = self.network(turned(copies, quarters))
            require_finite_loss(logits)
            yield nn.functional.cross_entropy(found.rotation(features[-1]), quarters)
