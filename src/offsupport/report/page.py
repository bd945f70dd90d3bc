"""One self-contained HTML page: plain values in, a string out; no scripts, no network, every word escaped.

Example:
    >>> table = Table(["method", "error"], [["bn", "8.1"]])
    >>> page = Page("Errors", "What was measured.", [Section("Digits", tables=[table])])
    >>> "<td>8.1</td>" in render(page)
    True
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsupport import __version__
from offsupport.core import files

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Badge:
    """A word in a table that deserves a colour.

    Args:
        text: The word.
        tone: ``good``, ``bad`` or ``open``.
    """

    text: str
    tone: str = "open"


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers, already formatted.

    Args:
        columns: Column titles.
        rows: One sequence per row, as long as ``columns``.
        caption: What the table shows.
        text_columns: How many columns from the left hold words; the others are set as numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Badge]]
    caption: str = ""
    text_columns: int = 1


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
    """

    heading: str
    prose: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    code: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What a reader opens.

    Args:
        title: The title.
        intro: One or two paragraphs that say what was found.
        sections: The parts, in order.
        data: Anything JSON can hold, embedded for other programs (``<script type="application/json" id="data">``).
    """

    title: str
    intro: str
    sections: Sequence[Section]
    data: Any = None


def render(page: Page) -> str:
    """Return the page as HTML that needs nothing but itself."""
    return _template().render(page=page, version=__version__, embedded=_embed(page.data))


def write(page: Page, path: Path | str) -> None:
    """Write the page to ``path``, whole or not at all."""
    files.write_text(path, render(page))


def _embed(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever strings it holds."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["paragraphs"] = lambda text: [part for part in text.split("\n\n") if part.strip()]
    environment.tests["badge"] = lambda value: isinstance(value, Badge)
    return environment.get_template("report.html")
