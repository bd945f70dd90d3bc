"""The names of the corruptions and the functions behind them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from offsupport.core.registry import Registry

Images = NDArray[np.uint8]
"""(N, H, W, 3) images of one square size."""

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""Corruptions by kind; "extra" is for validation and takes no part in published averages."""

EXTRA = GROUPS["extra"]
STANDARD = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
ALL = STANDARD + EXTRA


CORRUPTIONS: Registry[Callable[..., Images]] = Registry("corruption")
"""Functions that take images, their random streams and the constants of one severity, and return new images."""

corruption = CORRUPTIONS.register
