"""Batched image operations: one draw per image, no loop over images."""

from offsupport.augment.operations import OPERATIONS, Operation
from offsupport.augment.policy import Draw, Policy, random_augment
from offsupport.augment.views import (
    color_jitter,
    cotta_view,
    flip,
    grayscale,
    random_resized_crop,
    shifted,
    shuffled_patches,
    simclr_view,
    simclr_views,
    turned,
    weak_views,
)

__all__ = [
    "OPERATIONS",
    "Draw",
    "Operation",
    "Policy",
    "color_jitter",
    "cotta_view",
    "flip",
    "grayscale",
    "random_augment",
    "random_resized_crop",
    "shifted",
    "shuffled_patches",
    "simclr_view",
    "simclr_views",
    "turned",
    "weak_views",
]
