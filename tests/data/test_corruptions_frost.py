"""Frost textures, synthesised and official, and the contact sheet."""

import numpy as np
import pytest
from corruption_loops import synthetic_images
from PIL import Image

from offsupport.core.errors import ConfigError, DataMissingError, FileError, InputError
from offsupport.data import contact_sheet
from offsupport.data.corruptions import ALL, corrupt
from offsupport.data.corruptions.weather import PALETTES, synthetic, textures


@pytest.fixture
def official_folder(tmp_path):
    """A folder in the official layout: flat colours, so that a cut tells which texture it is from."""
    sizes = {"frost1.png": (900, 600), "frost2.png": (560, 315), "frost4.jpg": (527, 350), "frost5.jpg": (660, 495)}
    for number, (name, size) in enumerate(sizes.items()):
        mode = "RGBA" if name.endswith("png") else "RGB"
        colour = (50 * number + 20,) * 3 + (255,) * (mode == "RGBA")
        Image.new(mode, size, colour).save(tmp_path / name)
    return tmp_path


def test_synthesised_textures_have_the_colours_of_the_official_ones():
    for texture, (mean, std) in zip(synthetic(), PALETTES, strict=True):
        assert texture.shape == (512, 512, 3)
        np.testing.assert_allclose(texture.mean(axis=(0, 1)), mean, atol=2.5)
        np.testing.assert_allclose(texture.std(axis=(0, 1)), std, atol=2.5)


def test_synthesised_textures_have_structure_at_all_scales():
    """Power falls with frequency as in natural textures: neither white noise (0) nor smooth patches alone (-3)."""
    for texture in synthetic():
        field = texture[..., 1].astype(float)
        power = np.abs(np.fft.fft2(field - field.mean())) ** 2
        frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(512), np.fft.fftfreq(512))).ravel()
        bins = np.geomspace(2 / 512, 0.4, 15)
        total = np.histogram(frequency, bins, weights=power.ravel())[0] / np.histogram(frequency, bins)[0]
        slope = np.polyfit(np.log(bins[:-1]), np.log(total), 1)[0]
        assert -2.5 < slope < -1


def test_small_scales_take_every_fifth_pixel(official_folder):
    full, small = synthetic(), textures(None, 0.2)
    np.testing.assert_array_equal(small[0], full[0][2::5, 2::5])
    shapes = [texture.shape[:2] for texture in textures(str(official_folder), 0.2)]
    assert shapes == [(120, 180), (63, 112), (63, 112), (70, 105), (99, 132)]


def test_official_textures_are_used_with_their_weights(official_folder):
    black = np.zeros((2000, 32, 32, 3), np.uint8)
    levels = corrupt(black, "frost", 5, frost_dir=official_folder)[:, 5, 5, 0]
    shares = [np.isclose(levels, 0.45 * (50 * number + 20), atol=1.5).mean() for number in range(4)]
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.2, 0.2], atol=0.04)


def test_large_images_repeat_textures_that_are_too_small(official_folder):
    out = corrupt(np.zeros((5, 400, 400, 3), np.uint8), "frost", 3, frost_dir=official_folder)
    assert (out > 0).all()


def test_incomplete_or_damaged_folders_are_named(official_folder):
    (official_folder / "frost4.jpg").unlink()
    with pytest.raises(DataMissingError, match=r"frost4\.jpg"):
        corrupt(synthetic_images(1), "frost", frost_dir=official_folder)
    (official_folder / "frost4.jpg").write_bytes(b"not a picture")
    with pytest.raises(FileError, match=r"frost4\.jpg"):
        corrupt(synthetic_images(1), "frost", frost_dir=official_folder)


def test_contact_sheet_has_a_row_per_corruption_and_a_column_per_severity():
    images = synthetic_images(2)
    sheet = np.asarray(contact_sheet(images, ["contrast", "impulse_noise"], [1, 5, 10], size=64, seed=3))
    rows, columns = sheet.shape[0] - 2 * 68, sheet.shape[1] - 4 * 68

    def cell(row, column):
        top, left = rows + 68 * row, columns + 68 * column
        return sheet[top : top + 64 : 2, left : left + 64 : 2]

    np.testing.assert_array_equal(cell(0, 0), images[0])
    np.testing.assert_array_equal(cell(1, 0), images[1])
    np.testing.assert_array_equal(cell(0, 2), corrupt(images[:1], "contrast", 5, seed=3)[0])
    np.testing.assert_array_equal(cell(1, 3), corrupt(images[1:], "impulse_noise", 10, seed=3, index=[1])[0])
    assert (cell(0, 3) == 255).all()  # contrast has no severity 10


def test_contact_sheet_of_everything_and_of_blocks():
    whole, limited = contact_sheet(synthetic_images(1), size=32), contact_sheet(synthetic_images(1), size=32, block=8)
    assert whole.size == limited.size
    assert whole.size[1] > len(ALL) * 32
    assert (np.asarray(whole) != np.asarray(limited)).any()


def test_contact_sheet_of_nothing_or_of_unknown_names_is_refused():
    with pytest.raises(InputError, match="at least one"):
        contact_sheet(synthetic_images(0))
    with pytest.raises(ConfigError, match="Did you mean 'fog'"):
        contact_sheet(synthetic_images(1), ["fogg"])
