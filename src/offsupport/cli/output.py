"""What the verbs share: data on standard output, words on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import typer

from offsupport.core.escaping import escape_lines

# A script reads standard output, a person both: with --json nothing but JSON may stand there.
JSON = typer.Option(False, "--json", help="Print the data as JSON on standard output.")


_kept: TextIO | None = None
"""Standard output, while nothing but answers may be written there."""


@contextlib.contextmanager
def answers_alone() -> Iterator[None]:
    """Send to standard error whatever prints, but for the answers of a verb.

    Models of the user's print while they are made or called, here or in a worker. So do libraries that are not Python.
    """
    global _kept
    plain, standard = sys.stdout, sys.__stdout__
    with contextlib.ExitStack() as undo:
        if standard is not None and plain is standard and plain.fileno() == 1:
            plain.flush()
            real = os.dup(1)
            undo.callback(os.close, real)
            undo.callback(os.dup2, real, 1)
            undo.callback(plain.flush)
            os.dup2(2, 1)
            _kept = undo.enter_context(open(real, "w", encoding=plain.encoding, errors=plain.errors, closefd=False))
        else:  # somebody has taken its place
            undo.callback(setattr, sys, "stdout", plain)
            _kept, sys.stdout = plain, sys.stderr
        try:
            yield
        finally:
            _kept = None


def _answer(text: str) -> None:
    """Write a line of the answer at once: a verb may go on for months after it."""
    out = _kept or sys.stdout
    out.write(text + "\n")
    out.flush()


def emit_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    _answer(json.dumps(value, indent=1))


def emit_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """Print a table on standard output; the first ``text_columns`` are words, the others are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text, not as str: rich would take brackets in a name for its own markup.
    table = Table(title=Text(escape_lines(title)) if title else None, title_justify="left")
    for i, column in enumerate(columns):
        # Names must stay whole to be copied; what does not fit is folded, never cut.
        table.add_column(
            Text(escape_lines(column)), justify="left" if i < text_columns else "right", no_wrap=i == 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(escape_lines(value)) for value in row))
    Console().print(table)


def emit_in_parts(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers, below each other in as many parts as the width of the terminal asks for.

    Each part has the first column; no number is broken into lines.
    """
    from rich.console import Console

    edges = 3  # of a column: a line and a space on either side
    widths = [max(map(len, column)) + edges for column in zip(columns, *rows, strict=True)]
    room = Console().width - widths[0] - 1
    parts: list[list[int]] = [[]]
    for i in range(1, len(columns)):
        if parts[-1] and sum(widths[j] for j in [*parts[-1], i]) > room:
            parts.append([])
        parts[-1].append(i)
    for part in parts:
        shown = [0, *part]
        emit_table(
            title if part is parts[0] else "", [columns[i] for i in shown], [[row[i] for i in shown] for row in rows]
        )


def say(text: str) -> None:
    """Print a line for the person watching, on standard error."""
    sys.stderr.write(escape_lines(text) + "\n")


def tell(text: str) -> None:
    """Print a line of the answer on standard output."""
    _answer(escape_lines(text))


def as_option(name: str, value: str) -> str:
    """Write an argument as a person at the command line would, for remedies of the library.

    Example:
        >>> as_option("size", "32"), as_option("shuffle", ""), as_option("shuffle", "False")
        ('--size 32', '--shuffle', '--no-shuffle')
    """
    option = name.replace("_", "-")
    return f"--no-{option}" if value == "False" else f"--{option} {value}".rstrip()
