"""Plain per-image versions of the corruptions, as literal as they can be; they take the same random draws.

The tests compare the batched corruptions with these, and the benchmark times them.
"""

from __future__ import annotations

import math

import numpy as np
from corruption_water_loop import literal_water
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from scipy import ndimage

from offsupport.data.corruptions.filters import ROUNDING
from offsupport.data.corruptions.weather import textures


def synthetic_images(count, side=32):
    """Coloured shapes and gradients from integer arithmetic alone: the same everywhere."""
    rows, columns = np.mgrid[:side, :side]
    images = []
    for k in range(count):
        ramp = (rows * (3 + k % 5) + columns * (7 - k % 4)) * 32 // side % 256
        rings = (
            ((rows - side // 2 + k % 7) ** 2 + (columns - side // 3 - k % 5) ** 2) * 1024 // side**2 * (1 + k % 3) % 256
        )
        checks = (rows * 8 // side + columns * 8 // side + k) % 2 * (90 + 20 * (k % 6)) + 30
        images.append(np.stack([ramp, rings, checks], axis=2))
        images[-1][side // 2 : side * 3 // 4, side // 4 : side // 2] = (240, 255, 250 - k % 9)
        images[-1][: side // 8] = 60 + 3 * (k % 11)
        images[-1][-(side // 16) :] = 0
    return np.array(images, np.uint8).reshape(count, side, side, 3)


def cut_off(levels):
    return np.clip(levels + ROUNDING, 0, 255).astype(np.uint8)


def each(function):
    """Turn a function of one image and its draws into one of a batch and its streams."""

    def loop(images, streams, *constants):
        pieces = [function(images[k], streams.part(slice(k, k + 1)), *constants) for k in range(len(images))]
        return np.stack(pieces)

    return loop


@each
def gaussian_noise(image, streams, std):
    return cut_off((image / 255 + std * streams.normal("noise", *image.shape)[0]) * 255)


@each
def shot_noise(image, streams, photons):
    return cut_off(streams.poisson("counts", (image / 255 * photons)[None])[0] / photons * 255)


@each
def impulse_noise(image, streams, share):
    chance = streams.uniform("chance", *image.shape)[0]
    out = image.copy()
    out[chance < np.float32(share)] = 0
    out[chance < np.float32(share / 2)] = 255
    return out


@each
def speckle_noise(image, streams, std):
    x = image / 255
    return cut_off((x + x * std * streams.normal("noise", *image.shape)[0]) * 255)


def literal_disc(radius, alias):
    grid = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    x, y = np.meshgrid(grid, grid)
    kernel = np.array(x**2 + y**2 <= radius**2, float)
    kernel /= kernel.sum()
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    weights = np.exp(-(taps**2) / (2 * alias**2))
    weights /= weights.sum()
    return ndimage.correlate(kernel, np.outer(weights, weights), mode="mirror")


@each
def defocus_blur(image, streams, radius, alias):
    kernel = literal_disc(radius, alias)
    x = image / 255
    return cut_off(np.stack([ndimage.correlate(x[..., c], kernel, mode="mirror") for c in range(3)], axis=2) * 255)


def blurred(x, sigma):
    return ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4.0)


@each
def gaussian_blur(image, streams, sigma):
    return cut_off(blurred(image / 255, sigma) * 255)


@each
def glass_blur(image, streams, sigma, reach, rounds):
    side = len(image)
    x = cut_off(blurred(image / 255, sigma) * 255)
    moved = side - 2 * reach
    offsets = streams.integers("offsets", -reach, reach, rounds, 2, moved, moved)[0].astype(int)
    for turn in range(rounds):
        for i, h in enumerate(range(side - reach, reach, -1)):
            for j, w in enumerate(range(side - reach, reach, -1)):
                dx, dy = offsets[turn, 0, i, j], offsets[turn, 1, i, j]
                x[h, w] = x[h + dy, w + dx]
    return cut_off(blurred(x / 255, sigma) * 255)


def literal_motion(image, angle, radius, sigma):
    width = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    total = sum(weights)
    rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
    out = np.zeros(image.shape)
    for i, weight in enumerate(weights):
        ox = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        oy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        y, x = np.clip(rows + oy, 0, len(rows) - 1), np.clip(columns + ox, 0, len(columns) - 1)
        out += weight / total * image[y[:, None], x[None, :]]
    return np.clip(np.floor(out + 0.5), 0, 255).astype(np.uint8)


@each
def motion_blur(image, streams, radius, sigma):
    angle = 90 * float(streams.uniform("angle", 1)[0, 0]) - 45
    return literal_motion(image, angle, radius, sigma)


def literal_zoom(x, factor):
    side = len(x)
    cut = math.ceil(side / factor)
    top = (side - cut) // 2
    factors = (factor, factor, 1)[: x.ndim]
    large = ndimage.zoom(x[top : top + cut, top : top + cut], factors, order=1)
    trim = (len(large) - side) // 2
    return large[trim : trim + side, trim : trim + side]


@each
def zoom_blur(image, streams, factors):
    x = image / 255
    out = x.copy()
    for factor in factors:
        out += literal_zoom(x, factor)
    return cut_off(out / (len(factors) + 1) * 255)


@each
def snow(image, streams, mean, std, factor, threshold, radius, sigma, kept):
    x = image / 255
    layer = literal_zoom(mean + std * streams.normal("field", *image.shape[:2])[0].astype(float), factor)
    layer[layer < threshold] = 0
    angle = 90 * float(streams.uniform("angle", 1)[0, 0]) - 135
    layer = literal_motion(cut_off(np.clip(layer, 0, 1) * 255), angle, radius, sigma)[..., None] / 255
    grey = (x @ [0.299, 0.587, 0.114])[..., None]
    x = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return cut_off((x + layer + np.rot90(layer, 2)) * 255)


@each
def frost(image, streams, kept, added, scale):
    side = len(image)
    which, top, left = streams.uniform("cut", 3)[0]
    texture = textures(None, scale)[int(which * np.float32(5))]
    y, x = int(top * np.float32(texture.shape[0] - side)), int(left * np.float32(texture.shape[1] - side))
    return cut_off(kept * image + added * texture[y : y + side, x : x + side].astype(float))


def literal_plasma(size, decay, draws):
    """The published wrapping diamond-square, point by point."""
    draws = iter(draws)
    heights = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half = step // 2

        def noise(mean, wibble=wibble):
            return mean + wibble * (2 * float(next(draws)) - 1) * wibble

        cells = [(r, c) for r in range(0, size, step) for c in range(0, size, step)]
        at = lambda r, c: heights[r % size, c % size]  # noqa: E731
        for r, c in cells:
            corners = at(r, c) + at(r + step, c) + at(r, c + step) + at(r + step, c + step)
            heights[r + half, c + half] = noise(corners / 4)
        for r, c in cells:
            around = at(r + half, c + half) + at(r - half, c + half) + at(r, c) + at(r, c + step)
            heights[r, c + half] = noise(around / 4)
        for r, c in cells:
            around = at(r + half, c + half) + at(r + half, c - half) + at(r, c) + at(r + step, c)
            heights[r + half, c] = noise(around / 4)
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / heights.max()


@each
def fog(image, streams, amount, decay):
    side = len(image)
    size = 2 ** math.ceil(math.log2(side))
    x = image / 255
    mist = literal_plasma(size, decay, streams.uniform("plasma", size * size - 1)[0])[:side, :side, None]
    return cut_off((x + amount * mist) * x.max() / (x.max() + amount) * 255)


@each
def brightness(image, streams, amount):
    hsv = rgb_to_hsv(image / 255)
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return cut_off(hsv_to_rgb(hsv) * 255)


@each
def saturate(image, streams, factor, shift):
    hsv = rgb_to_hsv(image / 255)
    hsv[..., 1] = np.clip(factor * hsv[..., 1] + shift, 0, 1)
    return cut_off(hsv_to_rgb(hsv) * 255)


@each
def contrast(image, streams, factor):
    x = image / 255
    mean = x.mean(axis=(0, 1), keepdims=True)
    return cut_off(((x - mean) * factor + mean) * 255)


@each
def elastic_transform(image, streams, alpha, sigma, jitter):
    side = len(image)
    x = image / 255
    centre, reach = side // 2, side // 3
    points = np.array([[centre + reach] * 2, [centre + reach, centre - reach], [centre - reach] * 2], float)
    moved = points + jitter * (2 * streams.uniform("points", 3, 2)[0].astype(float) - 1)
    matrix = np.linalg.solve(np.column_stack([points, np.ones(3)]), moved).T  # 2x3, source to destination
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    rows, columns = np.mgrid[:side, :side].astype(float)
    from_x = back[0, 0] * columns + back[0, 1] * rows + back[0, 2]
    from_y = back[1, 0] * columns + back[1, 1] * rows + back[1, 2]
    x = _mapped(x, from_y, from_x, "mirror")
    if alpha:
        dx, dy = 2 * streams.uniform("field", 2, side, side)[0].astype(float) - 1
        dx, dy = (ndimage.gaussian_filter(d, sigma, mode="reflect", truncate=3) * alpha for d in (dx, dy))
        x = _mapped(x, rows + dy, columns + dx, "reflect")
    return cut_off(x * 255)


def _mapped(x, rows, columns, mode):
    return np.stack([ndimage.map_coordinates(x[..., c], [rows, columns], order=1, mode=mode) for c in range(3)], axis=2)


@each
def spatter(image, streams, mean, std, sigma, threshold, amount, mud):
    x = image / 255
    drops = mean + std * streams.normal("field", *image.shape[:2])[0].astype(float)
    drops = ndimage.gaussian_filter(drops, sigma, mode="nearest", truncate=4)
    drops[drops < threshold] = 0
    if mud:
        mask = ndimage.gaussian_filter((drops > threshold).astype(float), amount, mode="nearest", truncate=4)
        mask[mask < 0.8] = 0
        return cut_off((x * (1 - mask[..., None]) + mask[..., None] * np.array([63, 42, 20]) / 255) * 255)
    water = literal_water(cut_off(drops * 255))
    return cut_off((x + amount * water[..., None] * np.array([175, 238, 238]) / 255) * 255)


LOOPS = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "spatter": spatter,
    "saturate": saturate,
}
"""Loops by corruption; pixelate and jpeg_compression are loops over Pillow already."""
