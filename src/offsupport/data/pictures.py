"""One picture at a time: reading any image file as a viewer shows it, the ImageNet crop, the release's JPEG."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from offsupport.core.errors import FileError
from offsupport.core.escaping import escape
from offsupport.core.files import open_regular
from offsupport.data.dataset import Images

RELEASE_QUALITY = 85
"""JPEG quality of every image in ImageNet-C."""
BILINEAR = Image.Resampling.BILINEAR
MOST_PIXELS = 1 << 26
"""A picture may have so many pixels (8192 x 8192), in its file and after resizing: a few hundred megabytes."""
MOST_BYTES = 8 * MOST_PIXELS
"""A file may have so many bytes: no picture of so many pixels needs more."""
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What is read, whatever a file is called: Pillow hands some other formats to programs of their own."""
_WHITE = "white"
_TURNS = {
    2: (Image.Transpose.FLIP_LEFT_RIGHT,),
    3: (Image.Transpose.ROTATE_180,),
    4: (Image.Transpose.FLIP_TOP_BOTTOM,),
    5: (Image.Transpose.TRANSPOSE,),
    6: (Image.Transpose.ROTATE_270,),
    7: (Image.Transpose.TRANSVERSE,),
    8: (Image.Transpose.ROTATE_90,),
}
"""How a camera was held, by its number in EXIF, and what puts the picture upright."""
_BITS, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
"""Tags of TIFF, and the value that stands for black on white."""


class Picture(NamedTuple):
    """A picture as a viewer shows it.

    Args:
        pixels: (height, width, 3).
        animated: Whether the file has more frames or pages; this is the first.
    """

    pixels: Images
    animated: bool


def picture_problem(path: Path, size: tuple[int, int]) -> str:
    """Return what is wrong with an image file, or nothing; a JPEG is decoded no larger than need be for ``size``."""
    try:
        with _naming(str(path)), open_regular(path) as file:
            picture = _opened(file, os.fstat(file.fileno()).st_size)
            picture.draft("RGB", size)  # the whole file is read, in less time
            picture.load()
    except FileError as error:
        return error.message.removeprefix(f"{escape(path)} ").rstrip(".")
    return ""


def encode_jpeg(image: Images, quality: int = RELEASE_QUALITY) -> bytes:
    """Return a picture (height, width, 3) as the bytes of a JPEG file, as the release wrote them."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def decode_image(data: bytes, resize: int | None = None, crop: int | None = None, *, name: str = "The image") -> Images:
    """Return the pixels (height, width, 3) of an image file's bytes, as :func:`read_picture` does; errors name it."""
    return _read(io.BytesIO(data), len(data), name, resize, crop).pixels


def measure_image(data: bytes, *, name: str = "The image") -> tuple[int, int]:
    """Return width and height that an image file's bytes say it has, before anything of it is decoded."""
    with _naming(name):
        return _opened(io.BytesIO(data), len(data)).size


def read_picture(path: Path, resize: int | None = None, crop: int | None = None, *, upright: bool = True) -> Images:
    """Return the pixels (height, width, 3) of an image file; an unreadable one is an error that names it.

    Args:
        path: A regular file of one of :data:`FORMATS`.
        resize: Bring the shorter side to this length first (bilinear); None leaves the size.
        crop: Cut a centred square of this side; None leaves all.
        upright: Turn it as the camera noted; data sets whose published readers do not are read as those do.
    """
    return open_picture(path, resize, crop, upright=upright).pixels


def open_picture(path: Path, resize: int | None = None, crop: int | None = None, *, upright: bool = True) -> Picture:
    """Return a picture as :func:`read_picture` does, and whether its file has more of them."""
    with _naming(str(path)), open_regular(path) as file:
        return _read(file, os.fstat(file.fileno()).st_size, str(path), resize, crop, upright)


