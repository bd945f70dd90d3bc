"""One self-contained HTML page: plain values in, a string out; no network, every word escaped.

Example:
    >>> table = Table(["method", "error"], [["bn", "8.1"]])
    >>> page = Page("Errors", "What was measured.", [Section("Digits", tables=[table])])
    >>> "<td>8.1</td>" in render(page)
    True
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from urllib.parse import quote

from offsupport.core import files
from offsupport.core.escaping import escape_lines
from offsupport.core.ownership import require_own
from offsupport.core.version import __version__

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from jinja2 import Template


# What may stand in a table beside words: a badge, a number that can be asked where it comes from, a drawn interval.


@dataclass(frozen=True)
class Badge:
    """A word that deserves a colour.

    Args:
        text: The word.
        tone: ``good``, ``bad`` or ``open``.
    """

    form: ClassVar = "badge"
    """By which the template knows how to show it."""
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

    form: ClassVar = "number"
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
        zero: Where the bound is that it is held against (zero, mostly), if it is to be seen.
    """

    form: ClassVar = "bar"
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


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers, already formatted; a click on a title sorts them.

    Args:
        columns: Column titles; one without a title is not sorted by.
        rows: One sequence per row, as long as ``columns``.
        caption: What the table shows.
        text_columns: How many columns from the left hold words; the others are set as numbers.
        stacked: Whether a row becomes a block of lines on a phone; for tables with sentences in them.
        folded: Where given, the table is folded away under these words.
        filters: Columns by which rows can be left out: by their words, or where all are numbers by the largest.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    text_columns: int = 1
    stacked: bool = False
    folded: str = ""
    filters: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Args:
        svg: SVG markup from :mod:`offsupport.report.figures`; it goes into the page as it is.
        caption: What to see in it.
        alt: What a reader who cannot see it should be told; the caption by default.
        wide: Whether it needs the full width; others share a row where there is room.
    """

    svg: str
    caption: str = ""
    alt: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Picture:
    """An image with a few words below it.

    Args:
        png: The image, as a PNG file.
        lines: The words, a line each; the first is set in bold.
        tone: ``good``, ``bad``, ``open``, or nothing.
    """

    png: bytes
    lines: Sequence[str]
    tone: str = ""

    @staticmethod
    def of(pixels: npt.NDArray[np.uint8], lines: Sequence[str], tone: str = "") -> Picture:
        """Return a picture of pixels (height, width, 3); large ones are made smaller, small ones stay as they are."""
        from PIL import Image

        image = Image.fromarray(pixels)
        image.thumbnail((_LARGEST, _LARGEST))
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        return Picture(file.getvalue(), lines, tone)

    @property
    def address(self) -> str:
        """The image as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


_LARGEST = 192
"""Side of a picture on a page, in pixels."""


@dataclass(frozen=True)
class Section:
    """One part of the page; whatever is empty is left out.

    Args:
        heading: Its title.
        prose: Text; a blank line starts a new paragraph.
        tables: Tables, after the prose.
        figures: Figures, after the tables.
        notes: Remarks in small print.
        code: Lines to type, shown as they are.
        facts: Names and values folded away under "How this was made".
        pictures: Images, between the prose and the tables.
    """

    heading: str
    prose: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    code: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Download:
    """A file that the page carries with it.

    Args:
        name: Its name.
        kind: Its media type.
        text: What it holds.
        label: What the link says.
    """

    name: str
    kind: str
    text: str
    label: str

    @property
    def address(self) -> str:
        """The file as an address."""
        return f"data:{self.kind};charset=utf-8,{quote(self.text)}"


@dataclass(frozen=True)
class Tile:
    """A number that says something about the whole page.

    Args:
        value: The number.
        label: What it counts.
        tone: ``good``, ``bad``, ``open``, or nothing.
    """

    value: str
    label: str
    tone: str = ""


@dataclass(frozen=True)
class Page:
    """What a reader opens.

    Args:
        title: The title.
        intro: One or two paragraphs that say what was found.
        sections: The parts, in order.
        data: Anything JSON can hold, embedded for other programs (``<script type="application/json" id="data">``).
        sources: What a click on a number opens, likewise (:func:`offsupport.report.run_page.sources`).
        tiles: Numbers about the whole.
        downloads: Files to keep.
        lead: The drawing that the page opens with.
    """

    title: str
    intro: str
    sections: Sequence[Section]
    data: Any = None
    sources: Any = None
    tiles: Sequence[Tile] = ()
    downloads: Sequence[Download] = ()
    lead: Sequence[Figure] = ()


def render(page: Page) -> str:
    """Return the page as HTML that needs nothing but itself; the only script that may run in it is our own."""
    script, look = _asset("report.js"), _asset("report.css")
    allowed = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    given = {"data": _embed(page.data), "sources": _embed(page.sources) if page.sources else ""}
    text = _template().render(page=page, version=__version__, script=script, look=look, allowed=allowed, **given)
    return escape_lines(text)  # once for all: texts from elsewhere have no signs that act on a page, and ours have none


def write(page: Page, path: Path | str) -> None:
    """Write the page to ``path``, whole or not at all."""
    require_own_page(path)
    files.write_text(path, render(page))


def require_own_page(path: Path | str) -> None:
    """Refuse to replace a page that is not one of ours."""
    require_own(Path(path), _MARK)


_MARK = b"default-src 'none'; script-src 'sha256-"
"""Stands in the head of every page of ours: what it may load, and which script it may run."""


def _embed(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever strings it holds."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html")
