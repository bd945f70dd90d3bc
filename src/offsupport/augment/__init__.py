"""Batched image operations: one draw per image, no loop over images."""

from offsupport.augment.views import color_jitter, flip, grayscale, random_resized_crop, simclr_view, simclr_views

__all__ = ["color_jitter", "flip", "grayscale", "random_resized_crop", "simclr_view", "simclr_views"]
