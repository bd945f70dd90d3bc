"""One shift score: how far images lie from clean ones, by what the source model's own layers see of them.

For each channel of each norm layer, the mean of an image over its positions is compared with that of clean images of
the class it is taken for. On clean images the squared difference, in units of what chance gives, is 1. A shift moves
all images the same way, so it stands out the more the more images there are; to be comparable, the score is said for
:data:`REFERENCE` images however many were seen. A model without norm layers is looked at by its logits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from offsupport.core.errors import InputError

REFERENCE = 64
"""The score is what the test would give for so many images."""
LARGEST = 64 * 2**20
"""Class means of more bytes are kept for all classes together."""
FADE = 512
"""Images over which a stream's moments fade."""


def seen_by_layers(means: list[Tensor], logits: Tensor) -> tuple[Tensor, list[int]]:
    """Return channel means of all layers side by side, (N, C), and the width of each layer.

    Args:
        means: What :func:`offsupport.nn.norm.capture_means` collected in one pass.
        logits: The logits of the same pass.
    """
    # Layers that see each image more than once (windows of a transformer, say) cannot be told apart by image.
    usable = [mean.float() for mean in means if len(mean) == len(logits) and mean.dim() == 2]
    if not usable:
        rows = logits.float().flatten(2).mean(2) if logits.dim() > 2 else logits.float()
        usable = [rows]
    return torch.cat(usable, 1), [mean.shape[1] for mean in usable]


def weights_of(logits: Tensor) -> Tensor:
    """Return how much of each class an image is taken for, (N, K)."""
    probabilities = logits.float().softmax(1)
    return probabilities if probabilities.dim() == 2 else probabilities.flatten(2).mean(2)


@dataclasses.dataclass(frozen=True)
class CleanMoments:
    """What the layers of the source model see of clean images.

    Args:
        means: Mean of the channels for each class, (K, C); (1, C) where that would be too large.
        spread: Variance of an image's value about the mean of its class, (C,).
        widths: Channels of each layer.
        samples: How many images they are of.
    """

    means: Tensor
    spread: Tensor
    widths: tuple[int, ...]
    samples: int

    @staticmethod
    def fit(batches: Iterable[tuple[Tensor, Tensor, list[int]]]) -> CleanMoments:
        """Collect them from channel means (N, C), logits (N, K, ...) and widths, batch by batch."""
        values, labels, classes, widths = [], [], 1, [0]
        for value, logits, widths in batches:  # noqa: B007 (the widths are the same in every batch)
            values.append(value.cpu())
            labels.append(weights_of(logits).argmax(1).cpu())
            classes = logits.shape[1]
        if not values or sum(map(len, values)) < 2:
            raise InputError("A shift score needs at least two clean images.", "Give more of them.")
        x, y = torch.cat(values).double(), torch.cat(labels)
        if classes * x.shape[1] * 4 > LARGEST:
            classes, y = 1, torch.zeros_like(y)
        count = torch.bincount(y, minlength=classes).double()[:, None]
        total = x.new_zeros(classes, x.shape[1]).index_add(0, y, x)
        # A class without clean images is expected to look like all of them.
        means = torch.where(count > 0, total / count.clamp(min=1), x.mean(0))
        freedom = max(1, len(x) - int((count > 0).sum()))
        spread = (x - means[y]).square().sum(0) / freedom
        return CleanMoments(means.float(), _floored(spread, widths).float(), tuple(widths), len(x))

    def difference(self, values: Tensor, logits: Tensor) -> Tensor:
        """Return by how much images differ from clean ones of their class, (N, C)."""
        if len(self.means) == 1:
            return values.float() - self.means.to(values.device)
        return values.float() - weights_of(logits) @ self.means.to(values.device)

    def fits(self, values: Tensor) -> bool:
        """Tell whether values come from the same layers."""
        return values.shape[1] == self.means.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return them as tensors for a file."""
        return {
            "means": self.means,
            "spread": self.spread,
            "widths": torch.tensor(self.widths),
            "samples": torch.tensor(self.samples),
        }

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> CleanMoments:
        """Undo :meth:`tensors`."""
        widths = tuple(int(width) for width in tensors["widths"])
        return CleanMoments(tensors["means"], tensors["spread"], widths, int(tensors["samples"]))


def _floored(spread: Tensor, widths: Iterable[int]) -> Tensor:
    """Keep dead channels from dividing by zero: each gets a thousandth of its layer's mean."""
    return torch.cat([part + 1e-3 * part.mean() + 1e-12 for part in torch.split(spread, list(widths))])


def fold(state: Tensor, differences: Tensor) -> Tensor:
    """Return faded sums after one more batch: the weights, their squares, then the differences, (2 + C,)."""
    new = torch.cat([differences.new_full((2,), float(len(differences))), differences.sum(0)])
    if state.numel() == 0:
        return new
    keep = math.exp(-len(differences) / FADE)
    fade = state.new_full(state.shape, keep)
    fade[1] = keep * keep
    return state.to(new.device) * fade.to(new.device) + new


def shift_score(state: Tensor, clean: CleanMoments) -> float:
    """Return the score of what :func:`fold` summed up: 1 on clean images, more the further off they are."""
    weight, squares = float(state[0]), float(state[1])
    chance = squares / weight**2 + 1 / clean.samples
    scaled = (state[2:].cpu().double() / weight).square() / clean.spread.cpu().double()
    mean = float(torch.stack([part.mean() for part in torch.split(scaled, list(clean.widths))]).mean())
    return 1.0 + REFERENCE * max(0.0, mean - chance)
