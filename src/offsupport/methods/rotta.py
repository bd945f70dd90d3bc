"""RoTTA: statistics that follow slowly, and a student that learns from a balanced memory of recent, certain images."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.augment import cotta_view
from offsupport.engine.adapter import PixelAdapter
from offsupport.engine.bank import Bank, Item
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.engine.teacher import Teacher
from offsupport.functional import entropy
from offsupport.nn import affine_parameters
from offsupport.nn.norm import Statistics

STUDENT = "student_statistics"
"""Batch-norm statistics of the student, in the memory of the adapter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RottaConfig(StepConfig):
    """Hyper-parameters of RoTTA."""

    min_batch: int | None = None
    """Smaller batches are predicted and not remembered; None is 1, as predictions use no statistics of the batch."""
    decay: float = 0.999
    """How much of itself the teacher keeps at a step."""
    bn_momentum: float = 0.05
    """How far batch-norm statistics move towards those of the memory at a step."""
    capacity: int = 64
    """Images in the memory."""
    update_every: int = 64
    """A step is taken whenever so many images have come."""
    age_weight: float = 1.0
    """How much the age of an image speaks for leaving the memory."""
    entropy_weight: float = 1.0
    """How much its entropy does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("decay", 0 <= self.decay <= 1, "in [0, 1]")
        require("bn_momentum", 0 <= self.bn_momentum <= 1, "in [0, 1]")
        require("capacity", self.capacity >= 1, "at least 1")
        require("update_every", self.update_every >= 1, "at least 1")
        require("age_weight", self.age_weight >= 0, "at least 0")
        require("entropy_weight", self.entropy_weight >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="rotta",
        summary="Learns from a class-balanced memory by a slow teacher, with statistics that follow slowly.",
        paper="Yuan et al. 2023",
        adapts="scale and shift of norm layers, batch-norm statistics",
        scored="before the step, by the teacher",
        norm="any",
        source="none",
        single="as any other batch; a step per update_every images",
        passes="1F, and per 64 images 2F 1B of 64",
    ),
    RottaConfig,
)
class Rotta(PixelAdapter):
    """Predicts by the teacher and its statistics; every so many images the student takes a step on the memory."""

    config: RottaConfig
    statistics: ClassVar[Statistics] = "running"
    small_batch_with_norm: ClassVar[int] = 1
    any_order: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"lr": 1e-3, "optimizer": "adam", "decay": 0.999, "bn_momentum": 0.05}
        for name in ("cifar10", "cifar100", "imagenet")
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def decays(self) -> dict[str, float]:
        """Return how much of itself the teacher keeps at a step, by the name of each adapted parameter."""
        return dict.fromkeys(self.parameters_adapted, self.config.decay)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the teacher, the statistics of both networks, and the images."""
        statistics = self.norm_statistics.follow(self.model, self.config.bn_momentum)
        teacher = Teacher.of(self.parameters_adapted, statistics).remembered()
        return teacher | {STUDENT: statistics.clone()} | Bank.initial(self.config.capacity)

    def step(self, x: Tensor) -> Tensor:
        """Predict by the teacher, then remember the images one by one, with a step whenever one is due."""
        x = self.images(x)
        logits = self.predict(x)
        bank = Bank(self.memory, self.config.capacity)
        if not bank.fits(x):
            bank.clear()
        surprise = (entropy(logits) / math.log(logits.shape[1])).tolist()
        # One at a time, as each place depends on who came before; numbers alone, images are copied at the end.
        for image, label, u in zip(x, logits.argmax(1).tolist(), surprise, strict=True):
            self.remember(bank, image, label, u, logits.shape[1])
            bank.seen += 1
            if bank.seen % self.config.update_every == 0:
                self.learn(bank)
        self.memory.update(bank.remembered())
        return logits

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the teacher's logits by its own statistics."""
        teacher = Teacher.recall(self.memory)
        self.norm_statistics.running = teacher.statistics
        return self.network(x, teacher.parameters)

    def predicting_parameters(self) -> dict[str, Tensor]:
        """Return the teacher's parameters."""
        return Teacher.recall(self.memory).parameters

    def remember(self, bank: Bank, image: Tensor, label: int, u: float, classes: int) -> None:
        """Take an image in where its class has too few, or where it is better than the worst one there."""
        counts = bank.counts()
        if counts.get(label, 0) >= bank.capacity / classes:
            rivals = [item for item in bank.items if item.label == label]
        elif len(bank.items) < bank.capacity:
            rivals = []
        else:
            most = max(counts.values())
            rivals = [item for item in bank.items if counts[item.label] == most]
        if not rivals:
            bank.put(image, label, u)
            return
        # Of equals the last one leaves.
        worst = max(reversed(rivals), key=lambda item: self._burden(item, bank))
        newcomer = 0.5 * self.config.age_weight + self.config.entropy_weight * u
        if self._burden(worst, bank) > newcomer:
            bank.put(image, label, u, worst)

    def _burden(self, item: Item, bank: Bank) -> float:
        """Say how much speaks for an image leaving: its age and its entropy."""
        age = (bank.seen - item.born) / bank.capacity
        return self.config.age_weight / (1 + math.exp(-age)) + self.config.entropy_weight * item.score

    def learn(self, bank: Bank) -> None:
        """Let the student follow the teacher's predictions of the memory, and the teacher the student."""
        images, teacher = bank.images(), Teacher.recall(self.memory)
        statistics = self.memory[STUDENT].clone()
        weight = torch.sigmoid(-bank.ages() / bank.capacity).to(images)
        with self.norm_statistics.using("moved"):
            q = self.taught(images, teacher).softmax(1)
            self.norm_statistics.running = statistics
            log_p = self.network(cotta_view(images, self.generator)).log_softmax(1)
        self.descend(-(weight * (q * log_p).sum(1)).mean())
        teacher.follow(self.parameters_adapted, self.decays())
        self.memory.update(teacher.remembered() | {STUDENT: statistics})

    @torch.no_grad()
    def taught(self, images: Tensor, teacher: Teacher) -> Tensor:
        """Return the teacher's logits of the memory; its statistics move."""
        self.norm_statistics.running = teacher.statistics
        return self.network(images, teacher.parameters)
