"""Numbers as people read them, in words and in tables, and as other programs do, in CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from offsupport.core.escaping import escape_cell
from offsupport.report.page import Badge, Bar, Number, Scale, Table, Value
from offsupport.results.rows import ENOUGH, Claim, Evidence, Row, Verdict

# In words.


def number(row: Row) -> str:
    """Return a value with its interval."""
    return f"{value_text(row)} ({interval_text(row)})"


def value_text(row: Row) -> str:
    """Return the value of a row: percent with one digit behind the point, fractions with three."""
    return _written(row.value, row)


def paper_text(row: Row) -> str:
    """Return the printed number of a row, likewise; empty where there is none."""
    return "" if row.paper is None else _written(row.paper, row)


def interval_text(row: Row) -> str:
    """Return the interval of a row."""
    return f"{_written(row.low, row)} to {_written(row.high, row)}"


def _written(value: float, row: Row) -> str:
    return f"{value:.{1 if row.unit == 'percent' else 3}f}"


def unit_text(row: Row) -> str:
    """Return what the number of a row is, and in what."""
    return f"{row.metric} in {row.unit}"


def evidence_text(evidence: Evidence) -> str:
    """Return the evidence of a claim in one line: what was measured, and the bound it is held against if not zero."""
    return f"{_measured(evidence)} {evidence.unit}{_bound(evidence)}"


def _measured(evidence: Evidence) -> str:
    value, low, high = (part + evidence.bound for part in (evidence.value, evidence.low, evidence.high))
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def _bound(evidence: Evidence) -> str:
    return f", bound {evidence.bound:+g}" if evidence.bound else ""


def column_titles(columns: Sequence[str]) -> dict[str, str]:
    """Return what each column is called: where all are of one data set, it is left out, as it stands elsewhere."""
    several = len({column.partition("/")[0] for column in columns}) > 1
    return {column: column if several else column.partition("/")[2] or column for column in columns}


def plain_text(value: Any) -> str:
    """Return a setting in few characters; what is None stays empty."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# The tables of a run: what was measured beside what was printed, and the claims with their verdicts.


