"""Random masks over patches: which are seen, which are to be reconstructed, and how to put them back in order."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from offsupport.core.errors import ConfigError


class Masking(NamedTuple):
    """A mask for each of N images of L patches, V of them visible."""

    keep: Tensor
    """(N, V) numbers of the visible patches, in the order in which they are encoded."""
    restore: Tensor
    """(N, L) for each patch its place in the shuffled order, visible ones first."""
    mask: Tensor
    """(N, L) 1 where a patch is removed, 0 where it is visible."""

    def to(self, device: torch.device) -> Masking:
        """Return the same masks on another device."""
        return Masking(*(tensor.to(device) for tensor in self))


def visible_patches(patches: int, ratio: float) -> int:
    """Return how many of ``patches`` stay visible; a ratio that is none, or leaves nothing to see, is refused.

    Example:
        >>> visible_patches(196, 0.75)
        49
    """
    if not 0 <= ratio < 1:
        raise ConfigError(f"A mask ratio of {ratio} is not possible.", "It must be at least 0 and below 1.")
    visible = int(patches * (1 - ratio))
    if not visible:
        raise ConfigError(
            f"A mask ratio of {ratio} leaves none of {patches} patches visible.",
            f"Use at most {_largest_ratio(patches):.4g}, or smaller patches.",
        )
    return visible


def _largest_ratio(patches: int) -> float:
    """Return the largest ratio of four decimals that leaves a patch visible."""
    bound = math.floor(1e4 * (1 - 1 / patches))
    # At 0.9 of ten patches the one that is left is lost to rounding: 10 * (1 - 0.9) is below 1.
    return next(ratio for ratio in (bound / 1e4, (bound - 1) / 1e4) if int(patches * (1 - ratio)))


def mask_by_noise(noise: Tensor, ratio: float) -> Masking:
    """Keep the patches with the least noise.

    Args:
        noise: (N, L), one number per patch.
        ratio: Share of the patches to remove, in [0, 1).
    """
    visible = visible_patches(noise.shape[1], ratio)
    shuffle = noise.argsort(dim=1)
    restore = shuffle.argsort(dim=1)
    return Masking(shuffle[:, :visible], restore, (restore >= visible).to(torch.float32))


def draw_masks(count: int, patches: int, ratio: float, generator: torch.Generator) -> Masking:
    """Draw ``count`` independent masks from ``generator`` (on the CPU), each uniform over all of that size."""
    return mask_by_noise(torch.rand(count, patches, generator=generator), ratio)
