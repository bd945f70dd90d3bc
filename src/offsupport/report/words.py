"""Numbers as a person would write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number(row: Mapping[str, Any]) -> str:
    """Return a value with its interval."""
    return f"{value_text(row)} ({interval_text(row)})"


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of a row."""
    return f"{value_text(row, 'low')} to {value_text(row, 'high')}"


def value_text(row: Mapping[str, Any], key: str = "value") -> str:
    """Return one number of a row: percent with one digit behind the point, fractions with three."""
    return "" if row[key] is None else f"{row[key]:.{1 if row['unit'] == 'percent' else 3}f}"


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return the evidence of a claim in one line."""
    return f"{evidence['value']:+.2f} ({evidence['low']:+.2f} to {evidence['high']:+.2f}) {evidence['unit']}"


def unit_text(row: Mapping[str, Any]) -> str:
    """Return what the number of a row is, and in what."""
    return f"{row['metric']} in {row['unit']}"


def short_column(column: str) -> str:
    """Return a column without the data set, which stands elsewhere."""
    return column.partition("/")[2] or column


def plain_text(value: Any) -> str:
    """Return a setting in few characters; what is None stays empty."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
