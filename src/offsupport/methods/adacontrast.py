"""AdaContrast: pseudo-labels by vote of the nearest past images, and contrast between views, on all weights."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.augment import color_jitter, flip, grayscale, simclr_view, weak_views
from offsupport.engine.adapter import PixelAdapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.engine.teacher import Teacher
from offsupport.functional import marginal_entropy
from offsupport.nn.inspect import capture_input
from offsupport.nn.norm import Statistics
from offsupport.nn.projected import predicting_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdacontrastConfig(StepConfig):
    """Hyper-parameters of AdaContrast."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with any norm layers, as the marginal needs a batch."""
    lr: float = 2e-4
    """Step size."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    decay: float = 0.999
    """How much of itself the teacher keeps at a step."""
    bank: int = 16384
    """Past images that vote for labels."""
    neighbours: int = 10
    """How many of them vote for an image, the nearest in angle."""
    vote_after: int = 1024
    """Images after which they vote; before, the model's own label counts."""
    queue: int = 16384
    """Past views that those of a batch are contrasted with."""
    temperature: float = 0.07
    """What cosines are divided by."""
    contrast: float = 1.0
    """Weight of the contrast."""
    diversity: float = 1.0
    """Weight of the entropy of the mean prediction."""
    strong: Literal["light", "full"] = "light"
    """Strong views: changed in colour and perhaps mirrored, or cropped, too."""
    bn_momentum: float = 0.1
    """How far batch-norm statistics move towards those of each forward pass of a step."""
    score_stats: Literal["batch", "running"] = "batch"
    """Batch-norm statistics of the returned prediction: of the batch itself, or those followed so far, as published."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("bank", "neighbours", "queue"):
            require(name, getattr(self, name) >= 1, "at least 1")
        require("decay", 0 <= self.decay <= 1, "in [0, 1]")
        require("bn_momentum", 0 <= self.bn_momentum <= 1, "in [0, 1]")
        require("vote_after", self.vote_after >= 0, "at least 0")
        require("temperature", self.temperature > 0, "above 0")
        require("contrast", self.contrast >= 0, "at least 0")
        require("diversity", self.diversity >= 0, "at least 0")


class Pass(NamedTuple):
    """One forward pass: unit features (N, D) and logits (N, K)."""

    z: Tensor
    logits: Tensor


@register_method(
    MethodInfo(
        name="adacontrast",
        summary="Learns labels that past neighbours vote for, and contrasts views with those of other labels.",
        paper="Chen et al. 2022",
        adapts="every layer",
        scored="after the step",
        norm="none",
        source="none",
        single="no step (the marginal needs a batch); batch norm: blended statistics",
        passes="5F 1B",
    ),
    AdacontrastConfig,
)
class Adacontrast(PixelAdapter):
    """One step per batch, in the online form; the batch is predicted after it."""

    config: AdacontrastConfig
    small_batch_without: ClassVar[int] = 16
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"lr": 2e-4, "optimizer": "sgd", "strong": "light"} for name in ("cifar10", "cifar100", "imagenet")
    }

    @property
    def statistics(self) -> Statistics:  # type: ignore[override]
        """What predictions are normalised by; a step looks under ``ema``."""
        return self.config.score_stats

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter that predictions depend on."""
        return predicting_parameters(self.model)

    def decays(self) -> dict[str, float]:
        """Return how much of itself the teacher keeps at a step, by the name of each adapted parameter."""
        return dict.fromkeys(self.parameters_adapted, self.config.decay)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the teacher, the statistics of both, past features with predictions, and past views with labels."""
        running = self.norm_statistics.follow(self.model, self.config.bn_momentum)
        past = {name: torch.empty(0) for name in ("bank/z", "bank/p", "queue/z", "queue/labels")}
        count = {"seen": torch.zeros((), dtype=torch.long)}
        return Teacher.of(self.parameters_adapted, running).remembered() | {"running": running.clone()} | past | count

    def step(self, x: Tensor) -> Tensor:
        """Find labels, let the teacher follow, descend, remember, and predict."""
        x, teacher = self.images(x), Teacher.recall(self.memory)
        running = self.memory["running"].clone()
        weak = weak_views(x, 1, self.generator)[0]
        strong = [self._strong(x) for _ in range(2)]
        with self.norm_statistics.using("ema"):
            with torch.no_grad():
                labels = self._labels(self._pass(weak, running))
                # Before the step, as published: the teacher lags one step behind.
                teacher.follow(self.parameters_adapted, self.decays())
                keys = self._pass(strong[1], teacher.statistics, teacher.parameters).z
                past = self._pass(weak, teacher.statistics, teacher.parameters)
            query = self._pass(strong[0], running)
        loss = nn.functional.cross_entropy(query.logits, labels)
        loss = loss + self.config.contrast * self._contrast(query.z, keys, labels)
        self.descend(loss - self.config.diversity * marginal_entropy(query.logits))
        self.memory.update(teacher.remembered() | {"running": running, "seen": self.memory["seen"] + len(x)})
        self._append("bank", self.config.bank, z=past.z, p=past.logits.softmax(1))
        self._append("queue", self.config.queue, z=keys, labels=labels)
        return self.predict(x)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the student's logits."""
        self.norm_statistics.running = self.memory["running"].clone()
        return super().predict(x)

    def _strong(self, x: Tensor) -> Tensor:
        if self.config.strong == "full":
            return simclr_view(x, self.generator)
        return grayscale(color_jitter(flip(x, self.generator), self.generator), self.generator)

    def _pass(self, x: Tensor, statistics: Tensor, tensors: dict[str, Tensor] | None = None) -> Pass:
        """Run the student, or the teacher by its tensors; ``statistics`` move in place."""
        self.norm_statistics.running = statistics
        with capture_input(self.classifier) as features:
            logits = self.network(x, tensors)
        return Pass(nn.functional.normalize(features[0].flatten(1), dim=1), logits)

    def _labels(self, weak: Pass) -> Tensor:
        """Return the labels that the nearest in the bank vote for; at first those of the model itself."""
        bank, p = self.memory["bank/z"], self.memory["bank/p"]
        if int(self.memory["seen"]) < self.config.vote_after or not bank.numel():
            return weak.logits.argmax(1)
        nearest = (weak.z @ bank.T).topk(min(self.config.neighbours, len(bank)), dim=1).indices
        return p[nearest].mean(1).argmax(1)

    def _contrast(self, query: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of telling each image's other view from past views of other labels; of none it is zero."""
        past = self.memory["queue/z"]
        positive = (query * keys).sum(1, keepdim=True)
        if not past.numel():
            return 0.0 * positive.mean()
        negative = (query @ past.T).masked_fill(labels[:, None] == self.memory["queue/labels"], -torch.inf)
        choice = torch.cat([positive, negative], 1) / self.config.temperature
        return (choice.logsumexp(1) - choice[:, 0]).mean()

    def _append(self, name: str, size: int, **rows: Tensor) -> None:
        """Put rows at the end of a queue; the oldest leave."""
        for key, new in rows.items():
            past = self.memory[f"{name}/{key}"]
            joined = torch.cat([past, new.detach()]) if past.numel() else new.detach()
            self.memory[f"{name}/{key}"] = joined[-size:].clone()
