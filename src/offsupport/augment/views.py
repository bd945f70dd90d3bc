"""Random views of images, batched: every image gets its own draw, and all are made at once.

Images are (N, C, H, W) in [0, 1] with one or three channels. Draws come from the given generator alone, in float64
on the CPU, so that a view does not depend on the type or device of the images.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from offsupport.core.errors import InputError

TRIES = 10
"""How often a crop of the drawn area and shape is sought inside an image before its largest centred one is taken."""

LUMA = (0.2989, 0.587, 0.114)


def random_resized_crop(
    x: Tensor,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
    size: int | None = None,
) -> Tensor:
    """Cut a random box out of each image and resize it, bilinear and antialiased.

    Resizing along an axis is linear, so both axes are one batched matrix product each; antialiasing (which acts where
    a box shrinks) is in the weights and costs nothing more.

    Args:
        x: Images (N, C, H, W).
        scale: Range of the box's share of the area.
        ratio: Range of its width by its height, log-uniform.
        generator: Where the draws come from.
        size: Height and width of the result; by default those of ``x``.
    """
    _check_images(x)
    height, width = x.shape[-2:]
    top, left, h, w = _boxes(len(x), height, width, scale, ratio, generator)
    rows = _resize_weights(top, h, height, size or height).to(x)
    columns = _resize_weights(left, w, width, size or width).to(x)
    return rows[:, None] @ x @ columns[:, None].mT


def flip(x: Tensor, generator: torch.Generator, p: float = 0.5) -> Tensor:
    """Mirror each image left to right with probability ``p``."""
    return torch.where(_chosen(x, generator, p), x.flip(-1), x)


def grayscale(x: Tensor, generator: torch.Generator, p: float = 0.2) -> Tensor:
    """Take the colour from each image with probability ``p``."""
    chosen = _chosen(x, generator, p)
    return torch.where(chosen, _luma(x), x)


def color_jitter(
    x: Tensor,
    generator: torch.Generator,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    p: float = 0.8,
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image with probability ``p``.

    The first three are blends with black, the mean grey and the grey image, by a factor uniform in 1 +- strength; the
    hue moves by a uniform share of the colour circle. Factors are drawn per image, the order of the four per batch.
    """
    _check_images(x)
    # Everything is drawn before anything is decided, so that the generator moves equally far for any image.
    chosen = _chosen(x, generator, p)
    order = torch.randperm(4, generator=generator).tolist()
    spread = 2 * torch.rand(4, len(x), 1, 1, 1, generator=generator, dtype=torch.float64) - 1
    out = x
    for operation in order:
        u = spread[operation].to(x)
        if operation == 0:
            out = (out * (1 + brightness * u)).clamp(0, 1)
        elif operation == 1:
            out = _blend(out, _luma(out).mean((1, 2, 3), keepdim=True), 1 + contrast * u)
        elif operation == 2:
            out = _blend(out, _luma(out), 1 + saturation * u)
        elif x.shape[1] == 3:
            out = _turn_hue(out, hue * u)
    return torch.where(chosen, out, x)


def simclr_views(
    x: Tensor, generator: torch.Generator, scale: tuple[float, float] = (0.2, 1.0)
) -> tuple[Tensor, Tensor]:
    """Return two independent views of each image as SimCLR makes them (Chen et al., 2020; CIFAR form, without blur).

    Example:
        >>> one, two = simclr_views(torch.rand(5, 3, 32, 32), torch.Generator().manual_seed(0))
        >>> one.shape, bool((one == two).all())
        (torch.Size([5, 3, 32, 32]), False)
    """
    return simclr_view(x, generator, scale), simclr_view(x, generator, scale)


