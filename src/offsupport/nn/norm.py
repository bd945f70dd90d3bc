"""Normalisation layers: which statistics batch norm normalises by, and where scales and shifts are.

Test-time adaptation stands or falls with the statistics of batch norm. So all batch-norm layers of a model share one
:class:`NormStatistics`, and whoever runs the model says there which statistics count, for the time of a block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Statistics = Literal["source", "batch", "blend", "ema", "running", "moved"]
"""What batch norm may normalise by; :class:`NormStatistics` says what each word means."""

NORM_TYPES = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _InstanceNorm)
"""The layers whose scale and shift methods adapt."""


@dataclasses.dataclass
class NormStatistics:
    """Which statistics the batch-norm layers of one model normalise by; all its layers share this object.

    ``source`` uses the running statistics, ``batch`` those of the batch alone, ``blend`` their mean with the running
    statistics counted as ``prior`` extra samples (Schneider et al., 2020), for batches too small to stand alone.
    ``ema`` normalises by the batch as training does, and lets ``running`` follow it; ``running`` normalises by what has
    been followed. ``moved`` lets ``running`` follow the batch, too, and normalises by where it then is (Yuan et al.,
    2023): gradients go through the share that the batch has in it. The buffers of the layers stay as they came:
    ``running`` holds copies, from :meth:`follow` on.
    """

    kind: Statistics = "source"
    prior: float = 16.0
    momentum: float = 0.1
    layers: int = 0
    running: Tensor | None = None
    """Means and variances of all layers side by side, (2, channels); None where nothing is followed."""
    seen: dict[int, list[Tensor]] | None = None
    """Moments of the images of the pass under way, by where a layer's channels start; None where nobody asks."""

    @contextlib.contextmanager
    def using(self, statistics: Statistics, prior: float | None = None) -> Iterator[None]:
        """Normalise by ``statistics`` inside the block, and where given, by another ``prior``."""
        before = self.kind, self.prior
        self.kind, self.prior = statistics, self.prior if prior is None else prior
        try:
            yield
        finally:
            self.kind, self.prior = before

    def follow(self, model: nn.Module, momentum: float = 0.1) -> Tensor:
        """Start to follow the layers of ``model`` from their own statistics; return these, (2, channels)."""
        self.momentum = momentum
        found: list[Tensor] = []
        width = 0
        for layer in model.modules():
            if not isinstance(layer, AdaptiveStatistics) or layer.norm_statistics is not self:
                continue
            if layer.running_mean is not None:
                layer.place = slice(width, width := width + len(layer.running_mean))
                found.append(torch.stack([layer.running_mean, layer.running_var]))
        self.running = torch.cat(found, 1) if found else torch.empty(2, 0)
        return self.running

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[int, list[Tensor]]]:
        """Collect the first two moments of each image at each followed layer inside the block.

        :meth:`moments` puts them in order.
        """
        self.seen = {}
        try:
            yield self.seen
        finally:
            self.seen = None

    def moments(self, seen: dict[int, list[Tensor]], unseen: Tensor) -> Tensor:
        """Return what was recorded of N images, all layers side by side, (2, N, channels).

        ``unseen`` (2, channels) stands in for layers that did not run. A layer that ran twice has one mean of both.
        """
        images = next(iter(seen.values()))[0].shape[1]
        found = unseen[:, None].repeat(1, images, 1)
        for start, each in seen.items():
            found[..., start : start + each[0].shape[2]] = torch.stack(each).mean(0)
        return found

    @contextlib.contextmanager
    def counting_moves(self, model: nn.Module) -> Iterator[Tensor]:
        """Count inside the block how often ``ema`` moves the statistics of each channel, (channels,).

        A layer that the network calls twice moves twice in a pass.
        """
        assert self.running is not None  # noqa: S101 (there is nothing to count before `follow`)
        moves = torch.zeros_like(self.running[0])

        def count(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            # One value per channel has no variance to follow: such a pass moves nothing.
            moves[layer.place] += inputs[0].numel() > inputs[0].shape[1]

        layers = [each for each in model.modules() if isinstance(each, AdaptiveStatistics) and each.place is not None]
        handles = [layer.register_forward_pre_hook(count) for layer in layers]
        try:
            yield moves
        finally:
            for handle in handles:
                handle.remove()


class AdaptiveStatistics:
    """Mixed into a batch-norm class: it normalises as its ``norm_statistics`` say, whatever the train/eval flag says.

    No buffer is ever changed, and the state dict keeps its keys.
    """

    norm_statistics: NormStatistics
    plain: ClassVar[bool] = False
    """Whether the layer's own forward is that of torch's batch norm and nothing more."""
    place: slice | None = None
    """Where its channels stand in :attr:`NormStatistics.running`; None where they are not followed."""
    running_mean: Tensor | None
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` by the statistics in use."""
        statistics = "batch" if self.running_mean is None else self.norm_statistics.kind
        if self.norm_statistics.seen is not None and self.place is not None:
            self.norm_statistics.seen.setdefault(self.place.start, []).append(image_moments(x.detach()))
        if statistics == "source":
            return self._with(x, training=False)
        if statistics == "running":
            mean, var = self._known()
            return self._normalised(x, mean, var)
        if statistics == "ema" and self.norm_statistics.running is not None and x.numel() > x.shape[1]:
            mean, var = self._known()
            attributes = {
                "track_running_stats": True,
                "momentum": self.norm_statistics.momentum,
                "num_batches_tracked": None,
            }
            return self._with(x, training=True, running_mean=mean, running_var=var, **attributes)
        if statistics == "moved" and self.norm_statistics.running is not None:
            return self._moved(x)
        if statistics == "blend":
            mean, var = self._blend(x)
            return self._normalised(x, mean, var)
        if x.numel() > x.shape[1]:
            return self._with(x, training=True, track_running_stats=False)
        # One value per channel is its own mean: torch refuses it, the formula gives the shift, whatever the value is.
        # From a zero, because kernels that fold the mean into the shift would leave a rounding error of a large value.
        nothing = torch.zeros_like(x)
        mean = nothing.flatten()
        return self._with(nothing, training=False, running_mean=mean, running_var=torch.ones_like(mean))

    def _normalised(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise by a given mean and variance, as in evaluation."""
        layer: Any = self
        if type(layer).plain:  # what its forward comes to; replacing attributes takes longer than the rest of it
            layer._check_input_dim(x)
            return functional.batch_norm(x, mean, var, layer.weight, layer.bias, eps=layer.eps)
        return self._with(x, training=False, running_mean=mean, running_var=var)

    def _moved(self, x: Tensor) -> Tensor:
        """Let what is followed move towards the batch, and normalise by it, gradients through the batch's share."""
        layer, momentum = cast("Any", self), self.norm_statistics.momentum
        known_mean, known_var = self._known()
        given = x.to(known_var.dtype)  # under autocast x is in half
        var, mean = torch.var_mean(given, [axis for axis in range(x.dim()) if axis != 1], correction=0)
        mean, var = known_mean * (1 - momentum) + momentum * mean, known_var * (1 - momentum) + momentum * var
        with torch.no_grad():
            known_mean.copy_(mean)
            known_var.copy_(var)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        normal = (given - mean.view(shape)) * (var + layer.eps).rsqrt().view(shape)
        # torch's own kernel takes running statistics for constants. What it is given here is normalised already.
        none = torch.zeros_like(known_mean)
        return self._normalised(normal.to(x.dtype), none, none + (1 - layer.eps))

    def _with(self, x: Tensor, **attributes: Any) -> Tensor:
        """Run the layer's own forward with some attributes replaced for the time of the call."""
        layer: Any = self
        # Not a functional call to batch_norm: a subclass may do more in its forward (an activation, say).
        before = {name: getattr(layer, name) for name in attributes}
        try:
            for name, value in attributes.items():
                setattr(layer, name, value)
            out: Tensor = super().forward(x)  # type: ignore[misc]
            return out
        finally:
            for name, value in before.items():
                setattr(layer, name, value)

    def _known(self) -> tuple[Tensor, Tensor]:
        """Return the mean and variance that were followed so far, or else those the layer came with."""
        if self.norm_statistics.running is None:
            assert self.running_mean is not None  # noqa: S101 (layers without statistics use those of the batch)
            return self.running_mean, self.running_var
        mean, var = self.norm_statistics.running[:, self.place]
        return mean, var

    @torch.no_grad()
    def _blend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # To a gradient they are constants, as running statistics are in evaluation. Under autocast x is in half.
        x = x.to(self.running_var.dtype)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        var, mean = torch.var_mean(x, axes, correction=0)
        weight = len(x) / (len(x) + self.norm_statistics.prior)
        known_mean, known_var = self._known()
        return known_mean.lerp(mean, weight), known_var.lerp(var, weight)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # No module holds the extended class, so copies and pickles name the plain one it was made of.
        plain = next(cls for cls in type(self).__mro__[1:] if cls is not AdaptiveStatistics)
        return _rebuild, (plain,), self.__dict__


def image_moments(x: Tensor) -> Tensor:
    """Return the mean and the mean square of each image and channel over its positions, (2, N, C)."""
    if x.dim() == 2:
        return torch.stack([x, x.square()])
    axes = tuple(range(2, x.dim()))
    # A norm sums squares without a copy of x; var_mean takes three times as long with channels last.
    return torch.stack(
        [x.mean(axes), torch.linalg.vector_norm(x, 2, axes).square() * (x[0].numel() / x.shape[1]) ** -1]
    )


_ADAPTIVE: dict[type, Any] = {}


def _adaptive(cls: type[_BatchNorm]) -> Any:
    if cls not in _ADAPTIVE:
        plain = cls.forward is _BatchNorm.forward
        _ADAPTIVE[cls] = type(f"Adaptive{cls.__name__}", (AdaptiveStatistics, cls), {"plain": plain})
    return _ADAPTIVE[cls]


def _rebuild(cls: type) -> Any:
    return _adaptive(cls).__new__(_adaptive(cls))


def adopt_batch_norm(model: nn.Module) -> NormStatistics:
    """Let all batch-norm layers of ``model`` share one :class:`NormStatistics`, in place, and return it.

    The class of a layer is extended rather than the layer replaced, so that subclasses with a forward of their own
    (batch norm fused with an activation, say), hooks and shared layers keep working.
    """
    shared = NormStatistics()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            if not isinstance(module, AdaptiveStatistics):
                module.__class__ = _adaptive(type(module))
            module.norm_statistics = shared  # type: ignore[assignment]
            shared.layers += 1
    return shared


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


def affine_parameters(
    model: nn.Module, exclude: str | None = None, exclude_last: float = 0.0
) -> dict[str, nn.Parameter]:
    """Return the scale and shift of every normalisation layer by their names in ``model``.

    Args:
        model: Any network.
        exclude: Leave out the layers whose name this regular expression is found in.
        exclude_last: Where no expression is given, leave out this fraction of the layers, the last ones.
    """
    found: dict[str, nn.Parameter] = {}
    layers = list(norm_layers(model))
    if exclude is not None:
        layers = [(name, module) for name, module in layers if not re.search(exclude, name)]
    else:
        layers = layers[: len(layers) - int(exclude_last * len(layers))]
    for name, module in layers:
        prefix = f"{name}." if name else ""
        found |= {prefix + key: parameter for key, parameter in module.named_parameters(recurse=False)}
    return found
