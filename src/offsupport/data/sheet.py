"""Contact sheets: pictures in a labelled grid, and every corruption at every severity at a glance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from offsupport.core.errors import InputError
from offsupport.data.corruptions import ALL, corrupt, max_severity
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
    # Small pictures keep their pixels: smoothed, a corruption of 32 pixels could not be told from the enlargement.
    how = Image.Resampling.NEAREST if max(pixels.shape[:2]) <= size else Image.Resampling.BOX
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((size, size), how)


def contact_sheet(
    images: Images,
    names: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    *,
    size: int = 96,
    seed: int = 0,
    block: int | None = None,
) -> Image.Image:
    """Draw a labelled grid: a row per corruption, the clean image first, then a column per severity.

    Args:
        images: (N, H, H, 3) 8-bit images; the rows take them in turn.
        names: Corruptions; the nineteen published ones unless given.
        severities: Severities; 1 to 5 unless given. A corruption without one of them leaves its place empty.
        size: Side of a picture on the sheet, in pixels.
        seed: Seed of the corruptions.
        block: Limits the corruptions to a square of this side, see ``corrupt``.
    """
    if len(images) == 0:
        raise InputError("There is no image to draw.", "Give at least one.")
    names = ALL if names is None else names
    severities = range(1, 6) if severities is None else severities
    rows = {
        name: _row(images[number : number + 1], number, name, severities, seed, block)
        for name, number in zip(names, itertools.cycle(range(len(images))), strict=False)
    }
    return draw_grid(["clean", *map(str, severities)], rows, size)


def _row(
    image: Images, number: int, name: str, severities: Sequence[int], seed: int, block: int | None
) -> dict[str, Images]:
    """Return the pictures of one row by column."""
    highest = max_severity(name, image.shape[1])
    return {"clean": image[0]} | {
        str(severity): corrupt(image, name, severity, seed, block=block, index=[number])[0]
        for severity in severities
        if severity <= highest
    }
