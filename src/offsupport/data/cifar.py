"""CIFAR-10 and CIFAR-100 from their Python batches, and the corrupted sets from their .npy files."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from offsupport.core.errors import ConfigError, DataMissingError, FileError, nearest
from offsupport.data.dataset import Arrays, Dataset, Images, Labels, Rows
from offsupport.data.stored import open_npy, require_intact

# Reading the pickles of CIFAR without running anything in them.
#
# A pickle is a program: it names functions and calls them. This reader knows six names, those that NumPy arrays and
# bytes are written with, and answers each with a stand-in of ours that only keeps data; any other name ends the
# reading. No function of NumPy is ever called with arguments from the file, and the stand-ins cannot be altered by
# it.


_DTYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_REFUSED_OPCODES = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}
_BIG_MEMO = {"PUT", "LONG_BINPUT"}


def read_pickle(path: Path) -> Any:
    """Return the content of a pickle made of numbers, text, bytes, containers and integer arrays; refuse any other.

    Text written by Python 2 comes as bytes.
    """
    data = path.read_bytes()
    try:
        _scan(data)
        return _arrays(_Reader(io.BytesIO(data), encoding="bytes").load())
    except _Refused as error:
        raise FileError(
            f"{path} is not a CIFAR batch: it holds {error}; nothing in it was executed.",
            "Do not use this file; get the data set again from its official source.",
        ) from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise FileError(
            f"{path} is not a readable pickle ({type(error).__name__}: {error}).", "Unpack the official archive again."
        ) from error


class _Refused(Exception):  # noqa: N818 - says what was found
    """What was found in the file that has no place there."""


def _scan(data: bytes) -> None:
    """Walk through the opcodes without acting on them: refuse object-making ones and memo indices that eat memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _REFUSED_OPCODES:
            raise _Refused(f"the instruction {opcode.name}")
        if opcode.name in _BIG_MEMO and int(argument or 0) > len(data):
            raise _Refused(f"a memo index of {argument}")


class _Array:
    """Stands in for an array until its content is known."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: npt.NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, content = state
        self.value = _array(content, dtype, shape, "F" if fortran else "C")


class _Dtype:
    """Stands in for an integer dtype."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order not in ("|", "<", ">", "="):
            raise _Refused(f"the byte order {order!r}")
        self.order = order


class _StandIn:
    """Answers a name in the file; can be called or handed over, and keeps no state a file could change."""

    __slots__ = ("_call",)
    _call: Callable[..., Any] | None

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        if self._call is None:
            raise _Refused("a call of numpy.ndarray")
        return self._call(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _Refused("an attempt to change the reader")

    def __setstate__(self, state: Any) -> None:
        raise _Refused("an attempt to change the reader")


def _reconstruct(_kind: Any, _shape: Any, _code: Any) -> _Array:
    return _Array()


def _dtype(code: Any, *_flags: Any) -> _Dtype:
    text = _text(code)
    if text not in _DTYPES:
        raise _Refused(f"an array of type {text!r}")
    return _Dtype(text)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.value = _array(content, dtype, shape, _text(order))
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes at protocol 2: as text to encode."""
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise _Refused(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


_NAMES = {
    ("numpy", "ndarray"): _StandIn(),
    ("numpy", "dtype"): _StandIn(_dtype),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy.core.numeric", "_frombuffer"): _StandIn(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _StandIn(_from_buffer),
    ("_codecs", "encode"): _StandIn(_encode),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise _Refused(f"the name {module}.{name}")
        return _NAMES[module, name]


def _array(content: Any, dtype: Any, shape: Any, order: str) -> npt.NDArray[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(content, (bytes, bytearray)) or order not in ("C", "F"):
        raise _Refused("an array that is not made of integers")
    if not (isinstance(shape, tuple) and all(isinstance(side, int) and side >= 0 for side in shape)):
        raise _Refused(f"an array of shape {shape!r}")
    kind = np.dtype(dtype.code).newbyteorder(dtype.order)  # type: ignore[arg-type]
    if math.prod(shape) * kind.itemsize != len(content):
        raise _Refused(f"an array of shape {shape} in {len(content)} bytes")
    return np.frombuffer(content, kind).reshape(shape, order=order)  # type: ignore[call-overload, no-any-return]


def _arrays(value: Any) -> Any:
    """Replace stand-ins by their arrays, in the top-level container: deeper ones have no place in CIFAR."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {_text(key): _arrays(item) if isinstance(item, _Array) else item for key, item in value.items()}
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, str):
        return value
    raise _Refused(f"{type(value).__name__} where text belongs")


SIDE = 32
STORED_SEVERITIES = 5
"""How many severities the files of corrupted data sets hold, whatever the layout."""


@dataclass(frozen=True, kw_only=True)
class CifarLayout:
    """Where one of the two data sets keeps what.

    Args:
        name: What it is called here.
        folder: The folder of its Python batches.
        corrupted: The folder of its corrupted version.
        splits: Batch files by split.
        labels: The key of the labels in a batch.
        meta: The file of class names, and their key in it.
        classes: How many there are.
    """

    name: str
    folder: str
    corrupted: str
    splits: dict[str, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]
    classes: int


