"""Pictures of every kind are read as a viewer shows them, and hostile ones are refused before they cost anything."""

import contextlib
import io
import os
import socket
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from offsupport.core.errors import FileError
from offsupport.data.folders import IMAGENET100, open_imagenet
from offsupport.data.pictures import MOST_BYTES, decode_image, open_picture, read_picture

RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


def write_png(path, width, height):
    """Write a PNG that says how large it is, and has few bytes whatever that is."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * (width + 1))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


@pytest.mark.parametrize("kind", ["png", "tif", "ppm"])
def test_sixteen_bits_keep_their_levels(tmp_path, kind):
    Image.fromarray(RAMP).save(tmp_path / f"x.{kind}")
    assert np.array_equal(read_picture(tmp_path / f"x.{kind}"), np.repeat(RAMP[..., None] >> 8, 3, axis=2))


def test_white_may_be_zero_and_bits_may_be_twelve(tmp_path):
    Image.fromarray(RAMP).save(tmp_path / "x.tif", tiffinfo={262: 0})
    assert np.array_equal(read_picture(tmp_path / "x.tif")[..., 0], 255 - (RAMP >> 8))
    packed = np.array([0xFFF, 0x800], dtype=np.uint16)
    data = bytes([packed[0] >> 4, (packed[0] & 15) << 4 | packed[1] >> 8, packed[1] & 255])
    tags = [(256, 4, 2), (257, 4, 1), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (279, 4, 3)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<I", 12) + data + b"\0"
    (tmp_path / "y.tif").write_bytes(head + struct.pack("<H", len(tags)) + entries + b"\0\0\0\0")
    assert read_picture(tmp_path / "y.tif")[0, :, 0].tolist() == [255, 128]


def test_floating_point_from_0_to_1_is_read_and_all_else_refused(tmp_path):
    levels = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    Image.fromarray(levels).save(tmp_path / "x.tif")
    assert read_picture(tmp_path / "x.tif")[..., 0].ravel().tolist() == list(range(256))
    for name, values in {"large": levels * 255, "nan": levels * np.nan, "negative": levels - 0.5}.items():
        Image.fromarray(values).save(tmp_path / f"{name}.tif")
        with pytest.raises(FileError, match=rf"{name}\.tif cannot be read.*not from 0 to 1"):
            read_picture(tmp_path / f"{name}.tif")
    Image.fromarray((levels * 1e6).astype(np.int32)).save(tmp_path / "whole.tif")
    with pytest.raises(FileError, match="32-bit integers"):
        read_picture(tmp_path / "whole.tif")


def test_what_is_transparent_is_white(tmp_path):
    half = np.zeros((2, 1, 4), np.uint8)
    half[..., 0], half[0, ..., 3], half[1, ..., 3] = 200, 255, 0
    expected = [[200, 0, 0], [255, 255, 255]]
    for kind in ("png", "tif"):
        Image.fromarray(half).save(tmp_path / f"x.{kind}")
        assert read_picture(tmp_path / f"x.{kind}")[:, 0].tolist() == expected
    Image.fromarray(half).convert("LA").save(tmp_path / "grey.png")
    assert read_picture(tmp_path / "grey.png")[:, 0].tolist() == [[60] * 3, [255] * 3]
    palette = Image.new("P", (1, 2))
    palette.putpalette([200, 0, 0, 0, 0, 0])
    palette.putpixel((0, 1), 1)
    for kind in ("png", "gif"):
        palette.save(tmp_path / f"palette.{kind}", transparency=1)
        assert read_picture(tmp_path / f"palette.{kind}")[:, 0].tolist() == expected
    keyed = Image.fromarray(half[..., :3])
    keyed.putpixel((0, 1), (1, 2, 3))
    keyed.save(tmp_path / "keyed.png", transparency=(1, 2, 3))
    assert read_picture(tmp_path / "keyed.png")[:, 0].tolist() == expected


def test_colours_of_print_and_of_palettes(tmp_path):
    green = Image.new("RGB", (8, 8), (10, 200, 30))
    green.convert("CMYK").save(tmp_path / "print.jpg", quality=100)
    green.quantize(4).save(tmp_path / "palette.png")
    for name in ("print.jpg", "palette.png"):
        assert np.abs(read_picture(tmp_path / name).astype(int) - (10, 200, 30)).max() <= 2


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "tif", "webp"])
def test_a_photograph_is_upright(tmp_path, kind, turn):
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = turn
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8))
    path = tmp_path / f"x.{kind}"
    picture.save(path, exif=about)
    with Image.open(path) as stored:
        assert np.array_equal(read_picture(path), np.asarray(ImageOps.exif_transpose(stored).convert("RGB")))


def test_imagenet_is_read_as_its_published_readers_do(tmp_path):
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = 6
    for name in IMAGENET100:
        (tmp_path / "val" / name).mkdir(parents=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8))
    path = tmp_path / "val" / IMAGENET100[0] / "x.JPEG"
    picture.save(path, exif=about)
    found = open_imagenet(tmp_path, "test", IMAGENET100, "imagenet100")
    assert np.array_equal(found.read(0), np.asarray(Image.open(io.BytesIO(path.read_bytes())))[16:240, 16:240])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_notes_of_a_camera_turn_nothing(tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_picture(tmp_path / "x.jpg").shape == (2, 4, 3)


def test_the_first_of_several_frames_is_read_and_the_file_says_so(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("gif", "png", "tif", "webp"):
        frames[0].save(tmp_path / f"x.{kind}", save_all=True, append_images=frames[1:])
        pixels, animated = open_picture(tmp_path / f"x.{kind}")
        assert animated
        assert np.abs(pixels[0, 0].astype(int) - (255, 0, 0)).max() <= 1
        frames[0].save(tmp_path / f"one.{kind}")
        assert not open_picture(tmp_path / f"one.{kind}").animated
    frames[0].save(tmp_path / "phone.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert not open_picture(tmp_path / "phone.jpg").animated


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("shape", [(60000, 60000), (9000, 9000)])
def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path, shape):
    write_png(tmp_path / "x.png", *shape)
    with pytest.raises(FileError, match=r"x\.png cannot be read as an image \(.*pixels"):
        read_picture(tmp_path / "x.png")


def test_what_resizing_would_make_is_limited_too(tmp_path):
    write_png(tmp_path / "x.png", 60000, 1)
    assert read_picture(tmp_path / "x.png").shape == (1, 60000, 3)
    with pytest.raises(
        FileError, match="is 60000x1; with 224 pixels along its shorter side it would have 13440000x224"
    ):
        read_picture(tmp_path / "x.png", 224, 224)


def test_a_file_that_no_picture_needs_is_refused(tmp_path):
    write_png(tmp_path / "x.png", 1, 1)
    os.truncate(tmp_path / "x.png", MOST_BYTES + 1)  # takes no place on the disk
    with pytest.raises(FileError, match="bytes, more than"):
        read_picture(tmp_path / "x.png")


def test_formats_that_pillow_hands_to_other_programs_are_refused(tmp_path):
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(FileError, match="it is none of JPEG, PNG"):
        read_picture(tmp_path / "x.png")


@pytest.mark.skipif(sys.platform == "win32", reason="makes pipes and sockets in folders")
def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "link.png").symlink_to(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    kinds = {"pipe": "named pipe", "device": "device", "link": "named pipe", "folder": "folder"}
    for name, kind in kinds.items():
        with pytest.raises(FileError, match=rf"{name}\.png is a {kind}, not a file"):
            read_picture(tmp_path / f"{name}.png")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)  # names of sockets are short
        bound.bind("s.png")
        with pytest.raises(FileError, match="is a socket"):
            read_picture(tmp_path / "s.png")


def test_bytes_are_read_as_files_are():
    buffer = io.BytesIO()
    Image.fromarray(RAMP).save(buffer, "PNG")
    assert np.array_equal(decode_image(buffer.getvalue())[..., 0], RAMP >> 8)
    assert decode_image(buffer.getvalue(), 32, 16).shape == (16, 16, 3)
    with pytest.raises(FileError, match=r"The image cannot be read"):
        decode_image(b"no image")
    with pytest.raises(FileError, match=r"^up\\x1b cannot be read"):
        decode_image(b"no image", name="up\x1b")


@pytest.mark.filterwarnings("ignore")
def test_no_damage_gets_through_as_another_error(tmp_path):
    buffers = {}
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        buffers[kind] = np.frombuffer(buffer.getvalue(), np.uint8)
    draw = np.random.default_rng(1)
    for data in buffers.values():
        for _ in range(40):
            broken = data.copy()
            broken[draw.integers(0, min(len(broken), 200), 3)] = draw.integers(0, 256, 3)
            with contextlib.suppress(FileError):
                decode_image(broken[: draw.integers(1, len(broken) + 1)].tobytes())
