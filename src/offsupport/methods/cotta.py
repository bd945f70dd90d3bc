"""CoTTA: a student follows its slow teacher's prediction over views, and some of its weights go back to the source."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import cotta_view
from offsupport.engine.adapter import PixelAdapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.engine.teacher import Teacher
from offsupport.functional import symmetric_cross_entropy
from offsupport.nn.projected import predicting_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class CottaConfig(StepConfig):
    """Hyper-parameters of CoTTA."""

    decay: float = 0.999
    """How much of itself the teacher keeps at a step."""
    views: int = 32
    """Views that the teacher's logits are averaged over, where the source is not sure."""
    sure: float = 0.9
    """A batch is sure where the source model's mean largest probability is at least this."""
    restore: float = 0.01
    """The share of weights that goes back to the source after a step, drawn anew each time."""
    loss: Literal["cross_entropy", "symmetric"] = "cross_entropy"
    """How the student follows: cross-entropy with the teacher, or the mean of both directions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("decay", 0 <= self.decay <= 1, "in [0, 1]")
        require("views", self.views >= 1, "at least 1")
        require("restore", 0 <= self.restore <= 1, "in [0, 1]")


@register_method(
    MethodInfo(
        name="cotta",
        summary="Follows its slow teacher's mean prediction over views, and restores weights at random.",
        paper="Wang et al. 2022",
        adapts="every layer",
        scored="before the step, by the teacher",
        norm="none",
        source="none",
        single="batch norm: no step, blended statistics; otherwise a step per sample",
        passes="3F 1B, or where the source is unsure 34F 1B",
    ),
    CottaConfig,
)
class Cotta(PixelAdapter):
    """One step per batch towards the teacher, which then follows; a few weights return to the source."""

    config: CottaConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "sure": 0.92, "restore": 0.01},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "sure": 0.72, "restore": 0.01},
        "imagenet": {"lr": 1e-2, "optimizer": "sgd", "sure": 0.1, "restore": 0.001, "loss": "symmetric"},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter that predictions depend on."""
        return predicting_parameters(self.model)

    def decays(self) -> dict[str, float]:
        """Return how much of itself the teacher keeps at a step, by the name of each adapted parameter."""
        return dict.fromkeys(self.parameters_adapted, self.config.decay)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the teacher."""
        return Teacher.of(self.parameters_adapted, self.norm_statistics.follow(self.model)).remembered()

    def step(self, x: Tensor) -> Tensor:
        """Ask the teacher, let the student follow its answer and the teacher the student, and restore."""
        x, teacher = self.images(x), Teacher.recall(self.memory)
        asked = self._ask(x, teacher)
        logits = self.network(x)
        if self.config.loss == "symmetric":
            loss = symmetric_cross_entropy(logits, asked)
        else:
            loss = -(asked.softmax(1) * logits.log_softmax(1)).sum(1)
        self.descend(loss.mean())
        teacher.follow(self.parameters_adapted, self.decays())
        self.memory.update(teacher.remembered())
        self._restore()
        return asked

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.network(self.images(x), Teacher.recall(self.memory).parameters)

    def without_step(self, x: Tensor) -> Tensor:
        """Return what the teacher would have been followed in."""
        return self._ask(self.images(x), Teacher.recall(self.memory))

    def predicting_parameters(self) -> dict[str, Tensor]:
        """Return the teacher's parameters."""
        return Teacher.recall(self.memory).parameters

    @torch.no_grad()
    def _ask(self, x: Tensor, teacher: Teacher) -> Tensor:
        """Return the teacher's logits, of the images where the source is sure, else as a mean over views."""
        confidence = self.network(x, dict(self.source_parameters)).softmax(1).amax(1).mean()
        if float(confidence) >= self.config.sure:
            return self.network(x, teacher.parameters)
        total = torch.zeros(())
        for _ in range(self.config.views):
            total = total + self.network(cotta_view(x, self.generator), teacher.parameters)
        return total / self.config.views

    @torch.no_grad()
    def _restore(self) -> None:
        """Send a random share of all weights back to the source."""
        for name, parameter in self.parameters_adapted.items():
            chosen = torch.rand(parameter.shape, generator=self.generator) < self.config.restore
            parameter.copy_(torch.where(chosen.to(parameter.device), self.source_parameters[name], parameter))
