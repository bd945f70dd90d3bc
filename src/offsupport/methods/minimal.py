"""Minimal change: the statistics of batch norm follow the stream as far as the evidence goes, and nothing else does.

The rule is that of :mod:`offsupport.engine.minimal_statistics`, which any method may stand on; here it stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo
from offsupport.engine.minimal_statistics import MOMENT_SHAPES, MinimalConfig, MinimalStatistics, Reference
from offsupport.engine.registry import register_method


@register_method(
    MethodInfo(
        name="minimal",
        summary="Moves batch-norm statistics by the least change that explains the stream.",
        paper="ours, after Kong et al. 2024",
        adapts="batch-norm statistics",
        scored="before it is counted",
        norm="batch",
        source="optional",
        single="as any other batch",
        passes="1F",
        bounded=True,
    ),
    MinimalConfig,
)
class Minimal(Adapter):
    """Follows the moments of the stream; no parameter changes."""

    config: MinimalConfig
    statistics_policy: MinimalStatistics
    any_order: ClassVar[bool] = True
    counts_itself: ClassVar[bool] = True
    source_shapes: ClassVar[dict[str, str]] = MOMENT_SHAPES

    def choose_statistics(self) -> MinimalStatistics:
        """Return the policy with the hyper-parameters of the method."""
        found = self.source.tensors if self.source else {}
        return MinimalStatistics(self.model, self.norm_statistics, found, self.config, self.options.trusted)

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return moments of clean images, how they vary within and between classes, and the shares of the classes."""
        return self.statistics_policy.describe(self.statistics_policy.gather(x, self.network) for x in batches)

    def step(self, x: Tensor) -> Tensor:
        """Predict group by group, each by what was known before it; what was predicted too early is predicted again."""
        return self.serve(x)

    @property
    def reference(self) -> Reference:
        """What clean images look like to every channel."""
        return self.statistics_policy.reference

    def shift(self) -> tuple[Tensor, Tensor | None]:
        """Return the shift of the moments that the classes seen do not explain, and the score of each layer."""
        return self.statistics_policy.shift()

    def moved(self, total: Tensor | None = None) -> Tensor:
        """Return the means and variances to normalise by, (2, channels), for what is known or another shift."""
        return self.statistics_policy.moved(total)
