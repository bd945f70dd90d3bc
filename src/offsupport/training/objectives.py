"""What is minimised: a module that holds the network and turns views of a batch and their labels into a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn


class Loss(NamedTuple):
    """The loss of a batch, and the logits accuracy is counted by."""

    value: Tensor
    logits: Tensor


class Objective(nn.Module, ABC):
    """Owns the network being trained and whatever else has to be learnt or remembered on the way.

    Args:
        model: Images in [0, 1] to logits; this is what is kept in the end.
    """

    views = 1
    """How many views of each image a step takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the loss of a batch."""


class Supervised(Objective):
    """Cross-entropy."""

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the cross-entropy of a batch."""
        logits = self.model(views[0])
        return Loss(nn.functional.cross_entropy(logits, labels), logits)
