"""Which samples may teach: those of finite values, in the declared range, with moments that a source image could have.

All others are set apart before statistics, window, memory and loss: the source weights predict them, the adapter
counts them, and the rest of the batch acts as if they were not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from offsupport.core.errors import InputError, SourceStatsError
from offsupport.engine.config import Range
from offsupport.nn.norm import AdaptiveStatistics, Seen, norm_layers
from offsupport.nn.normalized import ROOM

LIMIT = 100.0
"""A sample spread by more than this at the first norm layer is none that the source could give; see :class:`FirstNorm`.

Measured on four ResNets of the zoo and two public ones, 1,000 images of CIFAR-10 each: the fifteen corruptions and the
four extra ones at severity 5 reach 8, binary noise 10, a chessboard of pixels 17; frames of 0..255 begin at 19,000, of
a tenth of that brightness at 180, images of +-50 at 10,000.
"""


class Implausible(Exception):  # noqa: N818 (control flow between a pass and the base, never the user's error)
    """Raised where the first look at a batch shows a sample that no source image resembles."""


def sort_samples(x: Tensor, declared: Range | None) -> tuple[Tensor, Tensor]:
    """Return for each sample whether all its values are finite, and whether they lie in the declared range too, (N,).

    The range is that of pictures: batches of another rank than (N, C, H, W) have none.
    """
    if not x.numel():
        every = torch.ones(len(x), dtype=torch.bool, device=x.device)
        return every, every
    low, high = x.flatten(1).aminmax(dim=1)  # NaN and infinity come through
    if declared is None or x.dim() != 4:
        finite = low.isfinite() & high.isfinite()
        return finite, finite
    room = ROOM * (declared[1] - declared[0])
    inside = (low >= declared[0] - room) & (high <= declared[1] + room)
    # Within the range is finite: only where something is not, its kind must be known.
    return inside if bool(inside.all()) else low.isfinite() & high.isfinite(), inside


def all_in_range(x: Tensor, declared: Range | None) -> bool:
    """Tell whether every value is finite and in the declared range: one number a batch, where nearly all are good."""
    low, high = (float(value) for value in x.aminmax())
    if declared is None or x.dim() != 4:
        return math.isfinite(low) and math.isfinite(high)
    room = ROOM * (declared[1] - declared[0])
    return low >= declared[0] - room and high <= declared[1] + room  # never of NaN


def refuse_range(x: Tensor, declared: Range) -> None:
    """Refuse a batch of which no sample lies in the declared range: it is the unit that is wrong."""
    low, high = (float(value) for value in x.aminmax())
    raise InputError(
        f"The model takes images in [{declared[0]:g}, {declared[1]:g}], and these lie in [{low:.3g}, {high:.3g}].",
        "Pass plain images: x / 255 where they are bytes, and let the model standardise: "
        "offsupport.nn.Normalized(model, mean, std). Where it takes another unit: adapt(..., input_range=None).",
    )


def refuse_moments(spread: Tensor) -> None:
    """Refuse a batch of which no sample has moments that the source could give."""
    raise InputError(
        f"The first norm layer sees these samples {float(spread.min()) ** 0.5:.3g} times as spread as those the model "
        "was trained on.",
        "Pass them in the unit of the training: x / 255 where they are bytes, standardised where the model does not "
        "do it itself (offsupport.nn.Normalized(model, mean, std)).",
    )


def chosen(x: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of ``x`` that are chosen; all of them are ``x`` itself, not a copy."""
    return x if bool(rows.all()) else x[rows]


def finite_rows(x: Tensor) -> Tensor:
    """Return for each sample whether all its values are finite, (N,)."""
    return torch.isfinite(x).flatten(1).all(1)


def blank(x: Tensor) -> bool:
    """Tell whether no sample shows anything: each is one constant, as the frames of a covered or dead camera are."""
    return not bool(shows(x).any())


def shows(x: Tensor) -> Tensor:
    """Return for each sample whether it shows anything, (N,): whether it is more than one constant."""
    rows = x.flatten(1)
    return (rows != rows[:, :1]).any(1) if rows.shape[1] > 1 else rows.new_ones(len(rows), dtype=torch.bool)


