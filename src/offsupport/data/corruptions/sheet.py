"""A contact sheet: every corruption at every severity, at a glance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from PIL import Image

from offsupport.core.errors import InputError
from offsupport.data.corruptions.apply import corrupt
from offsupport.data.corruptions.catalogue import ALL, Images
from offsupport.data.corruptions.parameters import max_severity
from offsupport.data.sheet import draw_grid


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
