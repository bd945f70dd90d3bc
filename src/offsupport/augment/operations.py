"""The fourteen operations of AutoAugment, batched and differentiable, with one magnitude per image.

Images are (N, C, H, W) in [0, 1], values ``v`` are (N,). Geometry samples bilinearly and reflects at the border. What
has no derivative passes gradients straight through: to the image as if it were left alone, and to the value as if it
were added to every pixel (Tomar et al., 2023).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from offsupport.augment.views import LUMA

LEVELS = 256


def shear_x(x: Tensor, v: Tensor) -> Tensor:
    """Move each row by ``v`` times its height above the centre."""
    return _warp(x, _matrix(v, (1.0, v), (0.0, 1.0)))


def shear_y(x: Tensor, v: Tensor) -> Tensor:
    """Move each column by ``v`` times its distance from the centre."""
    return _warp(x, _matrix(v, (1.0, 0.0), (v, 1.0)))


def translate_x(x: Tensor, v: Tensor) -> Tensor:
    """Move by ``v`` half widths."""
    return _warp(x, _matrix(v, (1.0, 0.0), (0.0, 1.0), (v, 0.0)))


def translate_y(x: Tensor, v: Tensor) -> Tensor:
    """Move by ``v`` half heights."""
    return _warp(x, _matrix(v, (1.0, 0.0), (0.0, 1.0), (0.0, v)))


def rotate(x: Tensor, v: Tensor) -> Tensor:
    """Turn by the angle ``v`` in radians."""
    aspect = x.shape[-2] / x.shape[-1]
    return _warp(x, _matrix(v, (v.cos(), v.sin() * aspect), (-v.sin() / aspect, v.cos())))


def contrast(x: Tensor, v: Tensor) -> Tensor:
    """Blend with the mean of all pixels and channels."""
    return _blend(x.mean((1, 2, 3), keepdim=True), x, v)


def color(x: Tensor, v: Tensor) -> Tensor:
    """Blend with the grey image; images without three channels count as grey."""
    if x.shape[1] != 3:
        return _blend(x, x, v)
    return _blend((x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True), x, v)


def brightness(x: Tensor, v: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(torch.zeros_like(x), x, v)


def sharpness(x: Tensor, v: Tensor) -> Tensor:
    """Blend with the image smoothed over three by three pixels, the centre counted five times."""
    # The kernel is a box plus four times its centre, and a box is cheaper than a convolution.
    box = 9 * nn.functional.avg_pool2d(nn.functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return _blend((box + 4 * x) / 13, x, v)


def auto_contrast(x: Tensor, v: Tensor) -> Tensor:
    """Stretch each channel to [0, 1]; a constant one stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = low == high
    return _straight_through((x - torch.where(flat, 0.0, low)) / torch.where(flat, 1.0, high - low), x, v)


def invert(x: Tensor, v: Tensor) -> Tensor:
    """Return the negative."""
    return 1 - x + _nothing_but_gradient(v)


def equalize(x: Tensor, v: Tensor) -> Tensor:
    """Flatten the histogram of each channel at 8 bits, as PIL does."""
    levels = _levels(x).flatten(2)
    histogram = torch.zeros(*levels.shape[:2], LEVELS, dtype=torch.long, device=x.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    total = histogram.cumsum(2)
    # The count of the brightest level in use does not count towards the step.
    last = histogram.gather(2, levels.amax(2, keepdim=True))
    step = (total[..., -1:] - last) // (LEVELS - 1)
    table = ((total - histogram + step // 2) // step.clamp(min=1)).clamp(0, LEVELS - 1)
    out = torch.where(step == 0, levels, table.gather(2, levels))
    return _straight_through(out.view_as(x).to(x) / (LEVELS - 1), x, v)


def solarize(x: Tensor, v: Tensor) -> Tensor:
    """Return the negative of what is at least as bright as ``v``."""
    return _straight_through(torch.where(x < v.view(-1, 1, 1, 1), x, 1 - x), x, v)


def posterize(x: Tensor, v: Tensor) -> Tensor:
    """Keep the highest ``v`` of 8 bits, rounded down."""
    step = 2 ** (8 - v.detach().long()).view(-1, 1, 1, 1)
    levels = _levels(x)
    return _straight_through((levels - levels % step).to(x) / (LEVELS - 1), x, v)


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation and the values that its magnitudes 0 and 1 stand for.

    Args:
        apply: Images and values to images.
        low: Value at magnitude 0.
        high: Value at magnitude 1.
        signed: Whether the sign of the value is drawn per image.
    """

    apply: Callable[[Tensor, Tensor], Tensor]
    low: float
    high: float
    signed: bool = False

    @property
    def name(self) -> str:
        """What the operation is called."""
        return self.apply.__name__

    def __call__(self, x: Tensor, magnitude: Tensor, sign: Tensor) -> Tensor:
        """Apply it with magnitudes in [0, 1], (N,), and signs of one, (N,)."""
        v = self.low + magnitude * (self.high - self.low)
        return self.apply(x, v * sign if self.signed else v).clamp(0, 1)


ANGLE = math.pi / 6
OPERATIONS = (
    Operation(shear_x, -0.3, 0.3, signed=True),
    Operation(shear_y, -0.3, 0.3, signed=True),
    Operation(translate_x, -0.45, 0.45, signed=True),
    Operation(translate_y, -0.45, 0.45, signed=True),
    Operation(contrast, 0.1, 1.9),
    Operation(color, 0.1, 1.9),
    Operation(brightness, 0.1, 1.9),
    Operation(sharpness, 0.1, 1.9),
    Operation(rotate, -ANGLE, ANGLE, signed=True),
    Operation(auto_contrast, 0.0, 1.0),
    Operation(invert, 0.0, 1.0),
    Operation(equalize, 0.0, 1.0),
    Operation(solarize, 0.0, 1.0),
    Operation(posterize, 4.0, 8.0),
)
"""In the published order, which is the order of application."""


def _matrix(
    v: Tensor, x: tuple[object, object], y: tuple[object, object], shift: tuple[object, object] = (0.0, 0.0)
) -> Tensor:
    entries = (*x, shift[0], *y, shift[1])
    return torch.stack([torch.as_tensor(entry, dtype=v.dtype, device=v.device).expand_as(v) for entry in entries], 1)


def _warp(x: Tensor, matrix: Tensor) -> Tensor:
    grid = nn.functional.affine_grid(matrix.view(-1, 2, 3), list(x.shape), align_corners=False)
    return nn.functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _blend(degenerate: Tensor, x: Tensor, v: Tensor) -> Tensor:
    return degenerate + v.view(-1, 1, 1, 1) * (x - degenerate)


def _levels(x: Tensor) -> Tensor:
    return ((LEVELS - 1) * x.detach()).long()


def _nothing_but_gradient(v: Tensor) -> Tensor:
    return (v - v.detach()).view(-1, 1, 1, 1)


def _straight_through(out: Tensor, x: Tensor, v: Tensor) -> Tensor:
    return out.detach() + (x - x.detach()) + _nothing_but_gradient(v)