CIFAR10 = CifarLayout(
    name="cifar10",
    folder="cifar-10-batches-py",
    corrupted="CIFAR-10-C",
    splits={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    labels="labels",
    meta=("batches.meta", "label_names"),
    classes=10,
)
CIFAR100 = CifarLayout(
    name="cifar100",
    folder="cifar-100-python",
    corrupted="CIFAR-100-C",
    splits={"train": ("train",), "test": ("test",)},
    labels="fine_labels",
    meta=("meta", "fine_label_names"),
    classes=100,
)


class Cifar(Arrays):
    """One split of CIFAR, read into memory (30 MB to test, 150 MB to train): pickles cannot be memory-mapped."""

    source = "files"

    def __init__(self, root: Path, layout: CifarLayout, split: str = "test") -> None:
        if split not in layout.splits:
            raise ConfigError(f"{layout.name} has no split {split!r}.", nearest(split, layout.splits))
        folder = find_folder(root, layout.folder)
        files = [folder / file for file in (*layout.splits[split], layout.meta[0])]
        missing = [str(file) for file in files if not file.is_file()]
        if missing:
            raise DataMissingError(
                f"{layout.name} is not complete: expected {', '.join(missing)}.",
                f"Unpack the official Python archive so that {root} holds {layout.folder}/.",
            )
        batches = [_read_batch(file, layout) for file in files[:-1]]
        names = _read_names(files[-1], layout)
        images = np.concatenate([images for images, _ in batches])
        super().__init__(images, np.concatenate([labels for _, labels in batches]), names, layout.name)


class StoredCorruption(Dataset):
    """One corruption at one severity out of a CIFAR-C folder: rows (s-1)n to sn of ``<corruption>.npy``.

    The file is mapped for the length of each read only, so that the pages of many files do not add up. The hash is that
    of the pixels and labels of this severity. A file that a manifest lists is held against it when it is first read.

    Args:
        folder: The folder of .npy files.
        corruption: Which file.
        severity: Which fifth of it.
        rows: How many rows the whole file must have.
        name: What the data set is called.
        classes: Class names.
        image_size: Height and width that the images must have.
    """

    def __init__(
        self,
        folder: Path,
        corruption: str,
        severity: int,
        *,
        rows: int,
        name: str,
        classes: Sequence[str] = (),
        image_size: tuple[int, int] = (SIDE, SIDE),
    ) -> None:
        self.path = folder / f"{corruption}.npy"
        labels = open_npy(folder / "labels.npy")
        require_intact(folder / "labels.npy")
        pixels = open_npy(self.path)
        shape = (rows, *image_size, 3)
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            raise FileError(
                f"{self.path} holds {pixels.dtype} of shape {pixels.shape}, not uint8 of {shape}.",
                f"Make it again with `offsupport data make {name}`, or get the official file.",
            )
        if labels.dtype.kind not in "iu" or labels.shape != (rows,):
            raise FileError(
                f"{folder / 'labels.npy'} holds {labels.dtype} of shape {labels.shape}, not {rows} integers.",
                f"Make it again with `offsupport data make {name}`, or get the official file.",
            )
        size = rows // STORED_SEVERITIES
        self._first = (severity - 1) * size
        super().__init__(name, np.array(labels[self._first : self._first + size]), classes)

    def images(self, indices: Rows) -> Images:
        """Return these rows; the file is open during the call only."""
        rows = np.asarray(indices, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows must lie in 0 to {len(self) - 1}")  # else they would fall into another severity
        pixels = open_npy(self.path)
        require_intact(self.path)  # hashed at the first read, and again only if it changed in between
        if len(pixels) < self._first + len(self):
            raise FileError(f"{self.path} became shorter while it was read.", "Leave it alone while it is in use.")
        return np.asarray(pixels[rows + self._first])


def find_folder(root: Path, name: str) -> Path:
    """Return ``root/name``, or ``root`` itself if that is its name."""
    return root if root.name == name and not (root / name).is_dir() else root / name


def stored_corruption(
    root: Path, layout: CifarLayout, corruption: str, severity: int, clean_rows: int = 10_000
) -> Dataset | None:
    """Return a stored corruption, or None if there is no file for it."""
    folder = find_folder(root, layout.corrupted)
    if not (folder / f"{corruption}.npy").is_file():
        return None
    names = find_folder(root, layout.folder) / layout.meta[0]
    classes = _read_names(names, layout) if names.is_file() else tuple(map(str, range(layout.classes)))
    rows = STORED_SEVERITIES * clean_rows
    return StoredCorruption(folder, corruption, severity, rows=rows, name=f"{layout.name}-c", classes=classes)


def _read_batch(path: Path, layout: CifarLayout) -> tuple[Images, Labels]:
    batch = read_pickle(path)
    pixels, labels = (batch.get("data"), batch.get(layout.labels)) if isinstance(batch, dict) else (None, None)
    if not _are_pixels(pixels) or not _are_labels(labels, len(pixels), layout.classes):
        raise FileError(
            f"{path} is not a {layout.name} batch: it needs uint8 data of (n, {3 * SIDE * SIDE}) and "
            f"n {layout.labels} below {layout.classes}.",
            "Unpack the official Python archive again.",
        )
    return pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), np.asarray(labels, dtype=np.int64)


def _are_pixels(pixels: Any) -> TypeGuard[Images]:
    return isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * SIDE * SIDE,)


def _are_labels(labels: Any, count: int, classes: int) -> bool:
    if not isinstance(labels, (list, np.ndarray)) or len(labels) != count:
        return False
    return all(isinstance(label, (int, np.integer)) and 0 <= label < classes for label in labels)


def _read_names(path: Path, layout: CifarLayout) -> tuple[str, ...]:
    meta = read_pickle(path)
    names = meta.get(layout.meta[1]) if isinstance(meta, dict) else None
    if not isinstance(names, list) or len(names) != layout.classes:
        raise FileError(f"{path} does not name {layout.classes} classes.", "Unpack the official archive again.")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)
