"""What every data set is: rows of uint8 images that are read when asked for, their labels, and a hash of both."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from offsupport.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Images: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Sequence[int] | npt.NDArray[np.int64]
Source: TypeAlias = Literal["files", "generated", "memory"]

_HASH_ROWS = 4096
"""Read at a time for a hash: a data set need not fit into memory."""


class Dataset(ABC):
    """Images and labels in a fixed order.

    Args:
        name: What it is called in results.
        labels: One class number per row; -1 where there is none.
        classes: Class names, in the order of their numbers.
    """

    source: Source = "files"
    """Where the pixels come from: read from files, generated on the fly, or handed over in memory."""

    def __init__(self, name: str, labels: npt.ArrayLike, classes: Sequence[str] = ()) -> None:
        self.name = name
        self.labels: Labels = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(classes)

    @abstractmethod
    def images(self, indices: Rows) -> Images:
        """Return these rows as a uint8 array (rows, height, width, 3)."""

    def tensor(self, indices: Rows) -> Tensor:
        """Return these rows as a float32 tensor (rows, 3, height, width) in [0, 1]."""
        import torch

        return torch.from_numpy(self.images(indices)).permute(0, 3, 1, 2).contiguous().float().div_(255)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = self.images([0]).shape[1:3]
        return int(height), int(width)

    @cached_property
    def sha256(self) -> str:
        """Hash of the data: by default of the pixels, their shape and the labels (see the docs of each kind)."""
        return self._hash()

    def _hash(self) -> str:
        sha = hashlib.sha256()
        for start in range(0, len(self), _HASH_ROWS):
            block = self.images(np.arange(start, min(start + _HASH_ROWS, len(self))))
            if start == 0:
                sha.update(repr(block.shape[1:]).encode())
            sha.update(np.ascontiguousarray(block).data)
        # After the pixels, as 64-bit numbers: a hash must not tell the type that labels were stored in.
        sha.update(little_endian(self.labels))
        return sha.hexdigest()

    def facts(self) -> dict[str, Any]:
        """What a result must state about this data, as plain JSON values."""
        return {"dataset": self.name, "source": self.source, "sha256": self.sha256, "rows": len(self)}


class Arrays(Dataset):
    """A pair of arrays in memory: uint8 NHWC, or float NCHW in [0, 1] as a tensor or an array."""

    source: Source = "memory"

    def __init__(
        self,
        images: npt.ArrayLike | Tensor,
        labels: npt.ArrayLike | Tensor,
        classes: Sequence[str] = (),
        name: str = "arrays",
    ) -> None:
        super().__init__(name, np.asarray(labels), classes)
        pixels = np.asarray(images)
        if pixels.ndim != 4 or len(pixels) != len(self.labels):
            raise InputError(
                f"Got images of shape {pixels.shape} and {len(self.labels)} labels.",
                "Give uint8 images (n, height, width, 3) or float images (n, 3, height, width), and n labels.",
            )
        # Floats are kept as they came: rounding them to 256 levels is for corruptions, which need bytes.
        self._uint8 = pixels if pixels.dtype == np.uint8 else None
        self._float = None if pixels.dtype == np.uint8 else _unit_float(pixels)
        if self._uint8 is not None and pixels.shape[-1] != 3:
            raise InputError(f"The uint8 images have shape {pixels.shape}.", "The last axis must hold 3 channels.")

    def images(self, indices: Rows) -> Images:
        """Return these rows as uint8 NHWC; float images are rounded to 256 levels."""
        rows = np.asarray(indices, dtype=np.int64)
        if self._uint8 is not None:
            return cast("Images", self._uint8[rows])
        assert self._float is not None  # noqa: S101 - one of the two is set
        return np.asarray(np.rint(self._float[rows].transpose(0, 2, 3, 1) * 255), dtype=np.uint8)

    def tensor(self, indices: Rows) -> Tensor:
        """Return these rows as float32 NCHW in [0, 1]; float images come back as they were given."""
        if self._float is None:
            return super().tensor(indices)
        import torch

        return torch.from_numpy(self._float[np.asarray(indices, dtype=np.int64)])

    def _hash(self) -> str:
        if self._float is None:
            return super()._hash()
        sha = hashlib.sha256(repr(self._float.shape).encode())
        sha.update(np.ascontiguousarray(self._float, dtype="<f4").data)
        sha.update(little_endian(self.labels))
        return sha.hexdigest()


def _unit_float(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if not np.issubdtype(pixels.dtype, np.floating):
        raise InputError(f"The images are of type {pixels.dtype}.", "Give uint8 NHWC, or floats NCHW in [0, 1].")
    low, high = (float(pixels.min()), float(pixels.max())) if pixels.size else (0.0, 0.0)
    if not (low >= 0.0 and high <= 1.0):  # also refuses NaN
        raise InputError(
            f"The float images range over [{low:g}, {high:g}].",
            "Give values in [0, 1]; normalisation belongs to the model (offsupport.nn.Normalized).",
        )
    return np.ascontiguousarray(pixels, dtype=np.float32)


def little_endian(values: npt.ArrayLike) -> bytes:
    """Return integers as little-endian int64 bytes, the same on every machine, for hashing."""
    return np.ascontiguousarray(values, dtype="<i8").tobytes()
