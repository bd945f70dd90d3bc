"""What the verbs share: data on standard output, words on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer

JSON = typer.Option(False, "--json", help="Print the data as JSON on standard output.")


def emit_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def emit_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """Print a table on standard output; the first ``text_columns`` are words, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < text_columns else "right", no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def say(text: str) -> None:
    """Print a line for the person watching, on standard error."""
    sys.stderr.write(text + "\n")
