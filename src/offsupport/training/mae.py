"""Masked autoencoders: pre-training, a head on the frozen encoder, and both losses at once (Gandelsman et al., 2022).

Fine-tuning is the supervised objective, started from a pre-trained autoencoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError
from offsupport.core.seeds import derive_seed
from offsupport.nn.mae import Inside, Masking, draw_masks
from offsupport.training.objectives import OBJECTIVES, Examples, Loss, Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeOptions:
    """Settings of reconstruction."""

    mask_ratio: float = 0.75
    """Share of the patches that is removed."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_ratio < 1:
            raise ConfigError(
                f"With a mask ratio of {self.mask_ratio} there is nothing to learn.", "It must be above 0 and below 1."
            )


@OBJECTIVES.register("mae")
class Reconstruction(Objective):
    """The mean squared error of the removed patches, each image under a mask of its own; no labels."""

    options_class = MaeOptions
    classifies = False
    seed: Tensor
    step: Tensor

    def __init__(self, network: nn.Module, options: MaeOptions) -> None:
        super().__init__(network, options)
        # Masks depend on the step and not on a generator's state, so that a run that is taken up goes on with its own.
        self.register_buffer("seed", torch.randint(1 << 31, ()))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        assert self.inside.mae.classifier is not None  # noqa: S101 - networks by name always have one
        self.inside.mae.classifier.requires_grad_(self.classifies)

    @property
    def inside(self) -> Inside:
        """The autoencoder in the network."""
        return Inside(self.model, "This objective")

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the reconstruction loss of a batch; nothing is right or wrong."""
        return Loss(self.reconstruction(views[0]), torch.zeros(len(labels)))

    def reconstruction(self, x: Tensor) -> Tensor:
        """Return the reconstruction loss of images."""
        inside = self.inside
        return inside.mae.loss(inside.reach(x), self._masks(len(x), inside.mae.config.patches).to(x.device))

    def after_step(self) -> None:
        """Count the steps."""
        self.step += 1

    def _masks(self, count: int, patches: int) -> Masking:
        generator = torch.Generator().manual_seed(derive_seed("masks", int(self.seed), int(self.step)))
        return draw_masks(count, patches, self.options.mask_ratio, generator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointMaeOptions(MaeOptions):
    """Settings of joint training."""

    classify: float = 1.0
    """Weight of the cross-entropy beside the reconstruction loss."""
    smoothing: float = 0.0
    """Share of each label that is spread over all classes."""


@OBJECTIVES.register("mae-joint")
class JointMae(Reconstruction):
    """Reconstruction under masks, and cross-entropy on whole images: encoder and decoder stay of one mind."""

    options_class = JointMaeOptions
    classifies = True

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the sum of both losses."""
        logits = self.model(views[0])
        wrong = nn.functional.cross_entropy(logits, labels, label_smoothing=self.options.smoothing)
        value = self.reconstruction(views[0]) + self.options.classify * wrong
        return Loss(value, logits.argmax(1) == labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeHeadOptions:
    """Settings of training a head."""

    smoothing: float = 0.1
    """Share of each label that is spread over all classes."""


class Encoded(Examples):
    """Tokens in place of images."""

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows in single precision, and their labels."""
        return self.images[rows].float(), self.labels[rows]


@OBJECTIVES.register("mae-head")
class MaeHead(Objective):
    """Cross-entropy of the classifier on a frozen encoder, whose tokens are computed once and kept in half precision.

    Images cannot vary then: the recipe takes them as they are.
    """

    options_class = MaeHeadOptions

    def __init__(self, network: nn.Module, options: MaeHeadOptions) -> None:
        super().__init__(network, options)
        network.requires_grad_(False)
        self.head.requires_grad_(True)

    @property
    def head(self) -> nn.Module:
        """The classifier."""
        found = Inside(self.model, "This objective").mae.classifier
        assert found is not None  # noqa: S101 - Inside refuses a model without one
        return found

    @torch.no_grad()
    def prepare(self, train: Examples) -> Examples:
        """Return the tokens of all images instead of the images."""
        inside = Inside(self.model, "This objective")
        parts = torch.split(torch.arange(len(train)), 250)
        encoded = [inside.mae.encode(inside.reach(train.batch(rows)[0])).half() for rows in parts]
        return Encoded(torch.cat(encoded), train.labels)

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the cross-entropy of the classifier on encoded tokens."""
        logits = self.head(views[0])
        value = nn.functional.cross_entropy(logits, labels, label_smoothing=self.options.smoothing)
        return Loss(value, logits.argmax(1) == labels)

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Begin with a pre-trained autoencoder; the classifier stays fresh."""
        prefix = f"{Inside(self.model, 'This objective').prefix}classifier."
        own = {name: value for name, value in self.model.state_dict().items() if name.startswith(prefix)}
        self.model.load_state_dict({**weights, **own})
