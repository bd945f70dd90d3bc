"""The embedded data set: the 1,797 handwritten digits inside scikit-learn, as 32x32 RGB images.

Each 8x8 image with 17 grey levels is enlarged four times by cubic convolution (Keys, 1981, a = -1/2; edges repeated),
rounded to 256 levels and repeated over three channels. All weights are dyadic fractions, so the pixels are the same on
every machine. A fixed third of each class is the test split.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from offsupport.core.errors import ConfigError, nearest
from offsupport.core.seeds import derive_seed
from offsupport.data.dataset import Arrays, Images, Labels

SIDE = 32
CLASSES = tuple(str(digit) for digit in range(10))


class Digits(Arrays):
    """One split of the embedded digits (about 1,200 to train, 600 to test)."""

    source = "files"
    SPLITS = ("train", "test", "all")

    def __init__(self, split: str = "test") -> None:
        pixels, labels, is_test = _load()
        if split not in self.SPLITS:
            raise ConfigError(f"digits has no split {split!r}.", nearest(split, self.SPLITS))
        keep = {"train": ~is_test, "test": is_test, "all": np.ones_like(is_test)}[split]
        super().__init__(pixels[keep], labels[keep], CLASSES, "digits")


@lru_cache(maxsize=1)
def _load() -> tuple[Images, Labels, npt.NDArray[np.bool_]]:
    from sklearn.datasets import load_digits

    raw, labels = load_digits(return_X_y=True)
    enlarge = _cubic_weights(8, SIDE)
    grey = np.rint(enlarge @ raw.reshape(-1, 8, 8) @ enlarge.T * (255 / 16)).clip(0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1), labels.astype(np.int64), _test_mask(labels)


def _cubic_weights(n_in: int, n_out: int) -> npt.NDArray[np.float64]:
    """Return the (n_out, n_in) matrix that enlarges a row of pixels by cubic convolution with a = -1/2."""
    centre = (np.arange(n_out) + 0.5) * n_in / n_out - 0.5
    weights = np.zeros((n_out, n_in))
    for tap in range(-1, 3):
        at = np.floor(centre).astype(int) + tap
        t = np.abs(centre - at)
        near = 1.5 * t**3 - 2.5 * t**2 + 1
        far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
        np.add.at(weights, (np.arange(n_out), at.clip(0, n_in - 1)), np.where(t <= 1, near, far))
    return weights


def _test_mask(labels: Labels) -> npt.NDArray[np.bool_]:
    # Class by class, so that both splits have the same share of each digit.
    rng = np.random.default_rng(derive_seed("digits split"))
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = rng.permutation(np.flatnonzero(labels == digit))
        is_test[members[: round(len(members) / 3)]] = True
    return is_test
