"""LAME: correct the predictions of a batch so that images with like features get like labels; nothing is trained."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter, require_whole
from offsupport.engine.config import MethodConfig, MethodInfo, require
from offsupport.engine.registry import register_method
from offsupport.functional import marginal_entropy
from offsupport.nn.inspect import capture_input
from offsupport.nn.norm import Statistics

LEAST = 1e-10
"""Added to probabilities before their logarithm, as published: neighbours can raise any class."""
MIXED = 0.9
"""A batch whose mean prediction has this share of the largest entropy holds about all classes equally often."""
ENOUGH = 16
"""Images in a batch from which its mean prediction says something about the order of the stream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LameConfig(MethodConfig):
    """Hyper-parameters of LAME."""

    affinity: Literal["rbf", "knn", "linear"] = "rbf"
    """How alike two images are: by the distance of their features, by being neighbours, or by their cosine."""
    neighbours: int = 5
    """Of ``knn``, how many; of ``rbf``, the width is the mean distance to the one before this."""
    weight: float = 1.0
    """How much the neighbours' labels count beside the model's own prediction."""
    rounds: int = 100
    """At most so many rounds of correction."""
    tolerance: float = 1e-8
    """Rounds end when the energy changes by less than this share of it."""

    def __post_init__(self) -> None:
        require("neighbours", self.neighbours >= 1, "at least 1")
        require("weight", self.weight >= 0, "at least 0")
        require("rounds", self.rounds >= 1, "at least 1")
        require("tolerance", self.tolerance >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="lame",
        summary="Gives images of a batch with like features like labels; for sorted streams, not for shuffled ones.",
        paper="Boudiaf et al. 2022",
        adapts="nothing; the predictions of a batch together",
        scored="no step",
        norm="none",
        source="none",
        single="the model's own prediction",
        passes="1F",
    ),
    LameConfig,
)
class Lame(Adapter):
    """Predicts with the source model and lets the images of a batch agree; no batch knows of another."""

    config: LameConfig
    statistics: ClassVar[Statistics] = "source"
    any_order: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"affinity": "rbf", "neighbours": 5, "weight": 1.0} for name in ("cifar10", "cifar100", "imagenet")
    }

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember whether the user was told that the stream looks shuffled."""
        return {"told": torch.zeros(())}

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Predict, and correct the predictions; returned are logarithms of the corrected probabilities."""
        with capture_input(self.classifier) as features:
            logits = require_whole(self.network(x), self.info.name)
        if len(x) < 2:
            return logits
        self._look_at_order(logits)
        config = self.config
        z = nn.functional.normalize(features[0].flatten(1), dim=1)
        likeness = config.weight * affinity(z, config.affinity, config.neighbours)
        return agreement((logits.softmax(1) + LEAST).log(), likeness, config.rounds, config.tolerance)

    def _look_at_order(self, logits: Tensor) -> None:
        """Warn once where all classes stand side by side: there, neighbours are of other classes."""
        if len(logits) < ENOUGH or bool(self.memory["told"]):
            return
        if float(marginal_entropy(logits)) > MIXED * math.log(min(logits.shape)):
            self.memory["told"] = torch.ones(())
            warnings.warn(
                "lame: the images of a batch seem to be of all classes alike. It is made for streams in which "
                "neighbours share a class, and harms shuffled ones: use 'minimal' or 'source' there.",
                stacklevel=2,
            )


def affinity(z: Tensor, kind: str, neighbours: int) -> Tensor:
    """Return how alike the unit vectors ``z`` (N, D) are, (N, N); see :class:`LameConfig`."""
    cosine = z @ z.T
    if kind == "linear":
        return cosine
    square = (2 - 2 * cosine).clamp(min=0)
    if kind == "knn":
        square.fill_diagonal_(math.inf)
        nearest = square.topk(min(neighbours, len(z) - 1), largest=False).indices
        return torch.zeros_like(square).scatter_(1, nearest, 1.0)
    square.fill_diagonal_(0.0)
    # Counted with itself, as published. Copies of one image are at no distance: then only copies are alike.
    width = square.sqrt().kthvalue(min(neighbours, len(z)), dim=1).values.mean()
    return (-square / (2 * width.square()).clamp(min=torch.finfo(z.dtype).tiny)).exp()


def agreement(log_p: Tensor, likeness: Tensor, rounds: int, tolerance: float) -> Tensor:
    """Return log of the assignments Y (N, K) that ``Y <- softmax(log p + likeness Y)`` ends in."""
    log_y, before = log_p.log_softmax(1), math.inf
    for number in range(rounds):
        pull = likeness @ log_y.exp()
        log_y = (log_p + pull).log_softmax(1)
        energy = float((log_y.exp() * (log_y - log_p - pull)).sum())
        if number > 1 and abs(energy - before) <= tolerance * abs(before):
            break
        before = energy
    return log_y
