"""Normalisation layers: which statistics batch norm normalises by, and where scales and shifts are.

Test-time adaptation stands or falls with the statistics of batch norm. So all batch-norm layers of a model share one
:class:`NormStatistics`, and whoever runs the model says there which statistics count, for the time of a block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Statistics = Literal["source", "batch", "blend", "ema", "running", "moved"]
"""What batch norm may normalise by; :class:`NormStatistics` says what each word means."""

NORM_TYPES = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _InstanceNorm)
"""The layers whose scale and shift methods adapt."""


Settle = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""From where a layer's channels stand and the moments (2, N, C) of what it is given to mean and variance, (C,)."""


class Seen:
    """What followed layers were given in one pass over N images: first and second moments of each over its positions.

    They are kept as each layer's kernel gives them, and put into shape for all layers at once: at this size an
    operation costs the same for one layer as for all.
    """

    def __init__(self) -> None:
        self.layers: dict[int, list[Raw]] = {}

    def __bool__(self) -> bool:
        return bool(self.layers)

    def add(self, start: int, x: Tensor) -> None:
        """Add what the layer was given whose channels start there."""
        self.layers.setdefault(start, []).append(raw_moments(x))

    def of(self, start: int) -> list[Tensor]:
        """Return the mean and the mean square of each image, (2, N, C), for each time that layer ran."""
        return [_shaped([raw]) for raw in self.layers.get(start, [])]

    def moments(self, unseen: Tensor) -> Tensor:
        """Return the mean and the mean square of each image over its positions, all layers side by side, (2, N, C).

        ``unseen`` (2, C) stands in for layers that did not run. A layer that ran twice has one mean of both.
        """
        rows = [self.layers[start] for start in sorted(self.layers)]
        first = [each[0] for each in rows]
        whole = sum(raw[0].shape[-1] for raw in first) == unseen.shape[1]
        if whole and all(len(each) == 1 for each in rows) and len({raw[2] == 0 for raw in first}) == 1:
            return _shaped(first)
        images = 1 if first[0][0].dim() == 1 else len(first[0][0])
        found = unseen[:, None].repeat(1, images, 1)
        for start in self.layers:
            moments = torch.stack(self.of(start)).mean(0)
            found[..., start : start + moments.shape[2]] = moments
        return found


Raw = tuple[Tensor, Tensor, int]
"""Sums over the positions and sums of squares, (N, C), and how many positions; or, of 0, mean and variance, (C,)."""


def raw_moments(x: Tensor) -> Raw:
    """Return what tells the moments of each image and channel of what a layer was given, in the quickest way."""
    if x.requires_grad:
        x = x.detach()
    if x.dtype == torch.float16 or x.dtype == torch.bfloat16:
        x = x.float()
    shape = x.shape
    if shape[0] == 1 and not x.is_contiguous() and x.is_cpu:
        # Batch norm's own: it is quick with channels last, and only there, and knows no images apart.
        return *torch.batch_norm_update_stats(x, None, None, 0.0), 0
    if len(shape) == 2:
        return x, x.square(), 1
    axes = (2, 3) if len(shape) == 4 else tuple(range(2, len(shape)))
    # A norm sums squares without a copy of x, but with channels last it takes ten times as long.
    squares = torch.linalg.vector_norm(x, 2, axes).square_() if x.is_contiguous() else x.square().sum(axes)
    return x.sum(axes), squares, math.prod(shape[2:])


PIECE = 1024
"""Positions that batch norm's own kernel adds up one after the other with channels last; more of them round more."""


def batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel, (C,), without a gradient.

    Within 2e-6 of ``torch.var_mean`` and as quick as batch norm: its own kernel takes a third of the time, and with
    channels last a twentieth. There it adds single numbers, so that it is given pieces, and their moments are joined.

    Example:
        >>> batch_moments(torch.tensor([[[[1.0, 3.0]]], [[[5.0, 7.0]]]]))
        (tensor([4.]), tensor([5.]))
    """
    x = x.detach()
    if not x.is_cpu or x.dim() < 3 or not x.numel():
        var, mean = torch.var_mean(x, [axis for axis in range(x.dim()) if axis != 1], correction=0)
        return mean, var
    if x.is_contiguous():
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    pieces = torch.split(x, max(1, PIECE * x.shape[1] * len(x) // x.numel()))
    found = [torch.batch_norm_update_stats(piece, None, None, 0.0) for piece in pieces]
    means, variances = (torch.stack(part) for part in zip(*found, strict=True))
    shares = torch.tensor([len(piece) / len(x) for piece in pieces]).to(means)[:, None]
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square())).sum(0)


def _shaped(raw: list[Raw]) -> Tensor:
    """Return the mean and the mean square of each image, (2, N, C), of layers side by side, all given in one way."""
    first, second = [each[0] for each in raw], [each[1] for each in raw]
    if raw[0][2] == 0:
        found = torch.cat(first + second).view(2, 1, -1)
        found[1].addcmul_(found[0], found[0])
        return found
    found = torch.cat(first + second, 1).view(len(first[0]), 2, -1).transpose(0, 1)
    return found.mul_(_inverse(tuple((each.shape[1], count) for each, _, count in raw), found.device, found.dtype))


class Company:
    """Past images that new ones are normalised together with; their moments stand in for them.

    Args:
        past: The moments of the past images at all layers, (2, n, channels); there may be none.
        images: How many new ones a pass brings. Passes over other numbers, as of a selection, are not listened to.
    """

    def __init__(self, past: Tensor, images: int) -> None:
        self.past, self.images = past, images
        self.sums = past.sum(1)
        self.found: dict[int, list[Tensor]] = {}
        self.listens = False

    def begin(self, images: int) -> None:
        """Listen to a pass over so many images; the last one that is listened to counts."""
        self.listens = images == self.images
        if self.listens:
            self.found = {}

    @property
    def size(self) -> int:
        """How many images there are together."""
        return self.past.shape[1] + self.images

    def join(self, place: slice, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Note what a layer is given; return mean and variance of past and new images, or None where none are past."""
        moments = self._by_image(_shaped([raw_moments(x)]))
        self.found.setdefault(place.start, []).append(moments)
        if not self.past.shape[1]:
            return None
        mean, square = (self.sums[:, place] + moments.sum(1)) / self.size
        return mean, (square - mean.square()).clamp(min=0)

    def _by_image(self, moments: Tensor) -> Tensor:
        """Return moments of images where a network cuts them into parts, (2, N, C)."""
        parts = moments.shape[1] / self.images
        if parts == 1:
            return moments
        if parts.is_integer():
            return moments.view(2, self.images, int(parts), -1).mean(2)
        return moments.mean(1, keepdim=True).expand(-1, self.images, -1)  # whose they are is not known

    def moments(self, channels: int) -> Tensor | None:
        """Return the moments of the new images, (2, N, channels); None where no layer was asked, or one was not finite.

        A layer that did not run has zeros, one that ran twice the mean of both.
        """
        if not self.found:
            return None
        layers = {start: each[0] if len(each) == 1 else torch.stack(each).mean(0) for start, each in self.found.items()}
        found = next(iter(layers.values())).new_zeros(2, self.images, channels)
        for start, moments in layers.items():
            found[..., start : start + moments.shape[2]] = moments
        return found if math.isfinite(float(found.sum())) else None


