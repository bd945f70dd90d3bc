"""Batch-norm adaptation: normalise by the statistics of the batch instead of the training set's."""

from __future__ import annotations

from torch import Tensor

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import BatchConfig, MethodInfo
from offsupport.engine.registry import register_method


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
    ),
    BatchConfig,
)
class BatchNormStatistics(Adapter):
    """Predicts with batch statistics; below ``min_batch``, with a blend of batch and source statistics."""

    def step(self, x: Tensor) -> Tensor:
        """Predict: batch norm uses the statistics of the batch already, as ``Adapter.statistics`` says."""
        return self.predict(x)
