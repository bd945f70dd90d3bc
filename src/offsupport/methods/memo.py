"""MEMO: adapt to one image alone, until augmented copies of it are given the same, certain label."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import Policy, random_augment, weak_views
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.episodes import Episodes
from offsupport.engine.registry import register_method
from offsupport.functional import marginal_entropy
from offsupport.nn.norm import Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoConfig(StepConfig):
    """Hyper-parameters of MEMO."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 1, as every image is its own batch."""
    prior: float = 16.0
    """Source statistics of batch norm count as this many images beside the one at hand."""
    lr: float = 5e-3
    """Step size."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    copies: int = 32
    """Augmented copies of an image."""
    steps: int = 1
    """Steps per image, each with its own copies."""
    policy_length: int = 2
    """Operations per augmentation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("copies", self.copies >= 1, "at least 1")
        require("steps", self.steps >= 1, "at least 1")
        require("policy_length", 1 <= self.policy_length <= 3, "1, 2 or 3")

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: yes, but for statistics that follow the stream."""
        return self.statistics not in ("running", "ema", "dua", "minimal")


@register_method(
    MethodInfo(
        name="memo",
        summary="Minimises, for each image alone, the entropy of its mean prediction over augmented copies.",
        paper="Zhang et al. 2022",
        adapts="every layer, anew for each image",
        scored="after the step",
        norm="none",
        source="none",
        single="made for it; batch norm: blended statistics",
        passes="per image 1F 1B of 32 copies, and 1F",
    ),
    MemoConfig,
)
class Memo(Episodes):
    """One step per image from the source model; nothing is carried over, so an image's company does not matter."""

    config: MemoConfig
    purpose: ClassVar[str] = "memo"
    statistics: ClassVar[Statistics] = "blend"
    small_batch_with_norm: ClassVar[int] = 1
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 5e-3, "optimizer": "sgd", "copies": 32, "prior": 16.0},
        "cifar100": {"lr": 5e-3, "optimizer": "sgd", "copies": 32, "prior": 16.0},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "copies": 64, "prior": 16.0},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter."""
        return {name: p for name, p in self.model.named_parameters() if p.is_floating_point()}

    @functools.cached_property
    def augmentation(self) -> Policy:
        """The operations that copies are made by."""
        return Policy(self.config.policy_length, "full")

    def losses(self, x: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the entropy of the mean prediction over the copies of each step."""
        shape = (self.config.steps, self.config.copies)
        views = torch.cat(weak_views(x, shape[0] * shape[1], generator))
        for copies in random_augment(views, self.augmentation, generator).view(*shape, *x.shape[1:]):
            # Copies are one image: all of them together weigh as one beside the source.
            with self.norm_statistics.using(self.statistics_policy.kind, prior=self.config.prior * len(copies)):
                logits = self.network(copies)
            yield marginal_entropy(logits)
