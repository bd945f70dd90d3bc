"""ActMAD: the outputs of norm layers get back the means and variances they had on the source, at every position."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.core.errors import InputError, ModelError
from offsupport.engine.adapter import Adapter, require_finite_loss
from offsupport.engine.config import MethodInfo, StepConfig
from offsupport.engine.guard import channels_second
from offsupport.engine.registry import register_method
from offsupport.nn.inspect import single
from offsupport.nn.norm import Statistics, norm_layers
from offsupport.nn.projected import encoder_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActmadConfig(StepConfig):
    """Hyper-parameters of ActMAD."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with any norm layers, as variances need a batch."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    maps: Literal["position", "channel"] = "position"
    """Moments of every position, which fixes the size of images, or of every channel, for any size."""
    score: Literal["before", "after"] = "after"
    """Whether the returned prediction is made before or after the step (one more forward)."""


@register_method(
    MethodInfo(
        name="actmad",
        summary="Aligns mean and variance of every activation of norm layers with those of the source.",
        paper="Mirza et al. 2023",
        adapts="every layer but the classifier",
        scored="after the step, or before with score='before'",
        norm="none",
        source="required",
        single="no step (variances need a batch); source statistics",
    ),
    ActmadConfig,
)
class Actmad(Adapter):
    """One step per batch down the absolute differences of moments; batch norm keeps the source's statistics."""

    config: ActmadConfig
    statistics: ClassVar[Statistics] = "source"
    small_batch_without: ClassVar[int] = 16
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-2, "optimizer": "sgd"},
        "cifar100": {"lr": 1e-3, "optimizer": "sgd"},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd"},
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter but those of the classifier and of a projection head."""
        if not any(True for _ in norm_layers(self.model)):
            raise ModelError(
                "The method 'actmad' aligns the outputs of norm layers, and this model has none.",
                "Use 'ttac', which aligns the features, or 'shot'.",
            )
        return encoder_parameters(self.model, self.classifier)

    def step(self, x: Tensor) -> Tensor:
        """Run the batch, descend the distance of its moments from the source's, and predict."""
        with self._watched() as seen:
            logits = self.network(x)
        # The loss does not see them, but a network that gives none is nothing to learn from.
        require_finite_loss(logits)
        self.descend(self._distance(seen))
        return self.predict(x) if self.config.score == "after" else logits

    @torch.no_grad()
    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return mean and unbiased variance of each activation over all source images together."""
        counts, sums, dtype = list[int](), list[Tensor](), torch.get_default_dtype()
        for x in batches:
            with self._watched() as seen:
                self.network(x)
            found = [torch.stack([z.double().sum(0), z.double().square().sum(0)]) for z in map(self._rows, seen)]
            if sums and [each.shape for each in found] != [each.shape for each in sums]:
                raise InputError(
                    "The source images have different sizes.",
                    "Resize them as those to be predicted, or maps='channel'.",
                )
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
            counts = [a + len(z) for a, z in zip(counts or [0] * len(seen), map(self._rows, seen), strict=True)]
            dtype = seen[0].dtype if seen else dtype
        if min(counts, default=0) < 2:
            raise InputError("Variances of activations need at least two source images.", "Give more of them.")
        means = [each[0] / count for each, count in zip(sums, counts, strict=True)]
        squares = [each[1] / count for each, count in zip(sums, counts, strict=True)]
        variances = [(s - m.square()) * n / (n - 1) for s, m, n in zip(squares, means, counts, strict=True)]
        names = {f"mean/{i}": mean for i, mean in enumerate(means)}
        names |= {f"var/{i}": var.clamp(min=0) for i, var in enumerate(variances)}
        return {name: tensor.to(dtype) for name, tensor in names.items()}

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[Tensor]]:
        """Collect the outputs of norm layers in the order they are called, (N, ...); for channels they come second."""
        seen: list[Tensor] = []

        def keep(layer: nn.Module, _: Any, out: Tensor) -> None:
            seen.append(single(out) if self.config.maps == "position" else channels_second(layer, single(out)))

        handles = [layer.register_forward_hook(keep) for _, layer in norm_layers(self.model)]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _rows(self, z: Tensor) -> Tensor:
        """Return what moments are taken over, first: images, or for channels images and positions."""
        return z if self.config.maps == "position" else z.flatten(2).transpose(1, 2).flatten(0, 1)

    def _distance(self, seen: list[Tensor]) -> Tensor:
        assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
        terms = []
        for i, z in enumerate(seen):
            var, mean = torch.var_mean(self._rows(z), 0)
            home = [self.source.tensors[f"{name}/{i}"].to(z) for name in ("mean", "var")]
            if home[0].shape != mean.shape:
                raise InputError(
                    f"Norm layer {i} gives {tuple(mean.shape)} values, and the source gave {tuple(home[0].shape)}.",
                    "Give images of the size of the source's, or make statistics with maps='channel' for any size.",
                )
            terms.append((mean - home[0]).abs().mean() + (var - home[1]).abs().mean())
        return 0.5 * torch.stack(terms).sum()
