"""MAE test-time training with entropy steps: after each reconstruction step, be certain about the whole image."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import torch
from torch import Tensor

from offsupport.core.errors import ConfigError
from offsupport.functional import entropy, marginal_entropy, mutual_information
from offsupport.methods import state
from offsupport.methods.config import MethodInfo, require
from offsupport.methods.mae_ttt import MaeTtt, MaeTttConfig, Views, crops
from offsupport.methods.registry import register

Uncertainty = Literal["entropy", "information", "marginal"]
_SECOND = "second:"
"""Marks what belongs to the optimiser of the entropy steps in a snapshot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeTttEmConfig(MaeTttConfig):
    """Hyper-parameters of MAE test-time training with entropy steps."""

    em_steps: int = 1
    """Entropy steps after each reconstruction step."""
    em_loss: Uncertainty = "entropy"
    """The mean entropy of the predictions; that minus the entropy of their mean; or the entropy of their mean alone."""
    em_views: Views = "copies"
    """What is classified: the image itself, or random crops of it. With ``online`` it is the batch, uncropped."""
    em_images: int = 32
    """Number of crops. Copies are all alike, so one stands for them all."""
    optimizers: Literal["shared", "separate"] = "shared"
    """Whether both stages share their momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("em_steps", self.em_steps >= 0, "at least 0")
        require("em_images", self.em_images >= 1, "at least 1")
        if self.em_loss == "information" and not self.online and (self.em_views == "copies" or self.em_images == 1):
            raise ConfigError(
                "The information between copies of one image and their predictions is zero, and so is its gradient.",
                'Use em_loss="entropy", several em_views="crops", or online=True with batches of different images.',
            )
        if self.online and self.em_views == "crops":
            raise ConfigError(
                'With online=True the entropy steps take the batch as it is, so em_views="crops" would change nothing.',
                "Leave one of them out.",
            )


@register(
    MethodInfo(
        name="mae-ttt+em",
        summary="MAE test-time training with entropy steps on the whole image after each reconstruction step.",
        paper="Kong et al. 2024",
        adapts="the encoder of a masked autoencoder, and the classifier",
        scored="after the last step",
        norm="none",
        source="none",
        single="each image is an episode of its own, whatever the batch",
    ),
    MaeTttEmConfig,
)
class MaeTttEm(MaeTtt):
    """Each iteration: a reconstruction step (encoder), then entropy steps on whole images (encoder and classifier)."""

    config: MaeTttEmConfig
    trains_classifier: ClassVar[bool] = True

    def after_reconstruction(self, x: Tensor, generator: torch.Generator) -> None:
        """Take the entropy steps; a lone image of an online stream says nothing by information, so there are none."""
        if self.config.online and self.config.em_loss == "information" and len(x) == 1:
            self.count("empty_selection")
            return
        for _ in range(self.config.em_steps):
            seen = x
            # Copies of one image have one prediction: a single forward pass gives the same loss and gradient.
            if self.config.em_views == "crops" and not self.config.online:
                seen = crops(x.expand(self.config.em_images, -1, -1, -1), generator)
            self._descend_uncertainty(uncertainty(self.network(seen), self.config.em_loss))

    def _descend_uncertainty(self, loss: Tensor) -> None:
        first = self.optimizer
        self.optimizer = self.second or first
        try:
            self.descend(loss)
        finally:
            self.optimizer = first

    # The second optimiser is part of the state -----------------------------------------------------------------------

    def _set_up_batches(self) -> None:
        super()._set_up_batches()
        separate = self.config.optimizers == "separate"
        self.second = self.config.make_optimizer(self.parameter_groups()) if separate else None

    def restart(self) -> None:
        """Put the weights back to the source and forget all momentum."""
        super().restart()
        if self.second is not None:
            self.second.state.clear()

    def snapshot(self) -> state.Snapshot:
        """Copy all adaptive state."""
        first = super().snapshot()
        second = state.capture(self.parameters_adapted, self.second, self.memory, self.generator)
        marked = {f"{_SECOND}{name}": tensor for name, tensor in second.optimizer.items()}
        return dataclasses.replace(first, optimizer=first.optimizer | marked)

    @torch.inference_mode(False)
    def restore(self, snapshot: state.Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        marked = {name: tensor for name, tensor in snapshot.optimizer.items() if name.startswith(_SECOND)}
        plain = {name: tensor for name, tensor in snapshot.optimizer.items() if name not in marked}
        super().restore(dataclasses.replace(snapshot, optimizer=plain))
        if self.second is not None:
            own = {name.removeprefix(_SECOND): tensor for name, tensor in marked.items()}
            moment = dataclasses.replace(snapshot, optimizer=own)
            state.restore(moment, self.parameters_adapted, self.second, self.memory, self.generator)


def uncertainty(logits: Tensor, loss: Uncertainty) -> Tensor:
    """Return what the entropy steps minimise, from the logits (N, K) of N views.

    Example:
        >>> float(uncertainty(torch.zeros(3, 2), "information"))
        0.0
    """
    if loss == "information":
        return -mutual_information(logits)
    return marginal_entropy(logits) if loss == "marginal" else entropy(logits).mean()
