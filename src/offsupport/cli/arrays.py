"""Arrays from files a person has: .npy, or .csv with or without a header line. Loading never executes code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsupport.core.errors import DataMissingError, FileError

if TYPE_CHECKING:
    import numpy as np


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """Read one array: numbers where all entries are numbers, words otherwise; (n,) if there is one column."""
    import numpy as np

    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give the path of a .npy or .csv file.")
    if path.suffix == ".npy":
        try:
            return np.asarray(np.load(path, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise FileError(
                f"{path} is not a plain array ({error}).", "Save it with numpy.save, without objects."
            ) from error
    if path.suffix == ".csv":
        return _read_csv(path)
    raise FileError(f"{path} is neither .npy nor .csv.", "Convert it, for example with numpy.save.")


def _read_csv(path: Path) -> np.ndarray[Any, Any]:
    import csv

    import numpy as np

    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise FileError(f"{path} has no rows, or rows of different lengths.", "Write one sample per line.")
    if len(rows) > 1 and _numbers(rows[1]) and not _numbers(rows[0]):
        rows = rows[1:]  # a header
    table = np.array(rows, dtype=float) if all(map(_numbers, rows)) else np.array(rows)
    return table[:, 0] if table.shape[1] == 1 else table


def _numbers(row: list[str]) -> bool:
    try:
        [float(cell) for cell in row]
    except ValueError:
        return False
    return True
