"""A contact sheet: every corruption at every severity, at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from offsupport.core.errors import InputError
from offsupport.data.corruptions.apply import corrupt
from offsupport.data.corruptions.catalogue import ALL, Images
from offsupport.data.corruptions.parameters import max_severity

GAP = 4
PAPER, INK = (255, 255, 255), (32, 32, 32)


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
        names: Corruptions; all nineteen unless given.
        severities: Severities; 1 to 5 unless given. A corruption without one of them leaves its place empty.
        size: Side of a picture on the sheet, in pixels.
        seed: Seed of the corruptions.
        block: Limits the corruptions to a square of this side, see ``corrupt``.
    """
    if len(images) == 0:
        raise InputError("There is no image to draw.", "Give at least one.")
    names = ALL if names is None else names
    severities = range(1, 6) if severities is None else severities
    letters = max(10, min(size // 7, 20))
    font = ImageFont.load_default(letters)
    left = round(max(font.getlength(name) for name in names)) + 3 * GAP
    top = letters + 3 * GAP
    cell = size + GAP
    sheet = Image.new("RGB", (left + (1 + len(severities)) * cell, top + len(names) * cell), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(["clean", *map(str, severities)]):
        draw.text((left + column * cell + size / 2, top / 2), title, INK, font, anchor="mm")
    for row, name in enumerate(names):
        draw.text((left - 2 * GAP, top + row * cell + size / 2), name, INK, font, anchor="rm")
        number = row % len(images)
        for column, picture in _row(images[number : number + 1], number, name, severities, seed, block):
            sheet.paste(_enlarged(picture, size), (left + column * cell, top + row * cell))
    return sheet


def _row(
    image: Images, number: int, name: str, severities: Sequence[int], seed: int, block: int | None
) -> list[tuple[int, Images]]:
    """Return the pictures of one row with their columns."""
    highest = max_severity(name, image.shape[1])
    return [(0, image[0])] + [
        (1 + column, corrupt(image, name, severity, seed, block=block, index=[number])[0])
        for column, severity in enumerate(severities)
        if severity <= highest
    ]


def _enlarged(pixels: Images, size: int) -> Image.Image:
    """Return a picture of ``size``: pixels stay sharp when there are fewer, and are averaged when there are more."""
    how = Image.Resampling.NEAREST if pixels.shape[0] <= size else Image.Resampling.BOX
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((size, size), how)
