"""The numbers of a report for other programs: CSV for spreadsheets, LaTeX for papers. Names in them are only names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from offsupport.report.cells import Badge, Bar, Number, Value
from offsupport.report.page import Table

FIELDS = ("method", "column", "metric", "unit", "value", "low", "high", "n", "paper", "deviation")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A field that begins like this is computed by spreadsheets."""
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "`": r"\textasciigrave{}",
        "'": r"\textquotesingle{}",
        "[": "{[}",
        "*": "{*}",
    }
)
"""Quotes too: two in a row would become another sign. A line break takes a bracket or star after it for its own."""


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header; a name that looks like a formula gets an apostrophe in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(FIELDS)
    for row in rows:
        writer.writerow([_field(row.get(name)) for name in FIELDS])
    return buffer.getvalue()


def as_latex(tables: Sequence[Table], title: str) -> str:
    r"""Return the tables as LaTeX to be read by ``\input``."""
    head = [f"% {' '.join(title.split())}", r"% needs \usepackage{booktabs,textcomp}", ""]
    return "\n".join([*head, *(_tabular(table) for table in tables)])


def latex_text(text: str) -> str:
    r"""Return text that LaTeX sets as it is, whatever signs it holds.

    Example:
        >>> print(latex_text("50 % of a_b"))
        50 \% of a\_b
    """
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    escaped = " ".join(printable.translate(_LATEX).split())
    return re.sub("-(?=-)", "-{}", escaped)  # two in a row would become a dash


def _tabular(table: Table) -> str:
    kept = [i for i in range(len(table.columns)) if not any(isinstance(row[i], Bar) for row in table.rows)]
    layout = "".join("l" if i < table.text_columns else "r" for i in kept)
    head, *body = ([row[i] for i in kept] for row in (table.columns, *table.rows))
    lines = [_line(head), r"\midrule", *map(_line, body)]
    caption = [f"% {latex_text(table.caption)}"] if table.caption else []
    return "\n".join(
        [*caption, rf"\begin{{tabular}}{{{layout}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}", ""]
    )


def _line(values: Sequence[Value]) -> str:
    return " & ".join(_words(value) for value in values) + r" \\"


def _words(value: Value) -> str:
    if isinstance(value, Number):
        printed = rf" {{\footnotesize({latex_text(value.printed)})}}" if value.printed else ""
        return _signed(value.text) + printed
    return latex_text(value.text if isinstance(value, Badge) else str(value))


def _signed(text: str) -> str:
    """Numbers, their minus signs as long as a plus."""
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", latex_text(text))


def _field(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"'{value}" if value.lstrip(" ").startswith(_FORMULA) else value
