"""The fourteen operations one image and one pixel at a time; nothing here is shared with the library."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

NAMES = (
    *("shear_x", "shear_y", "translate_x", "translate_y", "contrast", "color", "brightness", "sharpness"),
    *("rotate", "auto_contrast", "invert", "equalize", "solarize", "posterize"),
)
RANGES = {
    **dict.fromkeys(("shear_x", "shear_y"), (-0.3, 0.3)),
    **dict.fromkeys(("translate_x", "translate_y"), (-0.45, 0.45)),
    **dict.fromkeys(("contrast", "color", "brightness", "sharpness"), (0.1, 1.9)),
    **dict.fromkeys(("auto_contrast", "invert", "equalize", "solarize"), (0.0, 1.0)),
    "rotate": (-math.pi / 6, math.pi / 6),
    "posterize": (4.0, 8.0),
}
SIGNED = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}


def apply(name: str, image: Tensor, v: float) -> Tensor:
    """Apply an operation with the value ``v`` to one image (C, H, W), and clip."""
    if name in SIGNED:
        return warp(image, MATRICES[name](v)).clamp(0, 1)
    if name in ("contrast", "color", "brightness", "sharpness"):
        other = DEGENERATE[name](image)
        return (other + v * (image - other)).clamp(0, 1)
    return PLAIN[name](image, v).clamp(0, 1)


MATRICES = {
    "shear_x": lambda v: ((1, v, 0), (0, 1, 0)),
    "shear_y": lambda v: ((1, 0, 0), (v, 1, 0)),
    "translate_x": lambda v: ((1, 0, v), (0, 1, 0)),
    "translate_y": lambda v: ((1, 0, 0), (0, 1, v)),
    "rotate": lambda v: ((math.cos(v), math.sin(v), 0), (-math.sin(v), math.cos(v), 0)),
}


def warp(image: Tensor, matrix: tuple) -> Tensor:
    """Sample where the matrix sends each pixel, in coordinates from -1 to 1 between the outer edges; square images."""
    pixels = image.numpy()
    _, height, width = pixels.shape
    out = np.zeros_like(pixels)
    for i in range(height):
        for j in range(width):
            y, x = (2 * i + 1) / height - 1, (2 * j + 1) / width - 1
            u = matrix[0][0] * x + matrix[0][1] * y + matrix[0][2]
            w = matrix[1][0] * x + matrix[1][1] * y + matrix[1][2]
            out[:, i, j] = bilinear(pixels, ((w + 1) * height - 1) / 2, ((u + 1) * width - 1) / 2)
    return torch.from_numpy(out)


def bilinear(pixels: np.ndarray, y: float, x: float) -> np.ndarray:
    _, height, width = pixels.shape
    y, x = reflect(y, height), reflect(x, width)
    i, j = math.floor(y), math.floor(x)
    total = np.zeros(len(pixels))
    for a, b in ((i, j), (i, j + 1), (i + 1, j), (i + 1, j + 1)):
        if a < height and b < width:
            total += (1 - abs(y - a)) * (1 - abs(x - b)) * pixels[:, a, b]
    return total


def reflect(at: float, size: int) -> float:
    """Fold a coordinate back at the edges of the outer pixels, -1/2 and size - 1/2, and keep it on pixel centres."""
    while not -0.5 <= at <= size - 0.5:
        at = -1 - at if at < -0.5 else 2 * size - 1 - at
    return min(max(at, 0), size - 1)


def grey(image: Tensor) -> Tensor:
    if len(image) == 1:
        return image
    return (0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]).expand_as(image)


def smooth(image: Tensor) -> Tensor:
    pixels = image.numpy()
    _, height, width = pixels.shape
    out = np.zeros_like(pixels)
    for i in range(height):
        for j in range(width):
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    a, b = min(max(i + di, 0), height - 1), min(max(j + dj, 0), width - 1)
                    out[:, i, j] += (5 if di == dj == 0 else 1) / 13 * pixels[:, a, b]
    return torch.from_numpy(out)


DEGENERATE = {
    "contrast": lambda image: torch.full_like(image, image.mean().item()),
    "color": grey,
    "brightness": torch.zeros_like,
    "sharpness": smooth,
}


def auto_contrast(image: Tensor, v: float) -> Tensor:
    stretched = [c if c.max() == c.min() else (c - c.min()) / (c.max() - c.min()) for c in image]
    return torch.stack(stretched)


def by_pillow(image: Tensor, change) -> Tensor:
    """Change each channel as an 8-bit picture."""
    channels = [Image.fromarray(np.floor(255 * channel.numpy()).astype(np.uint8)) for channel in image]
    return torch.stack([torch.from_numpy(np.array(change(c)).astype(np.float64) / 255) for c in channels]).to(image)


PLAIN = {
    "auto_contrast": auto_contrast,
    "invert": lambda image, v: 1 - image,
    "equalize": lambda image, v: by_pillow(image, ImageOps.equalize),
    "solarize": lambda image, v: torch.where(image < v, image, 1 - image),
    "posterize": lambda image, v: by_pillow(image, lambda picture: ImageOps.posterize(picture, int(v))),
}
