"""Drops of water on one image, pixel by pixel where that is the plainest way."""

from __future__ import annotations

import math

import numpy as np
from scipy import ndimage


def literal_water(drops):
    edges = literal_canny(drops)
    distance = ndimage.distance_transform_edt(~edges) if edges.any() else np.full(drops.shape, 1e6)
    distance = ndimage.uniform_filter(np.minimum(distance, 20), 3, mode="mirror")
    relief = literal_equalised((distance + 1e-9).astype(np.uint8))
    relief = ndimage.correlate(relief.astype(int), [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], mode="mirror")
    relief = np.rint(ndimage.uniform_filter(np.clip(relief, 0, 255).astype(float), 3, mode="mirror"))
    depth = drops * relief
    return depth / depth.max() if depth.max() else depth


def literal_canny(field, low=50, high=150):
    field = field.astype(int)
    gx = ndimage.sobel(field, axis=1, mode="nearest")
    gy = ndimage.sobel(field, axis=0, mode="nearest")
    magnitude = np.pad(abs(gx) + abs(gy), 1)
    weak = np.zeros(field.shape, bool)
    for r, c in np.ndindex(*field.shape):
        m, x, y = magnitude[r + 1, c + 1], gx[r, c], gy[r, c]
        if abs(y) < math.tan(math.pi / 8) * abs(x):
            ahead, behind, strict = (0, 1), (0, -1), False
        elif abs(x) < math.tan(math.pi / 8) * abs(y):
            ahead, behind, strict = (1, 0), (-1, 0), False
        else:
            ahead, strict = ((1, -1) if x * y < 0 else (1, 1)), True
            behind = (-ahead[0], -ahead[1])
        first, second = magnitude[r + 1 + behind[0], c + 1 + behind[1]], magnitude[r + 1 + ahead[0], c + 1 + ahead[1]]
        weak[r, c] = m > low and m > first and (m > second if strict else m >= second)
    regions, count = ndimage.label(weak, np.ones((3, 3)))
    strong = {regions[r, c] for r, c in np.argwhere(weak) if magnitude[r + 1, c + 1] > high}
    return np.isin(regions, [region for region in range(1, count + 1) if region in strong])


def literal_equalised(field):
    values = np.unique(field)
    if len(values) == 1:
        return field
    above = field.size - (field == values[0]).sum()
    table = {v: np.rint(((field <= v).sum() - (field == values[0]).sum()) * (255 / above)) for v in values}
    return np.vectorize(table.get)(field).astype(np.uint8)
