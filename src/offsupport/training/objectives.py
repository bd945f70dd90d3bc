"""What is minimised: a module that holds the network and turns views of a batch and their labels into a loss."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from offsupport.augment import turned
from offsupport.core.config import build
from offsupport.core.registry import Registry
from offsupport.data import Dataset
from offsupport.functional import nt_xent
from offsupport.nn import WithProjection, WithRotation, projected, with_rotation_head
from offsupport.nn.inspect import capture_input, find_head
from offsupport.nn.rotated import TURNS

OBJECTIVES: Registry[type[Objective]] = Registry("objective")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in uint8 and their labels, in memory."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, dataset: Dataset, rows: np.ndarray[Any, Any] | None = None) -> Examples:
        """Return rows of a data set, or all of them."""
        rows = np.arange(len(dataset)) if rows is None else rows
        pixels = torch.from_numpy(dataset.images(rows)).permute(0, 3, 1, 2).contiguous()
        return cls(pixels, torch.from_numpy(dataset.labels[rows]))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows as float images in [0, 1], and their labels."""
        return self.images[rows].float().div_(255), self.labels[rows]


class Loss(NamedTuple):
    """The loss of a batch, and for each image whether what was asked of it came out right."""

    value: Tensor
    right: Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOptions:
    """For objectives without any."""


class Objective(nn.Module, ABC):
    """Owns the network being trained and whatever else has to be learnt or remembered on the way.

    Args:
        network: Images in [0, 1] to logits.
        options: The settings of this objective, an instance of its ``options_class``.
    """

    options_class: type[Any] = NoOptions
    views = 1
    """How many views of each image a step takes."""
    classifies = True
    """Whether the result predicts classes, so that its accuracy means something."""

    model: nn.Module

    def __init__(self, network: nn.Module, options: Any) -> None:
        super().__init__()
        self.options = options
        self.model = network

    @abstractmethod
    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the loss of a batch."""

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with the weights of another recipe instead of fresh ones."""
        self.model.load_state_dict(weights)

    def prepare(self, train: Examples) -> Examples:
        """Return what is trained on, asked once before the first epoch; what stays the same may be computed ahead."""
        return train

    def after_step(self) -> None:
        """Called when the optimiser has made its step."""

    def facts(self) -> dict[str, Any]:
        """Return what a file of the weights must say for them to be read again, beside the network's name."""
        return {}


def make_objective(name: str, network: nn.Module, options: Mapping[str, Any]) -> Objective:
    """Return an objective around a network; unknown options are errors that name the nearest."""
    cls = OBJECTIVES[name]
    return cls(network, build(cls.options_class, options, f"objective {name!r}"))


@OBJECTIVES.register("supervised")
class Supervised(Objective):
    """Cross-entropy."""

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the cross-entropy of a batch."""
        logits = self.model(views[0])
        return Loss(nn.functional.cross_entropy(logits, labels), logits.argmax(1) == labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointOptions:
    """Settings of the joint objective."""

    contrast: float = 0.1
    """Weight of the contrastive loss; the two cross-entropies get the rest each."""
    temperature: float = 0.5
    """What cosines are divided by."""
    base_temperature: float | None = 0.07
    """The contrastive loss is scaled by temperature / base_temperature, 7.14 as published; None leaves it alone."""


@OBJECTIVES.register("joint")
class Joint(Objective):
    """Cross-entropy of two views and the contrast between them (TTT++, Liu et al., 2021); the head is kept.

    Under several processes each contrasts its own share of the batch.
    """

    options_class = JointOptions
    views = 2
    model: WithProjection

    def __init__(self, network: nn.Module, options: JointOptions) -> None:
        super().__init__(network, options)
        self.model = projected(network)

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return (1 - contrast) (CE + CE) + contrast NT-Xent, from one pass over both views."""
        # One pass: batch norm takes its statistics from the two views together.
        logits, projections = self.model.both(torch.cat(list(views)))
        twice = torch.cat([labels, labels])
        # The sum of the two views' cross-entropies, since both have as many images.
        wrong = 2 * nn.functional.cross_entropy(logits, twice)
        one, two = projections.chunk(2)
        apart = nt_xent(one, two, self.options.temperature, self.options.base_temperature)
        value = (1 - self.options.contrast) * wrong + self.options.contrast * apart
        return Loss(value, (logits.argmax(1) == twice).view(2, -1).float().mean(0))

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with a trained backbone; the projection head stays fresh."""
        self.model.backbone.load_state_dict(weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotationOptions:
    """Settings of the rotation objective."""

    branch: str | None = None
    """Module of the network whose output the rotation head takes; null for the penultimate features."""
    weight: float = 1.0
    """Weight of the rotation task beside classification."""
    copies: Literal[1, 4] = 4
    """Turned copies of each image: all four, or one, by the place of the image in its batch."""


@OBJECTIVES.register("rotation")
class Rotation(Objective):
    """Cross-entropy of the classes, and of the quarters by which copies were turned (Sun et al., 2020)."""

    options_class = RotationOptions
    model: WithRotation

    def __init__(self, network: nn.Module, options: RotationOptions) -> None:
        super().__init__(network, options)
        self.model = with_rotation_head(network, options.branch)

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return CE + weight CE of turns, from a pass over the images and one over turned copies."""
        x, copies = views[0], self.options.copies
        logits = self.model(x)
        # Without draws: batches are shuffled, so that an image's place in one is as good as a random number.
        quarters = torch.arange(copies * len(x), device=x.device) % TURNS
        _, turns = self.model.both(turned(x.repeat_interleave(copies, 0), quarters))
        wrong = nn.functional.cross_entropy(logits, labels)
        value = wrong + self.options.weight * nn.functional.cross_entropy(turns, quarters)
        return Loss(value, logits.argmax(1) == labels)

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with a trained backbone; the rotation head stays fresh."""
        self.model.backbone.load_state_dict(weights)

    def facts(self) -> dict[str, Any]:
        """Return where the rotation head branches off."""
        return {"branch": self.options.branch}


@OBJECTIVES.register("probe")
class Probe(Objective):
    """Cross-entropy of a linear classifier on the features of a frozen network."""

    def __init__(self, network: nn.Module, options: NoOptions) -> None:
        super().__init__(network, options)
        network.requires_grad_(False)
        self.head[1].requires_grad_(True)

    @property
    def head(self) -> tuple[str, nn.Module]:
        """Name and module of the classifier."""
        return find_head(self.model)

    def train(self, mode: bool = True) -> Probe:
        """Keep everything in evaluation mode: a frozen network does not count along either."""
        return super().train(False)

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the cross-entropy of the classifier."""
        _, head = self.head
        with torch.no_grad(), capture_input(head) as features:
            self.model(views[0])
        logits = head(features[-1])
        return Loss(nn.functional.cross_entropy(logits, labels), logits.argmax(1) == labels)

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with the weights below the classifier, which stays fresh."""
        name, head = self.head
        own = {f"{name}.{key}": value for key, value in head.state_dict().items()}
        self.model.load_state_dict({**weights, **own})
