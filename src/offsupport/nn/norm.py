"""Normalisation layers: batch norm whose statistics are a policy, and where the affine parameters are."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Statistics = Literal["source", "batch", "blend", "ema"]

NORM_TYPES = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _InstanceNorm)


@dataclasses.dataclass
class StatisticsPolicy:
    """Which statistics the batch-norm layers of one model normalise by; all its layers share one policy.

    ``source`` uses the running statistics, ``batch`` those of the batch alone, ``blend`` their mean with the running
    statistics counted as ``prior`` extra samples (Schneider et al., 2020), for batches too small to stand alone.
    ``ema`` uses those of the batch and lets the running statistics follow with the momentum of the layer, as training
    does; it is meant for a teacher, whose buffers are its own.
    """

    statistics: Statistics = "source"
    prior: float = 16.0
    layers: int = 0

    @contextlib.contextmanager
    def using(self, statistics: Statistics, prior: float | None = None) -> Iterator[None]:
        """Normalise by ``statistics`` inside the block, and where given, by another ``prior``."""
        before = self.statistics, self.prior
        self.statistics, self.prior = statistics, self.prior if prior is None else prior
        try:
            yield
        finally:
            self.statistics, self.prior = before


class AdaptiveStatistics:
    """Mixed into a batch-norm class: a policy says which statistics normalise, whatever the train/eval flag says.

    No policy but ``ema`` changes a buffer, and the state dict keeps its keys.
    """

    policy: StatisticsPolicy

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` by the statistics of the policy."""
        layer: Any = self
        statistics = "batch" if layer.running_mean is None else self.policy.statistics
        if statistics == "source":
            return self._with(x, training=False)
        if statistics == "blend":
            mean, var = self._blend(x)
            return self._with(x, training=False, running_mean=mean, running_var=var)
        if x.numel() > x.shape[1]:
            return self._with(x, training=True, track_running_stats=statistics == "ema")
        # One value per channel is its own mean: torch refuses it, the formula gives the shift, whatever the value is.
        alone = x.detach()
        mean = alone.flatten()
        return self._with(alone, training=False, running_mean=mean, running_var=torch.zeros_like(mean))

    def _with(self, x: Tensor, **attributes: Any) -> Tensor:
        """Run the layer's own forward with some attributes replaced for the time of the call."""
        layer: Any = self
        before = {name: getattr(layer, name) for name in attributes}
        try:
            for name, value in attributes.items():
                setattr(layer, name, value)
            out: Tensor = super().forward(x)  # type: ignore[misc]
            return out
        finally:
            for name, value in before.items():
                setattr(layer, name, value)

    @torch.no_grad()
    def _blend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        layer: Any = self
        axes = [axis for axis in range(x.dim()) if axis != 1]
        var, mean = torch.var_mean(x, axes, correction=0)
        weight = len(x) / (len(x) + self.policy.prior)
        return layer.running_mean.lerp(mean, weight), layer.running_var.lerp(var, weight)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = next(cls for cls in type(self).__mro__[1:] if cls is not AdaptiveStatistics)
        return _rebuild, (plain,), self.__dict__


_ADAPTIVE: dict[type, Any] = {}


def _adaptive(cls: type) -> Any:
    if cls not in _ADAPTIVE:
        _ADAPTIVE[cls] = type(f"Adaptive{cls.__name__}", (AdaptiveStatistics, cls), {})
    return _ADAPTIVE[cls]


def _rebuild(cls: type) -> Any:
    return _adaptive(cls).__new__(_adaptive(cls))


def adopt_batch_norm(model: nn.Module) -> StatisticsPolicy:
    """Put every batch-norm layer of ``model`` under one statistics policy, in place, and return it.

    The class of a layer is extended rather than the layer replaced, so that subclasses with a forward of their own
    (batch norm fused with an activation, say), hooks and shared layers keep working.
    """
    policy = StatisticsPolicy()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            if not isinstance(module, AdaptiveStatistics):
                module.__class__ = _adaptive(type(module))
            module.policy = policy  # type: ignore[assignment]
            policy.layers += 1
    return policy


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of every normalisation layer, in the order of definition."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, NORM_TYPES))


@contextlib.contextmanager
def capture_means(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the mean input of every normalisation layer inside the block, per image and channel, (N, C) each.

    Channels come second, but last where a layer normalises the last dimension alone, as over tokens (N, tokens, C).
    """
    means: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        last = isinstance(layer, (nn.LayerNorm, nn.RMSNorm)) and len(layer.normalized_shape) == 1
        x = inputs[0].movedim(-1, 1) if last else inputs[0]
        means.append(x.flatten(2).mean(2) if x.dim() > 2 else x)

    handles = [layer.register_forward_pre_hook(keep) for _, layer in norm_layers(model)]
    try:
        yield means
    finally:
        for handle in handles:
            handle.remove()


def batch_norm_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of every batch-norm layer by their names in ``model``."""
    found: dict[str, Tensor] = {}
    for name, module in norm_layers(model):
        if isinstance(module, _BatchNorm):
            prefix = f"{name}." if name else ""
            found |= {prefix + key: buffer for key, buffer in module.named_buffers(recurse=False)}
    return found


def affine_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the scale and shift of every normalisation layer by their names in ``model``."""
    found: dict[str, nn.Parameter] = {}
    for name, module in norm_layers(model):
        prefix = f"{name}." if name else ""
        found |= {prefix + key: parameter for key, parameter in module.named_parameters(recurse=False)}
    return found
