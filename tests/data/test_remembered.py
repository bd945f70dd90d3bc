"""Corrupted images that are kept: the same pixels and facts, made once, within the room there is."""

import numpy as np
import pytest

from offsupport.data import Arrays, load, remembered
from offsupport.data.corrupted import Corrupted
from offsupport.data.remembered import Remembered


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    found = type(remembered._KEPT)()
    monkeypatch.setattr(remembered, "_KEPT", found)
    return found


def counted(data, monkeypatch):
    """Return a list that grows by the rows that are made."""
    made, images = [], Corrupted.images

    def counting(self, rows):
        made.extend(np.asarray(rows).tolist())
        return images(self, rows)

    monkeypatch.setattr(Corrupted, "images", counting)
    return made


def test_rows_are_the_same_pixels_whoever_asks_and_are_made_once(monkeypatch):
    plain = load("digits-c", corruption="gaussian_noise")
    made = counted(plain, monkeypatch)
    rows = [5, 2, 5, 9]
    expected = plain.images(rows)
    made.clear()
    assert np.array_equal(Remembered(plain).images(rows), expected)
    again = Remembered(load("digits-c", corruption="gaussian_noise"))
    made.clear()
    assert np.array_equal(again.images([9, 2, 7]), plain.images([9, 2, 7]))
    assert made == [7, 9, 2, 7], "one that is new, and those of the plain data set"
    assert again.images([]).shape == (0, 32, 32, 3)
    assert again.facts() == plain.facts()
    assert again.sha256 == plain.sha256
    assert again.source == "generated"


def test_data_that_differ_are_not_mixed_up():
    few = Arrays(np.arange(4 * 192, dtype=np.uint8).reshape(4, 8, 8, 3), [0, 1, 0, 1])
    sets = [Corrupted(few, name, level) for name, level in (("fog", 1), ("fog", 5), ("contrast", 5))]
    sets.append(Corrupted(few, "fog", 5, seed=1))
    for each in sets:
        assert np.array_equal(Remembered(each).images([0, 3]), each.images([0, 3]))


def test_what_was_asked_for_last_stays(monkeypatch, kept):
    monkeypatch.setattr(remembered, "ROOM", 10 * 32 * 32 * 3)
    fog, noise = (Remembered(load("digits-c", corruption=name)) for name in ("fog", "gaussian_noise"))
    fog.images(range(6))
    noise.images(range(4))
    assert list(kept) == [fog.sha256, noise.sha256]
    noise.images(range(5))
    assert list(kept) == [noise.sha256]
    assert len(fog.images(range(20))) == 20, "more than there is room for is still given"
    assert not kept


def test_what_somebody_does_to_his_images_is_nobody_elses():
    kept = Remembered(load("digits-c", corruption="fog"))
    first = kept.images([0, 1])
    before = first.copy()
    first[:] = 0
    assert np.array_equal(kept.images([0, 1]), before)


def test_rows_that_cannot_be_made_leave_the_others_as_they_were():
    kept = Remembered(load("digits-c", corruption="fog"))
    before = kept.images([0])
    with pytest.raises(IndexError):
        kept.images([0, 10**6])
    assert np.array_equal(kept.images([0]), before)
