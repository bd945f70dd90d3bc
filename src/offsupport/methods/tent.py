"""TENT: minimise the entropy of the predictions over the scale and shift of normalisation layers."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor, nn

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo, StepConfig
from offsupport.engine.registry import register_method
from offsupport.functional import Loss, uncertainty
from offsupport.nn import affine_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class TentConfig(StepConfig):
    """Hyper-parameters of TENT."""

    loss: Loss = "entropy"
    """What is minimised: the entropy, or that of an opinion that may withhold its belief (COME)."""


@register_method(
    MethodInfo(
        name="tent",
        summary="Minimises the entropy of its predictions.",
        paper="Wang et al. 2021",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per sample",
        passes="1F 1B",
    ),
    TentConfig,
)
class Tent(Adapter):
    """One step down the mean entropy per batch; dense outputs count every position."""

    config: TentConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam"},
        "cifar100": {"lr": 1e-3, "optimizer": "adam"},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd"},
        "cifar10-small": {"lr": 3e-3, "optimizer": "adam"},
    }
    # Of what was tried on the extra corruptions, this is surest to do no harm (``offsupport reproduce tuning-sc``).
    sparse_defaults: ClassVar[dict[str, Any]] = {"ratio_l": 0.1}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def step(self, x: Tensor) -> Tensor:
        """Predict, then descend the entropy of that prediction."""
        # One pass serves the prediction and the loss: that is why it is scored before the step.
        logits = self.network(x)
        self.descend(uncertainty(logits, self.config.loss).mean())
        return logits
