"""RPL: robust pseudo-labels, by a loss that unlikely labels pull at less than cross-entropy would."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor, nn

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.functional import as_rows
from offsupport.nn import affine_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class RplConfig(StepConfig):
    """Hyper-parameters of RPL."""

    q: float = 0.8
    """Between cross-entropy, near 0, and the mean absolute error, 1, which no wrong label disturbs much."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("q", 0 < self.q <= 1, "in (0, 1]")


@register_method(
    MethodInfo(
        name="rpl",
        summary="Follows its own labels by a loss that is robust to wrong ones.",
        paper="Rusak et al. 2022",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per sample",
        passes="1F 1B",
    ),
    RplConfig,
)
class Rpl(Adapter):
    """One step per batch down the generalised cross-entropy with the predicted labels."""

    config: RplConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "q": 0.8},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "q": 0.8},
        "imagenet": {"lr": 5e-4, "optimizer": "sgd", "q": 0.8},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def step(self, x: Tensor) -> Tensor:
        """Predict, then descend (1 - p_y^q) / q of the label y that was predicted."""
        logits = self.network(x)
        # The largest probability is that of the predicted label.
        surest = as_rows(logits).log_softmax(1).amax(1)
        self.descend(((1 - (self.config.q * surest).exp()) / self.config.q).mean())
        return logits
