"""DeYO: entropy minimisation on samples whose prediction rests on shape, so that shuffled patches change it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import shuffled_patches
from offsupport.engine.adapter import Adapter, require_images, require_whole
from offsupport.engine.config import MethodInfo, StepConfig, require, require_pattern
from offsupport.engine.registry import register_method
from offsupport.functional import Loss, uncertainty
from offsupport.nn import affine_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeyoConfig(StepConfig):
    """Hyper-parameters of DeYO."""

    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    margin: float = 0.5
    """A prediction may count below this fraction of the largest entropy, ln K."""
    drop: float = 0.2
    """And where the probability of its label falls by more than this when the image is taken to pieces."""
    weight_margin: float = 0.4
    """Fraction of ln K at which the weight of a sample by its entropy is 1."""
    patches: int = 4
    """Patches along a side."""
    exclude_last: float = 0.25
    """The last norm layers, this fraction of them, are left alone."""
    exclude: str | None = None
    """Leave the norm layers whose name matches this regular expression alone instead."""
    loss: Loss = "entropy"
    """What is minimised: the entropy, or that of an opinion that may withhold its belief (COME)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("drop", -1 <= self.drop <= 1, "in [-1, 1]")
        require("patches", self.patches >= 2, "at least 2")
        require("exclude_last", 0 <= self.exclude_last < 1, "in [0, 1)")
        require_pattern("exclude", self.exclude)


@register_method(
    MethodInfo(
        name="deyo",
        summary="Minimises the entropy of samples whose label rests on shape rather than on texture.",
        paper="Lee et al. 2024",
        adapts="scale and shift of norm layers but the last ones",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per chosen sample",
        passes="1F 1B, and 1F of the sure ones",
    ),
    DeyoConfig,
)
class Deyo(Adapter):
    """One step per batch down the weighted entropy of the chosen samples."""

    config: DeyoConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "drop": 0.2, "exclude_last": 0.0},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "drop": 0.2, "exclude_last": 0.0},
        "imagenet": {"lr": 2.5e-4, "drop": 0.3, "exclude": r"layer4|blocks\.(9|10|11)\b|(^|\.)norm$"},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of the norm layers that are not excluded."""
        return affine_parameters(self.model, self.config.exclude, self.config.exclude_last)

    def step(self, x: Tensor) -> Tensor:
        """Predict, choose by entropy and by what shuffled patches do, and descend."""
        require_images(x, self.info.name)
        logits = require_whole(self.network(x), self.info.name)
        entropies, p = uncertainty(logits, self.config.loss), logits.detach().softmax(1)
        most = math.log(p.shape[1])
        sure = (entropies.detach() < self.config.margin * most).nonzero()[:, 0]
        drop = self._drop(x[sure], p[sure]) if len(sure) else p.new_zeros(0)
        chosen = sure[drop > self.config.drop]
        if not len(chosen):
            self.count("empty_selection")
            return logits
        h, fell = entropies[chosen], drop[drop > self.config.drop]
        weight = (self.config.weight_margin * most - h.detach()).exp() + fell.exp()
        self.descend((weight * h).mean())
        return logits

    @torch.no_grad()
    def _drop(self, x: Tensor, p: Tensor) -> Tensor:
        """Return by how much the probability of each label falls when the patches are shuffled, (N,)."""
        pieces = shuffled_patches(x, self.config.patches, self.generator)
        # These few are normalised by their own statistics; too few for that are blended as any small batch.
        kind = self.norm_statistics.kind
        with self.norm_statistics.using("blend" if kind == "batch" and len(x) < self.min_batch else kind):
            after = self.network(pieces).softmax(1)
        labels = p.argmax(1, keepdim=True)
        return (p.gather(1, labels) - after.gather(1, labels))[:, 0]