def _read(file: IO[bytes], size: int, name: str, resize: int | None, crop: int | None, upright: bool = True) -> Picture:
    with _naming(name):
        opened = _opened(file, size)
        rgb = _as_shown(opened, upright)
        animated = _has_more(opened)
        rgb = rgb if resize is None else _resized(rgb, resize, name)
        return Picture(np.asarray(rgb if crop is None else _centre(rgb, crop, name)), animated)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn whatever goes wrong with a file into an error that names it."""
    try:
        yield
    except FileError as error:
        raise FileError(escape(error.message), error.remedy) from error
    # Pillow answers damaged files with nearly any error, by format; none may end a stream of thousands.
    except Exception as error:
        why = escape(error) or type(error).__name__
        raise FileError(f"{escape(name)} cannot be read as an image ({why}).", "Replace or remove it.") from error


def _opened(file: IO[bytes], size: int) -> Image.Image:
    """Return a picture of which only the head was read, if the rest is small enough to be."""
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than {MOST_BYTES:,}")
    try:
        picture = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"it is none of {', '.join(FORMATS)}") from None
    if picture.width * picture.height > MOST_PIXELS:
        raise ValueError(f"it has {picture.width}x{picture.height} pixels, more than {MOST_PIXELS:,}")
    return picture


def _as_shown(picture: Image.Image, upright: bool = True) -> Image.Image:
    """Return the first frame upright, in 8-bit colours; what is transparent shows white paper."""
    turns = _turns(picture) if upright else ()
    if picture.mode.startswith(("I", "F")):
        rgb = Image.fromarray(_levels(picture)).convert("RGB")
    elif picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        rgb = Image.new("RGB", rgba.size, _WHITE)
        rgb.paste(rgba, mask=rgba.getchannel("A"))
    else:
        rgb = picture.convert("RGB")
    for turn in turns:
        rgb = rgb.transpose(turn)
    return rgb


def _has_more(picture: Image.Image) -> bool:
    """Tell whether a second frame or page follows; the small copy that phones put into their photographs is none."""
    if picture.format == "MPO":
        return False
    try:
        picture.seek(1)
    except EOFError:
        return False
    except Exception:  # there is one, and it is damaged: that is no matter of the first
        return True
    return True


def _turns(picture: Image.Image) -> tuple[Image.Transpose, ...]:
    """Return what puts a picture upright; notes of a camera that are damaged turn nothing, as in viewers."""
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        return ()  # Pillow turns these itself
    try:
        return _TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1), ())
    except Exception:  # as for pictures, nearly any error; the picture itself is whole
        return ()


def _levels(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the 8-bit levels of a grey picture that has more; a range that nobody wrote down is refused."""
    picture.load()
    values: npt.NDArray[Any] = np.asarray(picture)
    tags = picture.tag_v2 if isinstance(picture, TiffImagePlugin.TiffImageFile) else {}
    if picture.mode == "F":
        low, high = float(values.min()), float(values.max())
        if not (low >= -1e-6 and high <= 1 + 1e-6):  # also refuses NaN
            raise ValueError(f"its pixels are floating-point numbers from {low:g} to {high:g}, not from 0 to 1")
        levels = np.rint(np.clip(values, 0, 1) * np.float32(255))
    elif picture.mode.startswith("I;16") or not tags:  # 32-bit numbers come from PNG and PGM of 16 bits, too
        bits = tags.get(_BITS, (16,))[0]
        # The high byte, as Pillow reads colours of 16 bits.
        levels = np.clip(values, 0, (1 << bits) - 1) >> (bits - 8)
    else:
        raise ValueError("its pixels are 32-bit integers, whose black and white are not known; save 8 or 16 bits")
    shown: npt.NDArray[np.uint8] = (255 - levels if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else levels).astype("u1")
    return shown


def _resized(picture: Image.Image, side: int, name: str) -> Image.Image:
    scale = side / min(picture.size)
    # Rounding may not take the shorter side below what is then cropped.
    width, height = max(side, round(picture.width * scale)), max(side, round(picture.height * scale))
    if width * height > MOST_PIXELS:
        raise FileError(
            f"{escape(name)} is {picture.width}x{picture.height}; with {side} pixels along its shorter side it would "
            f"have {width}x{height}, more than {MOST_PIXELS:,}.",
            "Replace or remove it.",
        )
    return picture.resize((width, height), BILINEAR)


def _centre(picture: Image.Image, side: int, name: str) -> Image.Image:
    if min(picture.size) < side:
        raise FileError(
            f"{escape(name)} is {picture.width}x{picture.height}, smaller than {side} pixels.",
            "Give images of at least that.",
        )
    left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
    return picture.crop((left, top, left + side, top + side))
