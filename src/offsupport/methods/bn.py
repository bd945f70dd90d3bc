"""Batch-norm adaptation: normalise by the statistics of the batch instead of the training set's."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import BatchConfig, MethodInfo
from offsupport.engine.registry import register_method


@dataclasses.dataclass(frozen=True, kw_only=True)
class BnConfig(BatchConfig):
    """Hyper-parameters of batch-norm adaptation."""

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: with the statistics of the source."""
        return self.statistics == "source"

    @property
    def bounded(self) -> bool:
        """Whether one image changes little of what follows: nothing but the statistics changes here."""
        return self.statistics in ("source", "minimal")


@register_method(
    MethodInfo(
        name="bn",
        summary="Normalises by the statistics of the batch.",
        paper="Nado et al. 2020; Schneider et al. 2020",
        adapts="batch-norm statistics",
        scored="no step",
        norm="batch",
        source="none",
        single="batch and source statistics blended",
        passes="1F",
    ),
    BnConfig,
)
class BatchNormStatistics(Adapter):
    """Predicts with batch statistics; below ``min_batch``, with a blend of batch and source statistics."""

    counts_itself: ClassVar[bool] = True

    def step(self, x: Tensor) -> Tensor:
        """Predict: batch norm uses the statistics asked for already, as ``Adapter.choose_statistics`` says."""
        return self.serve(x)
