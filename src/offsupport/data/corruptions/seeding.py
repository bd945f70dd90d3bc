"""One random stream per image: a hash of what is drawn for which image, and of nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from offsupport.core.seeds import derive_seed


class Streams:
    """Random draws for a batch of images, each image from streams of its own.

    Every named draw ("field", "angle", ...) of every image starts its own stream. The start is a hash of ``key``, the
    name of the draw and the id of the image, so neither the batch an image is in nor any earlier draw changes it.

    Args:
        key: What the draws are for, for example the corruption, its severity and the user's seed.
        index: (N,) ids of the images.

    Example:
        >>> both = Streams("snow", 5, 0, index=np.array([7, 8])).normal("field", 2)
        >>> alone = Streams("snow", 5, 0, index=np.array([8])).normal("field", 2)
        >>> bool((both[1] == alone[0]).all())
        True
    """

    def __init__(self, *key: int | str, index: NDArray[np.int64]) -> None:
        self.key = key
        self.index = index
        self._rows = slice(None)
        self._states: dict[str, NDArray[np.uint64]] = {}  # by draw, for the whole index: parts share it
        self._bits = SFC64(0)
        self._generator = Generator(self._bits)
        self._state = self._bits.state

    def __len__(self) -> int:
        return len(self.index[self._rows])

    def part(self, rows: slice) -> Streams:
        """Return the streams of some of the images, counted from the first of all."""
        part = copy.copy(self)
        part._rows = rows
        return part

    def normal(self, draw: str, *shape: int) -> NDArray[np.float32]:
        """Return (N, *shape) standard normal numbers."""
        out = np.empty((len(self), *shape), np.float32)
        for row, generator in self._generators(draw):
            generator.standard_normal(out=out[row], dtype=np.float32)
        return out

    def uniform(self, draw: str, *shape: int) -> NDArray[np.float32]:
        """Return (N, *shape) numbers uniform in [0, 1)."""
        out = np.empty((len(self), *shape), np.float32)
        for row, generator in self._generators(draw):
            generator.random(out=out[row], dtype=np.float32)
        return out

    def integers(self, draw: str, low: int, high: int, *shape: int) -> NDArray[np.int8]:
        """Return (N, *shape) small integers uniform in [low, high)."""
        out = np.empty((len(self), *shape), np.int8)
        for row, generator in self._generators(draw):
            out[row] = generator.integers(low, high, size=shape, dtype=np.int8)
        return out

    def poisson(self, draw: str, mean: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return Poisson counts with the given means, whose first axis is the images."""
        out = np.empty(mean.shape, np.int64)
        for row, generator in self._generators(draw):
            out[row] = generator.poisson(mean[row])
        return out

    def _generators(self, draw: str) -> Iterator[tuple[int, Generator]]:
        """Yield each row with a generator at the start of its stream.

        One generator serves all rows: setting its state costs a fraction of constructing one. SFC64 is numpy's fastest
        generator, and any 192 hashed bits are a good state of it.
        """
        if draw not in self._states:
            self._states[draw] = _states(self.index, *self.key, draw)
        state = self._state
        for row, words in enumerate(self._states[draw][self._rows]):
            state["state"]["state"] = words
            self._bits.state = state
            yield row, self._generator


def _states(index: NDArray[np.int64], *key: int | str) -> NDArray[np.uint64]:
    """Return (N, 4) SFC64 states: three hashed words, different for different ids, and the counter at one."""
    keys = np.array([derive_seed(*key, word) for word in range(4)], np.uint64)
    mixed = _mix(index.astype(np.uint64) ^ keys[0])
    words = _mix(mixed[:, None] + keys[None, 1:])
    return np.concatenate([words, np.ones((len(index), 1), np.uint64)], axis=1)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit words one to one (the finaliser of SplitMix64; Steele, Lea & Flood, OOPSLA 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))