def repair(x: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the non-finite values of each sample by the mean of its finite ones.

    Returns:
        The repaired samples, and for each whether it had a finite value at all (where not, it is zero).
    """
    finite = torch.isfinite(x)
    kept = torch.where(finite, x, 0.0)
    axes = list(range(1, x.dim()))
    count = finite.sum(axes, keepdim=True)
    # In double precision: the sum of large but finite values must not overflow.
    mean = (kept.double().sum(axes, keepdim=True) / count.clamp(min=1)).to(x.dtype)
    return torch.where(finite, x, mean), count.flatten() > 0


# The moments of each sample where the network first normalises.


class _Enough(Exception):  # noqa: N818 (ends a pass that was made for its first layers)
    pass


@dataclasses.dataclass
class FirstNorm:
    """Compares what the first norm layer is given for a sample with what source images gave it.

    The spread of a sample is the mean square of its values about the source's mean, over the source's variance, all
    channels together: about 1 for source images, 255**2 for one that was not divided by 255. The source's moments are
    those of its images where they were collected, else the layer's own running statistics.
    """

    layer: nn.Module | None
    known: Tensor | None = None
    """Mean and variance of each channel over source images, (2, C); None where the layer's own are used."""
    _ready: tuple[Tensor, float, float] | None = None
    """What a spread needs of them: twice the means, negative, the sum of their squares, that of the variances."""

    @staticmethod
    def of(model: nn.Module, known: Tensor | None = None) -> FirstNorm:
        """Return the first norm layer of ``model`` whose source moments are known; there may be none."""
        layers = [layer for _, layer in norm_layers(model)]
        if known is None:
            layers = [layer for layer in layers if isinstance(layer, _BatchNorm) and layer.running_mean is not None]
        first = layers[0] if layers else None
        if first is not None and known is not None:
            wide = getattr(first, "num_features", getattr(first, "num_channels", known.shape[-1] if known.dim() else 0))
            if known.shape != (2, wide) or not known.is_floating_point() or not float(known[1].sum()) > 0:
                raise SourceStatsError(
                    f"These source statistics hold moments of the first norm layer of shape {tuple(known.shape)}.",
                    "Make them again.",
                )
        return FirstNorm(first, known)

    @staticmethod
    @contextlib.contextmanager
    def collecting(model: nn.Module) -> Iterator[list[Tensor]]:
        """Collect what the first norm layer of any kind is given inside the block: sums by channel, (3, C) each.

        They are the number of values, their sum and the sum of their squares, in double precision.
        """
        first, sums = FirstNorm(next((layer for _, layer in norm_layers(model)), None)), [torch.zeros(())]

        def add(given: Tensor) -> None:
            x = channels_second(first.layer, given.detach()).double().transpose(0, 1).flatten(1)
            count = torch.full_like(x[:, 0], x.shape[1])
            sums[0] = sums[0].to(x) + torch.stack([count, x.sum(1), x.square().sum(1)])

        with first.watching(add):
            yield sums

    @torch.no_grad()
    def spread(self, given: Tensor) -> Tensor:
        """Return the spread of each sample of what the layer is given, (N,)."""
        x = channels_second(self.layer, given)
        dtype = torch.promote_types(x.dtype, torch.float32)
        # The mean square about the mean, expanded: no copy of what the layer is given.
        axes = tuple(range(1, x.dim()))
        square = torch.linalg.vector_norm(x, dim=axes, dtype=dtype).square() / x[0, 0].numel()
        return self._about_source(x.mean(axes[1:], dtype=dtype), square)

    def recorded(self, seen: Seen | None) -> list[Tensor] | None:
        """Return the same from what was recorded of a pass, for each time the layer ran; None where it was not."""
        if seen is None or not isinstance(self.layer, AdaptiveStatistics) or self.layer.place is None:
            return None
        return [self._about_source(mean, square.sum(1)) for mean, square in seen.of(self.layer.place.start)]

    def _about_source(self, means: Tensor, square: Tensor) -> Tensor:
        """Return the spread by channel means (N, C) and by mean squares over the positions, all channels, (N,)."""
        ready = self._ready
        if ready is None or ready[0].dtype != means.dtype or ready[0].device != means.device:
            mean, var = (moment.to(means) for moment in self._moments())
            ready = self._ready = -2 * mean, float(mean.square().sum()), float(var.sum())
        return square.addmv(means, ready[0]).add_(ready[1]).div_(ready[2])

    def _moments(self) -> tuple[Tensor, Tensor]:
        if self.known is not None:
            return self.known[0], self.known[1]
        assert isinstance(self.layer, _BatchNorm)  # noqa: S101 (the only layers with statistics of their own)
        assert self.layer.running_mean is not None  # noqa: S101 (as above)
        assert self.layer.running_var is not None  # noqa: S101 (as above)
        return self.layer.running_mean, self.layer.running_var

    @contextlib.contextmanager
    def watching(self, then: Callable[[Tensor], None]) -> Iterator[None]:
        """Call ``then`` with what the layer is given inside the block."""
        if self.layer is None:
            yield
            return
        handle = self.layer.register_forward_pre_hook(lambda _, arguments: then(arguments[0]))
        try:
            yield
        finally:
            handle.remove()

    def judged(self, run: Callable[[], Tensor], seen: Seen | None = None) -> tuple[Tensor, bool]:
        """Return what ``run`` returns, and whether the layer was given a sample as no source image gives it.

        ``seen`` is where the pass is recorded, if it is.
        """
        found: list[Tensor] = []
        if self.recorded(seen) is not None:
            logits = run()
            found = self.recorded(seen) or []
        else:
            with self.watching(lambda given: found.append(self.spread(given))):
                logits = run()
        # After the pass, not within: no exception goes through the user's model.
        return logits, any(bool(absurd(each).any()) for each in found)

    @torch.no_grad()
    def look(self, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the spread of each sample of ``x``, (N,), by a pass of ``run`` that ends at the layer."""
        found: list[Tensor] = []

        def first(given: Tensor) -> None:
            found.append(self.spread(given))
            raise _Enough

        with self.watching(first), contextlib.suppress(_Enough):
            run(x)
        if not found:  # the network does not call this layer
            return x.new_zeros(len(x))
        if len(found[0]) == len(x):
            return found[0]
        # The network cuts samples into parts: the most spread part of each counts.
        return found[0].amax()[None] if len(x) == 1 else torch.cat([self.look(one[None], run) for one in x])


def channel_moments(sums: Tensor) -> Tensor | None:
    """Return mean and variance of each channel, (2, C), from what was collected; None where no layer was called."""
    if not sums.dim():
        return None
    mean, square = sums[1] / sums[0], sums[2] / sums[0]
    return torch.stack([mean, (square - mean.square()).clamp(min=0)]).float()


def absurd(spread: Tensor) -> Tensor:
    """Return for each sample whether no source image is spread so, (N,)."""
    return ~(spread <= LIMIT)  # NaN is absurd


def channels_second(layer: nn.Module | None, x: Tensor) -> Tensor:
    """Return what a norm layer is given as (N, C, positions...); without positions, with one."""
    last = isinstance(layer, (nn.LayerNorm, nn.RMSNorm)) and len(layer.normalized_shape) == 1
    x = x.movedim(-1, 1) if last else x
    return x[..., None] if x.dim() == 2 else x
