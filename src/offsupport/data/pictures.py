"""One picture at a time: reading any image file, the ImageNet crop, and the JPEG of the 224-pixel release."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from offsupport.core.errors import FileError
from offsupport.data.dataset import Images

RELEASE_QUALITY = 85
"""JPEG quality of every image in ImageNet-C."""
BILINEAR = Image.Resampling.BILINEAR


def encode_jpeg(image: Images, quality: int = RELEASE_QUALITY) -> bytes:
    """Return a picture (height, width, 3) as the bytes of a JPEG file, as the release wrote them."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def decode_image(data: bytes) -> Images:
    """Return the pixels (height, width, 3) of an image file's bytes."""
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"))


def read_picture(path: Path, resize: int | None = None, crop: int | None = None) -> Images:
    """Return the pixels (height, width, 3) of an image file; an unreadable one is an error that names it.

    Args:
        path: Any format Pillow reads.
        resize: Bring the shorter side to this length first (bilinear); None leaves the size.
        crop: Cut a centred square of this side; None leaves all.
    """
    try:
        with Image.open(path) as picture:
            rgb = picture.convert("RGB")
    # Pillow answers damaged files with any of these, by format.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FileError(f"{path} cannot be read as an image ({error}).", "Replace or remove it.") from error
    if resize is not None:
        scale = resize / min(rgb.size)
        # Rounding may not take the shorter side below what is then cropped.
        rgb = rgb.resize((max(resize, round(rgb.width * scale)), max(resize, round(rgb.height * scale))), BILINEAR)
    return np.asarray(rgb if crop is None else _centre(rgb, crop, path))


def _centre(picture: Image.Image, side: int, path: Path) -> Image.Image:
    if min(picture.size) < side:
        raise FileError(
            f"{path} is {picture.width}x{picture.height}, smaller than {side} pixels.", "Give images of at least that."
        )
    left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
    return picture.crop((left, top, left + side, top + side))
