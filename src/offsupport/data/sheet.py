"""Pictures in a labelled grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from offsupport.data.dataset import Images

GAP = 4
PAPER, INK = (255, 255, 255), (32, 32, 32)


def draw_grid(titles: Sequence[str], rows: Mapping[str, Mapping[str, Images]], size: int = 96) -> Image.Image:
    """Draw one picture per row and column.

    Args:
        titles: The columns, left to right.
        rows: Row names to pictures (height, width, 3) by column; a missing one leaves its place empty.
        size: Side of a picture on the sheet; small ones keep sharp pixels, large ones are averaged down.
    """
    letters = max(10, min(size // 7, 20))
    font = ImageFont.load_default(letters)
    left = round(max(font.getlength(name) for name in rows)) + 3 * GAP
    top, cell = letters + 3 * GAP, size + GAP
    sheet = Image.new("RGB", (left + len(titles) * cell, top + len(rows) * cell), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        draw.text((left + column * cell + size / 2, top / 2), title, INK, font, anchor="mm")
    for row, (name, pictures) in enumerate(rows.items()):
        draw.text((left - 2 * GAP, top + row * cell + size / 2), name, INK, font, anchor="rm")
        for column, title in enumerate(titles):
            if title in pictures:
                sheet.paste(_scaled(pictures[title], size), (left + column * cell, top + row * cell))
    return sheet


def _scaled(pixels: Images, size: int) -> Image.Image:
    how = Image.Resampling.NEAREST if max(pixels.shape[:2]) <= size else Image.Resampling.BOX
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((size, size), how)
