"""What may stand in a table beside words: a badge, a number that can be asked where it comes from, a drawn interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Badge:
    """A word that deserves a colour.

    Args:
        text: The word.
        tone: ``good``, ``bad`` or ``open``.
    """

    text: str
    tone: str = "open"


@dataclass(frozen=True)
class Number:
    """A number.

    Args:
        text: How it is written.
        value: What it is sorted by.
        source: Which of the page's sources a click on it opens; empty for none.
        printed: What the paper printed in its place.
        shade: From 0 to 1, how strongly its background is coloured.
    """

    text: str
    value: float | None = None
    source: str = ""
    printed: str = ""
    shade: float = 0.0


@dataclass(frozen=True)
class Bar:
    """An interval drawn to a scale that all rows share; for the eye only, the numbers stand beside it.

    Args:
        low: Where the interval begins, in percent of the width.
        value: Where the value is.
        high: Where the interval ends.
        mark: Where the printed number is, if there is one.
        zero: Where zero is, if it is to be seen.
    """

    low: float
    value: float
    high: float
    mark: float | None = None
    zero: float | None = None


Value: TypeAlias = str | Badge | Number | Bar


@dataclass(frozen=True)
class Scale:
    """A stretch of numbers, laid out from 0 to 100 percent."""

    low: float
    high: float

    @classmethod
    def over(cls, *values: float | None) -> Scale:
        """Return the smallest scale that shows all values and some room beside them."""
        found = [value for value in values if value is not None]
        room = 0.04 * (max(found) - min(found)) or 1.0
        return cls(min(found) - room, max(found) + room)

    def at(self, value: float) -> float:
        """Return where a value is."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)
