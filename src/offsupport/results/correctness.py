"""Which images were right, in a few bytes: one bit per image in the order of the data set's rows.

Results of different methods are paired by these rows, whatever order they saw the images in.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


def pack(rows: npt.ArrayLike, correct: npt.ArrayLike) -> dict[str, Any]:
    """Return JSON values that hold which rows were seen and which of them were right.

    Args:
        rows: Data set rows in the order seen; a row may come more than once.
        correct: Whether each was right.

    Example:
        >>> rows, correct = unpack(pack([7, 2], [True, False]))
        >>> rows.tolist(), correct.tolist()
        ([2, 7], [False, True])
    """
    seen: Rows = np.asarray(rows, dtype=np.int64)
    order = np.argsort(seen, kind="stable")
    ordered = seen[order]
    packed: dict[str, Any] = {"n": len(seen), "correct": _bits(np.asarray(correct, dtype=bool)[order])}
    if (np.diff(ordered) > 0).all():
        mask = np.zeros(int(ordered[-1]) + 1 if len(ordered) else 0, dtype=bool)
        mask[ordered] = True
        return packed if mask.all() else {**packed, "mask": _bits(mask)}
    return {**packed, "rows": base64.b64encode(ordered.astype("<i4").tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> tuple[Rows, Bools]:
    """Return the rows in ascending order and whether each was right."""
    n, correct = packed["n"], _unbits(packed["correct"])
    if not 0 <= n <= len(correct):  # before room is made for as many rows as a file claims
        raise ValueError(f"{n} images, and {len(correct)} bits that say which were right")
    if "rows" in packed:
        rows = np.frombuffer(base64.b64decode(packed["rows"]), dtype="<i4").astype(np.int64)
    elif "mask" in packed:
        rows = np.flatnonzero(_unbits(packed["mask"]))
    else:
        rows = np.arange(n, dtype=np.int64)
    if len(rows) != n:
        raise ValueError(f"{n} images in {len(rows)} rows")
    return rows, correct[:n]


def _bits(flags: Bools) -> str:
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def _unbits(text: str) -> Bools:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8)).astype(bool)