def weak_views(x: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """Return ``count`` mild views of each image: enlarged by an eighth, cropped to 80 to 100 % of it, maybe mirrored.

    This is the weak augmentation of TeSLA on CIFAR (resize 32 to 36, crop back to 32). Enlarging and cropping are both
    linear along an axis, so they are one matrix per image and axis.

    Example:
        >>> [view.shape for view in weak_views(torch.rand(5, 3, 8, 8), 2, torch.Generator().manual_seed(0))]
        [torch.Size([5, 3, 8, 8]), torch.Size([5, 3, 8, 8])]
    """
    _check_images(x)
    if not count:
        return []
    sizes = tuple(x.shape[-2:])
    large = [round(1.125 * size) for size in sizes]
    box = _boxes(count * len(x), large[0], large[1], (0.8, 1.0), (3 / 4, 4 / 3), generator)
    zero = torch.zeros(1, dtype=torch.float64)
    rows, columns = (
        _resize_weights(start, length, grown, size).to(x) @ _resize_weights(zero, zero + size, size, grown).to(x)
        for start, length, size, grown in zip(box[:2], box[2:], sizes, large, strict=True)
    )
    # All channels in one product per image: (H', H) @ (H, C W), then (C H', W) @ (W, W').
    across = rows @ x.transpose(1, 2).flatten(2).repeat(count, 1, 1)
    down = across.view(len(rows), *x.transpose(1, 2).shape[1:]).transpose(1, 2).flatten(1, 2)
    cut = (down @ columns.mT).view(-1, *x.shape[1:])
    return list(flip(cut, generator).chunk(count))


def simclr_view(x: Tensor, generator: torch.Generator, scale: tuple[float, float] = (0.2, 1.0)) -> Tensor:
    """Return one view of each image: a crop, perhaps mirrored, its colours perhaps changed or taken away."""
    view = flip(random_resized_crop(x, scale, (3 / 4, 4 / 3), generator), generator)
    return grayscale(color_jitter(view, generator), generator)


def cotta_view(
    x: Tensor,
    generator: torch.Generator,
    padding: Literal["border", "reflection"] = "border",
    noise: float = 0.005,
) -> Tensor:
    """Return one view of each image as CoTTA makes it (Wang et al., 2022): colours, a small motion, blur and noise.

    Brightness, contrast, saturation, hue and gamma change in an order drawn per batch; the image turns by up to 15
    degrees, moves by up to an eighth of its side and grows or shrinks by up to a tenth; it is blurred, perhaps
    mirrored, and gets noise. Published code draws all of that once for a batch, here every image has its own draw.

    Args:
        x: Images (N, C, H, W).
        generator: Where the draws come from.
        padding: What lies beyond the border: its pixels repeated, or the image mirrored.
        noise: Standard deviation of the noise; 0 leaves blur and noise out, as ROID does.
    """
    _check_images(x)
    view = _warped(_jittered(x.clamp(0, 1), generator), generator, padding)
    if noise:
        view = _blurred(view, generator)
    view = flip(view, generator)
    if noise:
        view = view + noise * torch.randn(x.shape, generator=generator).to(x)
    return view.clamp(0, 1)


def shifted(x: Tensor, by: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to ``by`` pixels along each axis, edges repeated."""
    n, _, height, width = x.shape
    padded = torch.nn.functional.pad(x, (by, by, by, by), mode="replicate")
    top, left = torch.randint(2 * by + 1, (2, n, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    return padded[
        torch.arange(n)[:, None, None, None],
        torch.arange(x.shape[1])[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def turned(x: Tensor, quarters: Tensor) -> Tensor:
    """Turn each image of equal sides by its number of quarter turns, (N,), counter-clockwise."""
    _check_images(x)
    if x.shape[-1] != x.shape[-2]:
        raise InputError(
            f"Images of {x.shape[-2]} by {x.shape[-1]} pixels have another shape when they are turned by a quarter.",
            "Crop or pad them to squares.",
        )
    out, quarters = x.clone(), quarters.to(x.device) % 4
    for quarter in (1, 2, 3):
        chosen = quarters == quarter
        out[chosen] = x[chosen].rot90(quarter, (-2, -1))
    return out


def shuffled_patches(x: Tensor, parts: int, generator: torch.Generator) -> Tensor:
    """Cut each image into ``parts`` by ``parts`` patches and put them back in an order of its own.

    Sides that ``parts`` does not divide are made smaller for it, and larger again after it.
    """
    height, width = x.shape[-2:]
    size = (max(height // parts, 1) * parts, max(width // parts, 1) * parts)
    cut = x if size == (height, width) else torch.nn.functional.interpolate(x, size, mode="bilinear")
    n, channels = x.shape[:2]
    patches = cut.view(n, channels, parts, size[0] // parts, parts, size[1] // parts).transpose(3, 4)
    patches = patches.flatten(2, 3)
    order = torch.rand(n, parts * parts, generator=generator, dtype=torch.float64).argsort(1).to(x.device)
    patches = patches.gather(2, order[:, None, :, None, None].expand_as(patches))
    whole = patches.reshape(n, channels, parts, parts, *patches.shape[3:]).transpose(3, 4).reshape(n, channels, *size)
    return (
        whole if size == (height, width) else torch.nn.functional.interpolate(whole, (height, width), mode="bilinear")
    )


def _jittered(x: Tensor, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation, hue and gamma, in CoTTA's ranges."""
    order = torch.randperm(5, generator=generator).tolist()
    draws = 2 * torch.rand(5, len(x), 1, 1, 1, generator=generator, dtype=torch.float64).to(x) - 1
    for operation in order:
        u = draws[operation]
        if operation == 0:
            x = (x * (1 + 0.4 * u)).clamp(0, 1)
        elif operation == 1:
            x = _blend(x, _luma(x).mean((1, 2, 3), keepdim=True), 1 + 0.3 * u)
        elif operation == 2:
            x = _blend(x, _luma(x), 1 + 0.5 * u)
        elif operation == 4:
            x = x.clamp(min=1e-8) ** (1 + 0.3 * u)
        elif x.shape[1] == 3:
            x = _turn_hue(x, 0.06 * u)
    return x


def _warped(x: Tensor, generator: torch.Generator, padding: str) -> Tensor:
    """Turn, move and scale each image by CoTTA's amounts."""
    turn, down, across, grow = (2 * torch.rand(4, len(x), generator=generator, dtype=torch.float64).to(x) - 1).unbind()
    angle, scale, aspect = math.radians(15) * turn, 1 / (1 + 0.1 * grow), x.shape[-2] / x.shape[-1]
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    rows = (
        cosine,
        sine * aspect,
        across / 4,
        -sine / aspect,
        cosine,
        down / 4,
    )  # an eighth of a side is a quarter of 2
    grid = torch.nn.functional.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, padding_mode=padding, align_corners=False)


def _blurred(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blur each image by a Gaussian of five pixels with a width of up to half a pixel."""
    sigma = 0.001 + 0.499 * torch.rand(len(x), 1, generator=generator, dtype=torch.float64)
    kernel = (-((torch.arange(5, dtype=torch.float64) - 2) ** 2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum(1, keepdim=True)).to(x)[:, :, None, None, None]
    for axis in (-1, -2):
        # As far as the image reaches it is mirrored; one of two pixels cannot be mirrored by two.
        reach = [2, 2, 0, 0] if axis == -1 else [0, 0, 2, 2]
        wide = torch.nn.functional.pad(x, reach, mode="reflect" if x.shape[axis] > 2 else "replicate")
        length = x.shape[axis]
        x = kernel[:, 2] * wide.narrow(axis, 2, length)
        for k in (0, 1, 3, 4):
            x.addcmul_(kernel[:, k], wide.narrow(axis, k, length))
    return x


def _check_images(x: Tensor) -> None:
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise InputError(
            f"Views are made of images (N, 3, H, W) or (N, 1, H, W), and this batch has shape {tuple(x.shape)}.",
            "Use a method that does not augment, such as 'tent'.",
        )


def _chosen(x: Tensor, generator: torch.Generator, p: float) -> Tensor:
    draw = torch.rand(len(x), 1, 1, 1, generator=generator, dtype=torch.float64)
    return (draw < p).to(x.device)


def _boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw top, left, height and width of a box in whole pixels for each image, (N,) each.

    Of :data:`TRIES` draws of area and shape the first that fits is taken; where none does, the largest centred box
    within the range of shapes.
    """
    draw = torch.rand(count, TRIES, 2, generator=generator, dtype=torch.float64)
    place = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draw[..., 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = ((low + (high - low) * draw[..., 1]) / 2).exp()
    w, h = (area.sqrt() * root).round(), (area.sqrt() / root).round()
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    w, h, any_fits = w.gather(1, first)[:, 0], h.gather(1, first)[:, 0], fits.any(1)
    shape = min(max(width / height, ratio[0]), ratio[1])
    w = torch.where(any_fits, w, float(min(width, round(height * shape))))
    h = torch.where(any_fits, h, float(min(height, round(width / shape))))
    free = torch.stack([height - h, width - w], 1)
    corner = torch.where(any_fits[:, None], (place * (free + 1)).floor(), (free / 2).round())
    return corner[:, 0], corner[:, 1], h, w


def _resize_weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Return for each image the weights (N, size, pixels) by which ``length`` pixels from ``start`` become ``size``.

    They are triangles around the place where each new pixel lies, as wide as the step where the box shrinks; pixels
    outside the box weigh nothing.
    """
    step = (length / size)[:, None, None]
    centre = start[:, None, None] + (torch.arange(size, dtype=torch.float64)[:, None] + 0.5) * step - 0.5
    pixel = torch.arange(pixels, dtype=torch.float64)
    weights = (1 - (pixel - centre).abs() / step.clamp(min=1)).clamp(min=0)
    inside = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def _luma(x: Tensor) -> Tensor:
    """Return the brightness the eye sees, (N, 1, H, W); an image of one channel is its own."""
    if x.shape[1] == 1:
        return x
    return (x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + factor * (x - other)).clamp(0, 1)


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the colour circle by a share of it, with saturation and value kept: the hexagonal form of HSV."""
    red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:]
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    step = 1 / chroma.clamp(min=torch.finfo(x.dtype).tiny)
    # The largest channel names the side of the hexagon, the other two say how far along it; grey has no hue.
    hue = torch.where(
        value == red,
        (green - blue) * step,
        torch.where(value == green, (blue - red) * step + 2, (red - green) * step + 4),
    )
    hue = hue + 6 * turn
    sectors = torch.cat([hue + 5, hue + 3, hue + 1], 1)
    k = sectors - 6 * (sectors / 6).floor()
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)
