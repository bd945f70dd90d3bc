"""PeTTA: RoTTA that measures how far its classes have drifted, and holds on to the source the more for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import cotta_view
from offsupport.engine.bank import Bank
from offsupport.engine.config import MethodInfo, require
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import class_feature_moments
from offsupport.engine.teacher import Teacher
from offsupport.functional import symmetric_cross_entropy
from offsupport.methods.rotta import STUDENT, Rotta, RottaConfig
from offsupport.nn.inspect import capture_input

DESCRIBED = 2
"""A class of fewer source images has no variance, so that nothing can be said of its drift."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PettaConfig(RottaConfig):
    """Hyper-parameters of PeTTA."""

    mean_rate: float = 0.05
    """How far the mean feature of a class moves towards that of the memory at a step."""
    pull: float = 10.0
    """Weight of the pull to the source's weights at the largest drift."""
    anchor: float = 1.0
    """Weight of the source model's own predictions."""
    loss: Literal["symmetric", "cross_entropy"] = "symmetric"
    """How the student follows the teacher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("mean_rate", 0 <= self.mean_rate <= 1, "in [0, 1]")
        require("pull", self.pull >= 0, "at least 0")
        require("anchor", self.anchor >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="petta",
        summary="RoTTA held to the source the more, the further the features of its classes have drifted.",
        paper="Hoang et al. 2024",
        adapts="scale and shift of norm layers, batch-norm statistics",
        scored="before the step, by the teacher",
        norm="any",
        source="required",
        single="as any other batch; a step per update_every images",
        passes="1F, and per 64 images 3F 1B of 64",
    ),
    PettaConfig,
)
class Petta(Rotta):
    """RoTTA's memory and statistics, with a drift that sets how strong the regulariser and how fast the teacher is."""

    config: PettaConfig
    source_shapes: ClassVar[dict[str, str]] = {"class_mean": "KD", "class_cov": "KD", "class_count": "K"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam"},
        "cifar100": {"lr": 1e-3, "optimizer": "adam"},
        "imagenet": {"lr": 1e-3, "optimizer": "adam", "loss": "cross_entropy"},
    }

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the mean feature of each class, too."""
        return super().initial_memory() | {"class_means": torch.empty(0)}

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return mean and variance of the source's features by predicted class."""
        found = class_feature_moments(self.source_features(batches), "diagonal")
        return {name: found[name] for name in ("class_mean", "class_cov", "class_count")}

    def learn(self, bank: Bank) -> None:
        """Take one step on the memory, as careful as the drift says."""
        images, teacher = bank.images(), Teacher.recall(self.memory)
        statistics = self.memory[STUDENT].clone()
        with self.norm_statistics.using("moved"), capture_input(self.classifier) as features:
            taught = self.taught(images, teacher)
        drift = self._drift(features[0].flatten(1), taught.argmax(1))
        anchor = self._source_prediction(images, teacher)
        with self.norm_statistics.using("moved"):
            self.norm_statistics.running = statistics
            logits = self.network(cotta_view(images, self.generator))
        log_p = logits.log_softmax(1)
        if self.config.loss == "symmetric":
            loss = symmetric_cross_entropy(logits, taught).mean()
        else:
            loss = -(taught.softmax(1) * log_p).sum(1).mean()
        loss = loss - self.config.anchor * (anchor * log_p).sum(1).mean()
        self.descend(loss - self.config.pull * drift * self._likeness())
        teacher.follow(self.parameters_adapted, {n: 1 - (1 - d) * (1 - drift) for n, d in self.decays().items()})
        self.memory.update(teacher.remembered() | {STUDENT: statistics})

    def _drift(self, z: Tensor, labels: Tensor) -> float:
        """Return how far the means of the classes at hand are from the source's, in [0, 1); they follow ``z``."""
        assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
        home, var = (self.source.tensors[name].to(z) for name in ("class_mean", "class_cov"))
        means = self.memory["class_means"] if self.memory["class_means"].numel() else home
        present, member, new = labels.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        found = z.new_zeros(len(present), z.shape[1]).index_add(0, member, z) / new[:, None]
        means = means.index_copy(0, present, means[present].lerp(found, self.config.mean_rate))
        self.memory["class_means"] = means
        known = present[self.source.tensors["class_count"].to(z)[present] >= DESCRIBED]
        if not len(known):
            return 0.0
        gap = (means[known] - home[known]).square() / (var[known] + 1e-6)
        return float(1 - (-gap.mean()).exp())

    @torch.no_grad()
    def _source_prediction(self, images: Tensor, teacher: Teacher) -> Tensor:
        """Return the source weights' probabilities of the memory, by the statistics the teacher has now."""
        self.norm_statistics.running = teacher.statistics
        with self.norm_statistics.using("running"):
            return self.network(images, dict(self.source_parameters)).softmax(1)

    def _likeness(self) -> Tensor:
        """Return the mean cosine between the adapted tensors and those of the source."""
        pairs = ((p.flatten(), self.source_parameters[name].flatten()) for name, p in self.parameters_adapted.items())
        return torch.stack([nn.functional.cosine_similarity(a, b, dim=0) for a, b in pairs]).mean()
