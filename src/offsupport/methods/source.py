"""The model as it came: what every method is measured against."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodConfig, MethodInfo
from offsupport.engine.registry import register
from offsupport.nn.norm import Statistics


@register(
    MethodInfo(
        name="source",
        summary="Predicts with the model as it came.",
        paper="-",
        adapts="nothing",
        scored="no step",
        norm="none",
        source="none",
        single="the same as in any batch",
    ),
    MethodConfig,
)
class Source(Adapter):
    """Predicts with the source weights and the source statistics."""

    statistics: ClassVar[Statistics] = "source"

    def step(self, x: Tensor) -> Tensor:
        """Predict."""
        return self.predict(x)