VERDICTS: dict[Verdict, Badge] = {
    "holds": Badge("holds", "good"),
    "does-not-hold": Badge("does not hold", "bad"),
    "undecided": Badge("undecided"),
}
_TOO_FEW = Badge("too few to decide")
LOWER_IS_BETTER = ("error", "mse")


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return the claims with their verdicts and what they rest on, drawn where all have one unit."""
    units = list(dict.fromkeys(claim.evidence.unit for claim in claims))
    shown = [claim.evidence for claim in claims]
    scale = Scale.over(0.0, *(end + found.bound for found in shown for end in (found.low, found.high, 0.0)))
    rows: list[list[Value]] = []
    for i, claim in enumerate(claims):
        found = claim.evidence
        text = _measured(found) + _bound(found)
        # Intervals in different units share no scale, so their unit stands where they would be drawn.
        last = _bar(found, scale, zero=scale.at(found.bound)) if len(units) == 1 else found.unit
        verdict = _TOO_FEW if found.n < ENOUGH else VERDICTS[claim.verdict]
        rows.append([claim.claim, verdict, Number(text, found.value, f"claims-{i}"), last])
    ends = [f"measured, {units[0]}", ""] if len(units) == 1 else ["measured", "quantity"]
    return Table(["claim", "verdict", *ends], rows, text_columns=4, stacked=True)


def headline(rows: Sequence[Row], every: Sequence[Row]) -> Table:
    """Return measured beside printed; a column that would say the same everywhere, or nothing, goes into the caption.

    Args:
        rows: The rows to show.
        every: All rows of the run, which number them.
    """
    one = len({row.column for row in rows}) == 1
    printed = any(row.paper is not None for row in rows)
    scale = Scale.over(*(end for row in rows for end in (row.low, row.high, row.paper)))
    at = {(row.method, row.column): i for i, row in enumerate(every)}
    names = ["method", *([] if one else ["column"]), "measured", *(["paper"] if printed else [])]
    body: list[list[Value]] = []
    for row in rows:
        where: list[Value] = [] if one else [row.column]
        paper: list[Value] = [paper_text(row)] if printed else []
        measured = Number(value_text(row), row.value, f"rows-{at[row.method, row.column]}")
        mark = None if row.paper is None else scale.at(row.paper)
        ends: list[Value] = [Number(interval_text(row), row.low), _bar(row, scale, mark=mark), f"{row.n:,}"]
        body.append([row.method, *where, measured, *paper, *ends])
    seen = " The diamond is the printed number." if printed else ""
    caption = f"{rows[0].column}: {unit_text(rows[0])}." if one else f"In full: {unit_text(rows[0])}."
    return Table([*names, "95 % interval", "", "predictions"], body, caption + seen, text_columns=1 if one else 2)


def pivot(rows: Sequence[Row]) -> Table:
    """Return one row per method and one column per column; the deeper the colour, the better within the column."""
    methods = list(dict.fromkeys(row.method for row in rows))
    columns = _ordered(list(dict.fromkeys(row.column for row in rows)))
    at = {(row.method, row.column): (i, row) for i, row in enumerate(rows)}
    shades = _shades(rows) if len(methods) > 1 else {}
    body: list[list[Value]] = [
        [m, *(_shaded(*at[m, c], shades.get((m, c), 0.0)) if (m, c) in at else "" for c in columns)] for m in methods
    ]
    notes = ["The deeper the colour, the better within its column."] if shades else []
    notes += ["Small: as printed in the paper."] if any(row.paper is not None for row in rows) else []
    caption = " ".join([f"By column: {unit_text(rows[0])}.", *notes])
    return Table(["method", *column_titles(columns).values()], body, caption)


def _ordered(columns: Sequence[str]) -> list[str]:
    """Averages first; columns that differ in a number at their end alone by that number; else as they come."""
    parts = {column: re.fullmatch(r"(.*?)([\d.]+)", column) for column in columns}
    stems = {column: found.group(1) if found else column for column, found in parts.items()}
    order = {stem: i for i, stem in enumerate(dict.fromkeys(stems.values()))}
    at = {column: float(found.group(2)) if found else 0.0 for column, found in parts.items()}
    return sorted(columns, key=lambda column: (not column.endswith("/avg"), order[stems[column]], at[column]))


def _shades(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """How good a value is among those of its column, from 0 for the worst to 1 for the best."""
    sign = -1 if rows[0].metric in LOWER_IS_BETTER else 1
    columns: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        columns.setdefault(row.column, []).append((row.method, sign * row.value))
    found: dict[tuple[str, str], float] = {}
    for column, values in columns.items():
        low, high = (end(value for _, value in values) for end in (min, max))
        found |= {(m, column): (value - low) / (high - low) if high > low else 0.0 for m, value in values}
    return found


def _shaded(i: int, row: Row, shade: float) -> Number:
    return Number(value_text(row), row.value, f"rows-{i}", paper_text(row), shade)


def _bar(found: Row | Evidence, scale: Scale, mark: float | None = None, zero: float | None = None) -> Bar:
    moved = found.bound if isinstance(found, Evidence) else 0.0
    low, value, high = (scale.at(end + moved) for end in (found.low, found.value, found.high))
    return Bar(low, value, high, mark, zero)


# The numbers of a report for other programs: CSV for spreadsheets, LaTeX for papers. Names in them are only names.


FIELDS = ("method", "column", "metric", "unit", "value", "low", "high", "n", "paper", "deviation")
_PACKAGES = r"% needs \usepackage{booktabs,textcomp}"
EXPORT_MARKS = (f'"{FIELDS[0]}","{FIELDS[1]}","{FIELDS[2]}"'.encode(), _PACKAGES.encode())
"""By these a CSV or LaTeX file of a report is known as ours."""
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


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a header; a name that looks like a formula gets an apostrophe in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(FIELDS)
    for row in rows:
        writer.writerow([_field(getattr(row, name)) for name in FIELDS])
    return buffer.getvalue()


def as_latex(tables: Sequence[Table], title: str) -> str:
    r"""Return the tables as LaTeX to be read by ``\input``."""
    head = [f"% {' '.join(title.split())}", _PACKAGES, ""]
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
    return escape_cell(value) if isinstance(value, str) else value
