"""Every corruption at every severity gives the pixels it gave before.

``python tests/data/test_corruptions_golden.py`` writes the golden file anew, after a change that is meant to change
pixels.
"""

from pathlib import Path

import numpy as np
import pytest
from corruption_loops import synthetic_images

from offsupport.core.files import read_json, sha256_bytes, write_json
from offsupport.data.corruptions import ALL, corrupt, list_corruptions, max_severity

GOLDEN = Path(__file__).with_name("corruptions_golden.json")
ELEMENTWISE = {"gaussian_noise", "shot_noise", "impulse_noise", "brightness", "contrast", "speckle_noise", "saturate"}
ELEMENTWISE |= {"uniform_noise", "coarse_noise", "occlusion", "invert", "thick_strokes", "thin_strokes"}
SHAPES = [name for name, group in list_corruptions().items() if group == "shape"]
CASES = [(name, severity) for name in (*ALL, *SHAPES) for severity in range(1, max_severity(name) + 1)]


def measure(name, severity):
    out = corrupt(synthetic_images(16), name, severity, seed=1)
    if name in ELEMENTWISE:
        return {"sha256": sha256_bytes(out.tobytes())}
    places = np.random.RandomState(0).choice(out.size, 64, replace=False)
    return {
        "mean": round(float(out.mean()), 4),
        "deviation": round(float(out.std()), 4),
        "pixels": " ".join(map(str, out.ravel()[places])),
    }


@pytest.fixture(scope="module")
def golden():
    return read_json(GOLDEN)


def test_the_golden_file_has_every_case(golden):
    assert sorted(golden) == sorted(f"{name}-{severity}" for name, severity in CASES)


@pytest.mark.parametrize(("name", "severity"), CASES)
def test_pixels_are_as_before(name, severity, golden):
    before, now = golden[f"{name}-{severity}"], measure(name, severity)
    if name in ELEMENTWISE:
        assert now == before
        return
    assert now["mean"] == pytest.approx(before["mean"], abs=0.05)
    assert now["deviation"] == pytest.approx(before["deviation"], abs=0.05)
    levels_now, levels_before = ([int(level) for level in case["pixels"].split()] for case in (now, before))
    assert np.abs(np.subtract(levels_now, levels_before)).max() <= 1


if __name__ == "__main__":
    write_json(GOLDEN, {f"{name}-{severity}": measure(name, severity) for name, severity in CASES})
