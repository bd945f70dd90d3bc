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
        passes="2F 1B",
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
        count, sums, dtype = 0, list[Tensor](), torch.get_default_dtype()
        for x in batches:
            with self._watched() as seen:
                self.network(x)
            found = [torch.stack([z.double().sum(0), z.double().square().sum(0)]) for _, z in seen]
            if sums and [each.shape for each in found] != [each.shape for each in sums]:
                raise InputError("The source images have different sizes.", "Resize them to one size.")
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
            count, dtype = count + len(x), seen[0][1].dtype
        if count < 2:
            raise InputError("Variances of activations need at least two source images.", "Give more of them.")
        moments = {"count": torch.tensor(float(count))}
        for i, (first, second) in enumerate(sums):
            mean = first / count
            variance = (second / count - mean.square()).clamp(min=0) * count / (count - 1)
            moments |= {f"mean/{i}": mean.to(dtype), f"var/{i}": variance.to(dtype)}
        return moments

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[tuple[nn.Module, Tensor]]]:
        """Collect norm layers in the order they are called, and what they give, (N, ...)."""
        seen: list[tuple[nn.Module, Tensor]] = []
        keep = lambda layer, _, out: seen.append((layer, single(out)))  # noqa: E731 (a hook of one line)
        handles = [layer.register_forward_hook(keep) for _, layer in norm_layers(self.model)]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _distance(self, seen: list[tuple[nn.Module, Tensor]]) -> Tensor:
        terms = []
        for i, (layer, z) in enumerate(seen):
            rows = by_channel(layer, z) if self.config.maps == "channel" else z
            var, mean = torch.var_mean(rows, 0)
            home_mean, home_var = self._home(i, layer, z)
            if home_mean.shape != mean.shape:
                raise InputError(
                    f"Norm layer {i} gives {tuple(mean.shape)} values, and the source gave {tuple(home_mean.shape)}.",
                    "Give images of the size of the source's, or pass maps='channel', which takes any size.",
                )
            terms.append((mean - home_mean).abs().mean() + (var - home_var).abs().mean())
        return 0.5 * torch.stack(terms).sum()

    def _home(self, i: int, layer: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the source behind a norm layer, of positions or of channels."""
        assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
        mean, var = (self.source.tensors[f"{name}/{i}"].to(like) for name in ("mean", "var"))
        if self.config.maps == "position":
            return mean, var
        # The values of a channel are those of its positions: within each, and between them.
        images = float(self.source.tensors["count"])
        means, within = by_channel(layer, mean[None]), by_channel(layer, var[None]) * (images - 1) / images
        values = images * len(means)
        return means.mean(0), (within.mean(0) + means.var(0, correction=0)) * values / (values - 1)


def by_channel(layer: nn.Module, z: Tensor) -> Tensor:
    """Return what a norm layer gives, (N, ...), as (N * positions, C)."""
    return channels_second(layer, z).flatten(2).transpose(1, 2).flatten(0, 1)
