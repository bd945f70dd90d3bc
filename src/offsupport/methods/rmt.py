"""RMT: student and slow teacher agree on images and views, and features are pulled to the source's prototypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.augment import cotta_view
from offsupport.core.errors import ConfigError
from offsupport.core.seeds import derive_seed
from offsupport.engine.adapter import PixelAdapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import Sample, class_feature_moments
from offsupport.engine.teacher import Teacher
from offsupport.functional import symmetric_cross_entropy, view_contrast
from offsupport.nn.inspect import capture_input, device_and_dtype
from offsupport.nn.norm import Statistics
from offsupport.nn.projected import predicting_parameters

_PROJECTOR = "projector."
"""Before the names of the projector's parameters, which are no part of the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RmtConfig(StepConfig):
    """Hyper-parameters of RMT."""

    decay: float = 0.999
    """How much of itself the teacher keeps at a step."""
    contrast: float = 1.0
    """Weight of the contrast of prototype, image and view."""
    temperature: float = 0.1
    """What cosines are divided by in it."""
    projector: int = 128
    """Width of the projector, which learns along; 0 compares the features themselves."""
    replay: float = 0.0
    """Weight of source images in a step, 1 as published; source statistics made with it above 0 hold 512 of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("decay", 0 <= self.decay <= 1, "in [0, 1]")
        require("contrast", self.contrast >= 0, "at least 0")
        require("temperature", self.temperature > 0, "above 0")
        require("projector", self.projector >= 0, "at least 0")
        require("replay", self.replay >= 0, "at least 0")


class Pass(NamedTuple):
    """One forward pass: features (N, D) and logits (N, K)."""

    z: Tensor
    logits: Tensor


@register_method(
    MethodInfo(
        name="rmt",
        summary="Student and slow teacher agree on images and views; features are pulled to source prototypes.",
        paper="Döbler et al. 2023",
        adapts="every layer",
        scored="before the step, by student and teacher together",
        norm="none",
        source="required",
        single="batch norm: no step, blended statistics; otherwise a step per sample",
        passes="3F 1B",
    ),
    RmtConfig,
)
class Rmt(PixelAdapter):
    """One step per batch towards the teacher and the prototypes; the teacher follows."""

    config: RmtConfig
    source_shapes: ClassVar[dict[str, str]] = {
        "class_mean": "KD",
        "class_count": "K",
        "replay_images": "RCHW|R",
        "replay_labels": "R",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam"},
        "cifar100": {"lr": 1e-3, "optimizer": "adam"},
        "imagenet": {"lr": 1e-2, "optimizer": "sgd"},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter that predictions depend on, and those of the projector."""
        found = predicting_parameters(self.model)
        self.projector = self._fresh_projector()
        return found | {_PROJECTOR + name: p for name, p in self.projector.named_parameters()}

    def decays(self) -> dict[str, float]:
        """Return how much of itself the teacher keeps at a step, by the name of each adapted parameter."""
        return dict.fromkeys(self._inside(self.parameters_adapted), self.config.decay)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the teacher."""
        if self.source is not None and self.config.replay and not self.source.tensors["replay_labels"].numel():
            raise ConfigError(
                "replay is above 0, and these source statistics hold no images to learn again.",
                f'Make them with offsupport.source_stats(model, loader, method="rmt", replay={self.config.replay}).',
            )
        statistics = self.norm_statistics.follow(self.model)
        return Teacher.of(self._inside(self.parameters_adapted), statistics).remembered()

    def step(self, x: Tensor) -> Tensor:
        """Predict images and views, let the student agree with the teacher, and the teacher follow."""
        x, teacher = self.images(x), Teacher.recall(self.memory)
        student, view = self._pass(x), self._pass(cotta_view(x, self.generator))
        with torch.no_grad():
            taught = self.network(x, teacher.parameters)
        agreement = symmetric_cross_entropy(student.logits, taught) + symmetric_cross_entropy(view.logits, taught)
        prototypes = self._nearest_prototypes(student.z.detach())
        views = [self.projector(z) for z in (prototypes, student.z, view.z)]
        loss = 0.5 * agreement.mean() + self.config.contrast * view_contrast(views, self.config.temperature)
        if self.config.replay:
            loss = loss + self.config.replay * self._replayed(x)
        self.descend(loss)
        teacher.follow(self.parameters_adapted, self.decays())
        self.memory.update(teacher.remembered())
        return (student.logits + taught) / 2

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the mean of the student's and the teacher's logits."""
        x = self.images(x)
        return (self.network(x) + self.network(x, Teacher.recall(self.memory).parameters)) / 2

    def predicting_parameters(self) -> dict[str, Tensor]:
        """Return the teacher's parameters: of the two networks that predict, it is the steadier one."""
        return Teacher.recall(self.memory).parameters

    @property
    def source_parameters(self) -> dict[str, Tensor]:
        """The adapted parameters of the model as they came, by name."""
        return self._inside(super().source_parameters)

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the mean feature of each predicted class, and where they are to be replayed, some of the images."""
        kept = Sample()

        def watched() -> Iterator[Tensor]:
            for x in batches:
                if self.config.replay:
                    kept.add(x, None)
                yield x

        moments = class_feature_moments(self.source_features(watched()), "diagonal")
        found = {name: moments[name] for name in ("class_mean", "class_count")}
        images, labels = torch.empty(0), torch.empty(0, dtype=torch.long)
        if self.config.replay:
            images, _ = kept.drawn(self.device)
            logits = [logits for _, logits in self.source_features(torch.split(images, 64))]
            labels = torch.cat(logits).argmax(1)
        return found | {"replay_images": images, "replay_labels": labels}

    def _fresh_projector(self) -> nn.Module:
        """Return the projector at its start; none is needed where source statistics are being made."""
        if self.source is None or not self.config.projector:
            return nn.Identity()
        inputs, width = self.source.tensors["class_mean"].shape[1], self.config.projector
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("projector", self.options.seed))
            made = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width))
        device, dtype = device_and_dtype(self.model)
        return made.to(device, dtype)

    def _inside(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return those that are part of the model."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(_PROJECTOR)}

    def _pass(self, x: Tensor) -> Pass:
        with capture_input(self.classifier) as features:
            logits = self.network(x)
        return Pass(features[0].flatten(1), logits)

    def _nearest_prototypes(self, z: Tensor) -> Tensor:
        """Return for each feature the mean of the source class that is nearest in angle, (N, D)."""
        assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
        means, counts = (self.source.tensors[name].to(z) for name in ("class_mean", "class_count"))
        cosine = nn.functional.normalize(z, dim=1) @ nn.functional.normalize(means, dim=1).T
        # A class without source images has no mean.
        return means[cosine.masked_fill(counts == 0, -torch.inf).argmax(1)]

    def _replayed(self, x: Tensor) -> Tensor:
        """Return the loss on as many source images as ``x`` has, drawn from those that were kept."""
        assert self.source is not None  # noqa: S101 (as above)
        images, labels = self.source.tensors["replay_images"], self.source.tensors["replay_labels"]
        rows = torch.randperm(len(labels), generator=self.generator)[: len(x)].to(labels.device)
        # Statistics that follow the stream are none of the source.
        kind: Statistics = "batch" if self.norm_statistics.kind == "batch" else "source"
        with self.norm_statistics.using(kind):
            return nn.functional.cross_entropy(self.network(images[rows].to(x)), labels[rows])
