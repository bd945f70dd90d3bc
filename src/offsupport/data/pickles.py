"""Reading the pickles of CIFAR without running anything in them.

A pickle is a program: it names functions and calls them. This reader knows six names, those that NumPy arrays and bytes
are written with, and answers each with a stand-in of ours that only keeps data; any other name ends the reading. No
function of NumPy is ever called with arguments from the file, and the stand-ins cannot be altered by it.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offsupport.core.errors import FileError

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
