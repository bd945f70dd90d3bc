"""NEO: features of the stream are centred before they are classified, one forward pass and no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.engine.adapter import Adapter, require_whole
from offsupport.engine.config import MethodConfig, MethodInfo, require
from offsupport.engine.guard import shows
from offsupport.engine.registry import register_method
from offsupport.nn.inspect import capture_input, single
from offsupport.nn.norm import Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeoConfig(MethodConfig):
    """Hyper-parameters of NEO."""

    mean: Literal["all", "recent"] = "all"
    """Centre by the mean of all features seen, or by one that forgets."""
    rate: float = 0.1
    """Of ``recent``, how far the mean moves towards that of each batch."""
    prior: float = 16.0
    """Where the features should be counts as this many images in the mean, so that the first ones are not its all."""

    def __post_init__(self) -> None:
        require("rate", 0 < self.rate <= 1, "in (0, 1]")
        require("prior", self.prior >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="neo",
        summary="Moves the mean of the stream's features to where the source's was; one forward pass.",
        paper="Murphy et al. 2026; Niu et al. 2024 (FOA-shift)",
        adapts="the mean of the features",
        scored="after it is counted",
        norm="none",
        source="optional",
        needs="a linear classifier",
        single="as any other batch, the source counted as prior images",
        passes="1F",
    ),
    NeoConfig,
)
class Neo(Adapter):
    """Adds to the features what their mean lacks to the source's, or to zero where that is not known."""

    config: NeoConfig
    statistics: ClassVar[Statistics] = "source"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"mean": "all", "prior": 0.0} for name in ("cifar10", "cifar100", "imagenet")
    }
    source_shapes: ClassVar[dict[str, str]] = {"feature_mean": "D"}

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember how far the mean of the features is from where it should be, and how many that rests on."""
        name, head = self.head()
        if not isinstance(head, nn.Linear):
            raise ModelError(
                f"The method 'neo' shifts the inputs of a linear classifier, and {name!r} is {type(head).__name__}.",
                'Name the nn.Linear that gives the logits: head="name of the module".',
            )
        return {"shift": single(torch.zeros_like(head.weight[0])).detach(), "count": torch.zeros(())}

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Count the batch, then predict it with its features moved."""
        with capture_input(self.classifier) as features:
            logits = require_whole(self.network(x), self.info.name)
        self._follow(features[0].flatten(1)[shows(x)])
        return logits + self._correction()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Predict with the features moved by what is known."""
        return require_whole(self.network(x), self.info.name) + self._correction()

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the mean of the source's features."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        dtype = torch.get_default_dtype()
        for z, _ in self.source_features(batches):
            total, count, dtype = total + z.double().sum(0), count + len(z), z.dtype
        return {"feature_mean": (total / max(count, 1)).to(dtype)}

    def _follow(self, z: Tensor) -> None:
        z = z[z.isfinite().all(1)]
        if not len(z):
            return
        gap = z.mean(0) - self._home(z)
        shift, count = self.memory["shift"], self.memory["count"]
        # The source stands in the mean as images that lie where they should.
        share = len(z) / (float(count) + self.config.prior + len(z)) if self.config.mean == "all" else self.config.rate
        self.memory.update({"shift": shift + share * (gap - shift), "count": count + len(z)})

    def _home(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like[0]) if self.source is None else self.source.tensors["feature_mean"].to(like)

    def _correction(self) -> Tensor:
        """Return what moving the features does to the logits, (K,): the classifier is linear."""
        assert isinstance(self.classifier, nn.Linear)  # noqa: S101 (others are refused when wrapping)
        return -(single(self.classifier.weight) @ self.memory["shift"])
