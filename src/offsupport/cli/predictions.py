"""Predictions as rows, and as a CSV file that a spreadsheet can open without running anything."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - spreadsheets take the wide signs for the usual ones
"""What a spreadsheet takes for the beginning of a formula, or strips before it looks for one."""


@dataclass(frozen=True)
class Prediction:
    """What the adapted model says of one image.

    Args:
        file: Path relative to the folder of images.
        label: Number of the class.
        name: Its name, where names are known.
        confidence: Probability of the class.
        guard: Interventions of the guard in the batch of this image, separated by spaces.
    """

    file: str
    label: int
    name: str
    confidence: float
    guard: str

    def values(self) -> dict[str, Any]:
        """Return the prediction as plain values; ``label`` is called ``class``, as in the file."""
        return {"class" if name == "label" else name: value for name, value in asdict(self).items()}


def csv_text(predictions: Sequence[Prediction]) -> str:
    """Return the CSV file: a header, then a line per image, sorted by file; the same for the same predictions.

    A text that begins like a formula gets an apostrophe in front, which spreadsheets show as the text it is.
    """
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow("class" if field.name == "label" else field.name for field in fields(Prediction))
    for row in sorted(predictions, key=lambda row: row.file):
        lines.writerow([_plain(row.file), row.label, _plain(row.name), f"{row.confidence:.6f}", row.guard])
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, and that UTF-8 can hold whatever the file system says."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.startswith(_FORMULA) else text
