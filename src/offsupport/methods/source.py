"""The model as it came: what every method is measured against."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodConfig, MethodInfo
from offsupport.engine.registry import register_method
from offsupport.nn.norm import Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig(MethodConfig):
    """The model as it came has no hyper-parameters."""

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: always."""
        return True


@register_method(
    MethodInfo(
        name="source",
        summary="Predicts with the model as it came.",
        paper="-",
        adapts="nothing",
        scored="no step",
        norm="none",
        source="none",
        single="the same as in any batch",
        passes="1F",
        bounded=True,
    ),
    SourceConfig,
)
class Source(Adapter):
    """Predicts with the source weights and the source statistics."""

    statistics: ClassVar[Statistics] = "source"

    def step(self, x: Tensor) -> Tensor:
        """Predict."""
        return self.predict(x)
