"""Texts of strangers, made safe to show: names of files, labels in results, words of another program's error."""

from __future__ import annotations

import re

_ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What acts where it is shown: controls, signs that turn the direction of writing, bytes that are no UTF-8."""
_ACTS_IN_LINES = re.compile(_ACTS.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - spreadsheets take the wide signs for the usual ones
"""What a spreadsheet takes for the beginning of a formula, or strips before it looks for one."""


def escape(text: object) -> str:
    r"""Return a text in one line that a terminal, a file and a page show as it is: signs that act come as ``\x1b``.

    All others stay, so that usual names, in any script, are those of the files.

    Example:
        >>> print(escape("a\x1b[2Jb"), escape("line\nbreak"), escape("caf\udce9"), escape("日本 1.png"))
        a\x1b[2Jb line\nbreak caf\udce9 日本 1.png
    """
    return _ACTS.sub(_written, str(text))


def escape_lines(text: object) -> str:
    """Return a text of several lines likewise; its line breaks stay."""
    return _ACTS_IN_LINES.sub(_written, str(text))


def escape_cell(text: str) -> str:
    """Return a text for a field of a CSV file that no spreadsheet takes for a formula: an apostrophe stands before it.

    Example:
        >>> escape_cell("=1+1"), escape_cell("a=b")
        ("'=1+1", 'a=b')
    """
    shown = escape(text)
    return f"'{shown}" if text.lstrip(" ").startswith(_FORMULA) else shown


def _written(sign: re.Match[str]) -> str:
    return sign[0].encode("unicode_escape").decode()
