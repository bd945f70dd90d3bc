"""SHOT: keep the classifier, move the features until predictions are certain one by one and diverse together."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.functional import as_rows, mutual_information
from offsupport.nn.inspect import capture_input
from offsupport.nn.projected import encoder_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShotConfig(StepConfig):
    """Hyper-parameters of SHOT."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with any norm layers, as the marginal needs a batch."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    pseudo_weight: float = 0.0
    """Weight of the cross-entropy with centroid pseudo-labels; 0 is SHOT-IM."""
    score: Literal["before", "after"] = "before"
    """Whether the returned prediction is made before or after the step (one more forward)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("pseudo_weight", self.pseudo_weight >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="shot",
        summary="Maximises the information between input and prediction, with the classifier kept.",
        paper="Liang et al. 2020",
        adapts="every layer but the classifier",
        scored="before the step, or after with score='after'",
        norm="none",
        source="none",
        single="no step (the marginal needs a batch); batch norm: blended statistics",
        passes="1F 1B",
    ),
    ShotConfig,
)
class Shot(Adapter):
    """One step per batch up the mutual information, optionally with pseudo-labels from class centroids."""

    config: ShotConfig
    small_batch_without: ClassVar[int] = 16
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "sgd"},
        "cifar100": {"lr": 1e-3, "optimizer": "sgd"},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd"},
        "cifar10-small": {"lr": 1e-2, "optimizer": "sgd"},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter but those of the classifier and of a projection head."""
        return encoder_parameters(self.model, self.classifier)

    def step(self, x: Tensor) -> Tensor:
        """Predict and ascend the mutual information of the batch."""
        with capture_input(self.classifier) as features:
            logits = self.network(x)
        rows = as_rows(logits)
        loss = -mutual_information(rows)
        if self.config.pseudo_weight:
            labels = centroid_labels(as_rows(features[0].detach()), rows.detach().softmax(1))
            loss = loss + self.config.pseudo_weight * nn.functional.cross_entropy(rows, labels)
        self.descend(loss)
        return self.predict(x) if self.config.score == "after" else logits


def centroid_labels(z: Tensor, p: Tensor) -> Tensor:
    """Return a pseudo-label for each row of features ``z`` (N, D): the class whose centroid is nearest in angle.

    Centroids are means weighted by the predictions ``p`` (N, K), then once more by the labels found. Classes that no
    sample is predicted as are no candidates.
    """
    # The column of ones is published; with it a feature vector of zeros has a direction, too.
    z = nn.functional.normalize(torch.cat([z, z.new_ones(len(z), 1)], 1), dim=1)
    candidates = torch.bincount(p.argmax(1), minlength=p.shape[1]) > 0
    labels = _nearest(z, p, candidates)
    return _nearest(z, nn.functional.one_hot(labels, p.shape[1]).to(z), candidates)


def _nearest(z: Tensor, weights: Tensor, candidates: Tensor) -> Tensor:
    centroids = weights.T @ z / (weights.sum(0)[:, None] + 1e-8)
    cosine = z @ nn.functional.normalize(centroids, dim=1).T
    # Below any cosine, so that no sample is nearest to a class that nobody is predicted as.
    return cosine.masked_fill(~candidates, -2.0).argmax(1)