@functools.lru_cache(maxsize=64)
def _inverse(layers: tuple[tuple[int, int], ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return what a position counts in each channel, from the width and the positions of each layer."""
    widths, positions = zip(*layers, strict=True)
    return (1 / torch.tensor(positions, dtype=dtype)).repeat_interleave(torch.tensor(widths)).to(device)


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
    widths: list[int] = dataclasses.field(default_factory=list)
    """How many channels each followed layer has, in the order they stand in."""
    seen: Seen | None = None
    """What the layers were given in the pass under way; None where nobody asks."""
    channels: int = 0
    """Of all layers together."""
    settle: Settle | None = None
    """Tells each followed layer what to normalise by from what it is given; None where that is known before."""
    company: Company | None = None
    """Past images that those of a pass are normalised together with; None where they stand alone."""
    _parts: tuple[Tensor, dict[int, tuple[Tensor, Tensor]]] | None = None
    """The followed tensor cut into layers, by where they start: cutting takes longer than a small layer."""

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
        self.widths = [each.shape[1] for each in found]
        self.running = torch.cat(found, 1) if found else torch.empty(2, 0)
        return self.running

    def part(self, start: int) -> tuple[Tensor, Tensor]:
        """Return the mean and variance that are followed for the layer whose channels start there."""
        assert self.running is not None  # noqa: S101 (there are no parts before `follow`)
        if self._parts is None or self._parts[0] is not self.running:
            cut = zip(*(torch.split(each, self.widths) for each in self.running), strict=True)
            starts = itertools.accumulate(self.widths, initial=0)
            self._parts = self.running, dict(zip(starts, cut, strict=False))
        return self._parts[1][start]

    @contextlib.contextmanager
    def recording(self) -> Iterator[Seen]:
        """Collect the first two moments of each image at each followed layer inside the block."""
        self.seen = Seen()
        try:
            yield self.seen
        finally:
            self.seen = None

    @contextlib.contextmanager
    def settling(self, settle: Settle) -> Iterator[None]:
        """Let each followed layer normalise inside the block by what ``settle`` makes of what it is given."""
        self.settle = settle
        try:
            yield
        finally:
            self.settle = None

    @contextlib.contextmanager
    def together(self, past: Tensor, images: int) -> Iterator[Company]:
        """Normalise new images together with past ones inside the block, by the moments of those, (2, n, channels)."""
        self.company = Company(past, images)
        try:
            yield self.company
        finally:
            self.company = None

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
    span: slice
    """Where they stand among those of all layers, followed or not."""
    running_mean: Tensor | None
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` by the statistics in use."""
        shared = self.norm_statistics
        statistics = "batch" if self.running_mean is None else shared.kind
        if shared.seen is not None and self.place is not None:
            shared.seen.add(self.place.start, x)
        company = shared.company
        joined = company.join(self.span, x) if company is not None and company.listens else None
        if statistics == "source":
            return self._normalised(x, self.running_mean, self.running_var)
        if statistics == "running":
            return self._normalised(x, *(self._known() if shared.settle is None else self._settled(x, shared.settle)))
        if statistics == "ema" and shared.running is not None and x.numel() > x.shape[1]:
            mean, var = self._known()
            attributes = {"track_running_stats": True, "momentum": shared.momentum, "num_batches_tracked": None}
            return self._with(x, training=True, running_mean=mean, running_var=var, **attributes)
        if statistics == "moved" and self.norm_statistics.running is not None:
            return self._moved(x)
        if statistics == "blend":
            return self._normalised(x, *self._blend(x, joined))
        return self._by_batch(x) if joined is None else self._normalised(x, *joined)

    def _settled(self, x: Tensor, settle: Settle) -> tuple[Tensor, Tensor]:
        """Return the mean and variance that follow from ``x``, given how the layers before have settled."""
        assert self.place is not None  # noqa: S101 (what is followed has a place)
        return settle(self.place, _shaped([raw_moments(x)]))

    def _by_batch(self, x: Tensor) -> Tensor:
        """Normalise by the mean and variance of ``x`` itself."""
        if x.numel() > x.shape[1]:
            return self._with(x, training=True, track_running_stats=False)
        # One value per channel is its own mean: torch refuses it, the formula gives the shift, whatever the value is.
        # From a zero, because kernels that fold the mean into the shift would leave a rounding error of a large value.
        nothing = torch.zeros_like(x)
        mean = nothing.flatten()
        return self._with(nothing, training=False, running_mean=mean, running_var=torch.ones_like(mean))

    def _normalised(self, x: Tensor, mean: Tensor | None, var: Tensor | None) -> Tensor:
        """Normalise by a given mean and variance, as in evaluation."""
        layer: Any = self
        if type(layer).plain:  # what its forward comes to; replacing attributes takes longer than the rest of it
            layer._check_input_dim(x)
            own, cudnn = layer._parameters, torch.backends.cudnn.enabled
            return torch.batch_norm(x, own["weight"], own["bias"], mean, var, False, 0.0, layer.eps, cudnn)
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
        assert self.place is not None  # noqa: S101 (what is followed has a place)
        return self.norm_statistics.part(self.place.start)

    @torch.no_grad()
    def _blend(self, x: Tensor, joined: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        known_mean, known_var = self._known()
        if joined is None:
            # To a gradient they are constants, as running statistics are in evaluation. Under autocast x is in half.
            mean, var = batch_moments(x.to(self.running_var.dtype))
            images = len(x)
        else:
            assert self.norm_statistics.company is not None  # noqa: S101 (who was joined)
            (mean, var), images = joined, self.norm_statistics.company.size
        weight = images / (images + self.norm_statistics.prior)
        return known_mean.lerp(mean, weight), known_var.lerp(var, weight)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # No module holds the extended class, so copies and pickles name the plain one it was made of.
        return _rebuild, (plain_class(self),), self.__dict__


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
            width = shared.channels + module.num_features
            module.span = slice(shared.channels, width)  # type: ignore[assignment]
            shared.channels = width
            shared.layers += 1
    return shared


def protect_group_norm(model: nn.Module) -> None:
    """Let group norm be differentiated whatever the layout of its input, in place.

    Where the input has its channels last and needs no gradient itself, as below frozen layers, the backward pass of
    torch 2.13 on a CPU reads a gradient that is not there, and the process dies.
    """
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm) and _channels_second not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_channels_second)


def _channels_second(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    x = given[0]
    return (x.contiguous(), *given[1:]) if torch.is_grad_enabled() and not x.requires_grad else None


@torch.no_grad()
def release_batch_norm(model: nn.Module, moments: Mapping[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """Make the norm layers of a model plain ones again, in place, and return it.

    Args:
        model: A model whose layers were adopted.
        moments: Mean and variance that layers keep, by name; the others keep those they came with.
    """
    for name, layer in model.named_modules():
        for number in [number for number, hook in layer._forward_pre_hooks.items() if hook is _channels_second]:
            del layer._forward_pre_hooks[number]
        if isinstance(layer, AdaptiveStatistics):
            for own in ("norm_statistics", "span", "place"):
                layer.__dict__.pop(own, None)
            layer.__class__ = plain_class(layer)
            if name in moments:
                layer.running_mean, layer.running_var = (moment.clone() for moment in moments[name])
                layer.track_running_stats, layer.training = True, False  # type: ignore[attr-defined]
    return model


def plain_class(layer: nn.Module | AdaptiveStatistics) -> Any:
    """Return the class that a layer had before it was adopted."""
    return next(cls for cls in type(layer).__mro__[1:] if cls is not AdaptiveStatistics)


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of every normalisation layer, in the order of definition."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, NORM_TYPES))


@contextlib.contextmanager
def capture_means(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the mean input of every normalisation layer inside the block, per image and channel, (N, C) each.

    Channels come second, but last where a layer normalises the last dimension alone, as over tokens (N, tokens, C).
    """
    with _captured(model, lambda x: x.flatten(2).mean(2) if x.dim() > 2 else x) as means:
        yield means


@contextlib.contextmanager
def capture_moments(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect mean and deviation over positions in the same way, (N, C, 2) each."""

    def moments(x: Tensor) -> Tensor:
        flat = x.flatten(2) if x.dim() > 2 else x[..., None]
        return torch.stack(torch.std_mean(flat, 2, correction=0)[::-1], 2)

    with _captured(model, moments) as found:
        yield found


@contextlib.contextmanager
def _captured(model: nn.Module, look: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        last = isinstance(layer, (nn.LayerNorm, nn.RMSNorm)) and len(layer.normalized_shape) == 1
        seen.append(look(inputs[0].movedim(-1, 1) if last else inputs[0]))

    handles = [layer.register_forward_pre_hook(keep) for _, layer in norm_layers(model)]
    try:
        yield seen
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
