"""SAR: entropy minimisation on reliable samples, towards flat minima, with a way back from collapse."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo, Options, StepConfig, require, require_pattern
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import SourceStats
from offsupport.functional import Loss, as_rows, uncertainty
from offsupport.nn import affine_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class SarConfig(StepConfig):
    """Hyper-parameters of SAR."""

    lr: float | None = None  # type: ignore[assignment]  # an adapter has a number: see Sar
    """Step size; None is 0.03 with batch norm and 1e-3 without."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    margin: float = 0.4
    """A prediction is reliable below this fraction of the largest entropy, ln K."""
    rho: float = 0.05
    """Radius within which the sharpness is measured."""
    reset_below: float = 0.02
    """Recover the source when the running loss falls below this fraction of ln K."""
    loss_decay: float = 0.9
    """How much of the running loss one batch keeps."""
    exclude_last: float = 0.25
    """The last norm layers, this fraction of them, are left alone."""
    exclude: str | None = None
    """Leave the norm layers whose name matches this regular expression alone instead."""
    loss: Loss = "entropy"
    """What is minimised: the entropy, or that of an opinion that may withhold its belief (COME)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("rho", self.rho >= 0, "at least 0")
        require("loss_decay", 0 <= self.loss_decay < 1, "in [0, 1)")
        require("exclude_last", 0 <= self.exclude_last < 1, "in [0, 1)")
        require_pattern("exclude", self.exclude)


@register_method(
    MethodInfo(
        name="sar",
        summary="Minimises the entropy of reliable samples where it is flat, and recovers from collapse.",
        paper="Niu et al. 2023",
        adapts="scale and shift of norm layers but the last ones",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per reliable sample",
        passes="2F 2B",
    ),
    SarConfig,
)
class Sar(Adapter):
    """One sharpness-aware step per batch down the entropy of the reliable samples."""

    config: SarConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-2, "reset_below": 0.05 / math.log(10)},
        "cifar100": {"lr": 2e-3, "reset_below": 0.05 / math.log(100)},
        "imagenet": {
            "lr": 2.5e-4,
            "reset_below": 0.2 / math.log(1000),
            "exclude": r"layer4|blocks\.(9|10|11)\b|(^|\.)norm$",
        },
        "cifar10-small": {"lr": 0.1, "reset_below": 0.05 / math.log(10)},
    }
    # Of what was tried on the extra corruptions, this is surest to do no harm (``offsupport reproduce tuning-sc``).
    sparse_defaults: ClassVar[dict[str, Any]] = {"ratio_l": 0.1}

    def __init__(
        self, model: nn.Module, config: SarConfig, options: Options, source: SourceStats | None = None
    ) -> None:
        if config.lr is None:
            # Plain SGD moves scales and shifts by little: with batch norm 1e-3, published for transformers, changes
            # next to no prediction.
            batch_norm = any(isinstance(layer, _BatchNorm) for layer in model.modules())
            config = dataclasses.replace(config, lr=0.03 if batch_norm else 1e-3)
        super().__init__(model, config, options, source)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of the norm layers that are not excluded."""
        # The last layers are the sensitive ones (Niu et al., 2023): a step there is what breaks a model first.
        return affine_parameters(self.model, self.config.exclude, self.config.exclude_last)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the running loss."""
        return {"loss": torch.empty(0)}

    def step(self, x: Tensor) -> Tensor:
        """Predict, and descend the entropy of the reliable samples as seen from its worst point nearby."""
        logits = self.network(x)
        e0 = self.config.margin * math.log(logits.shape[1])
        entropies = uncertainty(as_rows(logits), self.config.loss)
        reliable = entropies.detach() < e0
        if not reliable.any():
            # No step of zero gradient either: momentum would still move the weights.
            self.count("empty_selection")
            return logits
        ascent = self.gradients(entropies[reliable].mean())
        with perturbed(list(self.parameters_adapted.values()), ascent, self.config.rho):
            nearby = uncertainty(as_rows(self.network(x)), self.config.loss)[reliable]
            still = nearby.detach() < e0
            if not still.any():
                self.count("empty_selection")
                return logits
            loss = nearby[still].mean()
            descent = self.gradients(loss)
        self.apply_gradients(descent)
        self._follow(loss, logits.shape[1])
        return logits

    def _follow(self, loss: Tensor, classes: int) -> None:
        """Keep the running loss, and go back to the source when it says that everything became certain."""
        past, decay = self.memory["loss"], self.config.loss_decay
        self.memory["loss"] = loss if past.numel() == 0 else decay * past + (1 - decay) * loss
        if float(self.memory["loss"]) < self.config.reset_below * math.log(classes):
            self.recover()


# Sharpness-aware minimisation (Foret et al., 2021): the gradient is taken where the loss is worst nearby.


@contextlib.contextmanager
def perturbed(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float) -> Iterator[None]:
    """Move ``parameters`` by rho * g / ||g|| inside the block, and back to the very same bits after it."""
    norm = torch.nn.utils.get_total_norm(list(gradients))
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient * (rho / (norm + 1e-12)))
    try:
        yield
    finally:
        with torch.no_grad():
            # Copied, not subtracted: what is added and taken away again is rounded twice.
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
