"""``offsupport list``: what there is to choose from."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say, tell
from offsupport.core.errors import ConfigError, nearest

Rows = list[dict[str, Any]]
HIDDEN = ("paper", "record")
"""Too long for a table on a terminal, or said by a heading; ``--json`` has them."""
WIDEST = 100
"""Longer lines are hard to read, however wide the terminal is."""


def list_(
    what: str = typer.Argument("methods", help="methods, datasets, corruptions, protocols, tables, models or recipes."),
    json: bool = JSON,
) -> None:
    """List methods, data sets, corruptions, protocols, tables, models or recipes."""
    kinds = {
        "methods": _methods,
        "datasets": _datasets,
        "corruptions": _corruptions,
        "protocols": _protocols,
        "tables": _tables,
        "models": _models,
        "recipes": _recipes,
    }
    if what not in kinds:
        raise ConfigError(f"There is nothing called {what!r} to list.", nearest(what, kinds))
    rows = kinds[what]()
    if json:
        emit_json(rows)
    elif what == "models":
        for row in rows:
            _tell_model(**row)
    elif what == "methods":
        _tell_methods(rows)
    else:
        for title, group in _grouped(what, rows).items():
            columns = [name for name in group[0] if name not in HIDDEN]
            body = [[str(row[name]) for name in columns] for row in group]
            emit_table(title, columns, body, text_columns=len(columns))
    if what == "methods":
        say("passes: over a batch, F forward, B backward. source statistics: --source DIR, or offsupport.source_stats.")
        say("+sc behind a method that takes steps, as in tent+sc, adds the sparsity constraint. --json says more.")


def _grouped(what: str, rows: Rows) -> dict[str, Rows]:
    """Return rows by heading; records of how settings were chosen stand apart from tables that people look for."""
    groups: dict[str, Rows] = {}
    for row in rows:
        title = "records: how settings were chosen, and what results are sensitive to" if row.get("record") else what
        groups.setdefault(title, []).append(row)
    return groups


def _methods() -> Rows:
    from offsupport.methods import list_methods

    return [dataclasses.asdict(info) for info in list_methods(details=True)]


def _datasets() -> Rows:
    from offsupport.data import list_datasets

    return [{"name": name, "about": about} for name, about in list_datasets().items()]


def _corruptions() -> Rows:
    from offsupport.data import list_corruptions

    return [{"name": name, "group": group} for name, group in list_corruptions().items()]


def _protocols() -> Rows:
    from offsupport.data import PROTOCOLS

    every = [PROTOCOLS[name] for name in PROTOCOLS]
    return [
        {"name": each.name, "about": each.about, "reset": each.reset, "batch": each.batch_size, "paper": each.published}
        for each in every
    ]


def _tables() -> Rows:
    from offsupport.studies import TABLES

    # Those that a user would look for stand first, records of how settings were chosen behind them.
    tables = sorted((TABLES[name] for name in TABLES), key=lambda table: table.record)
    return [
        {"name": table.name, "title": table.title, "scales": ", ".join(table.scales), "record": table.record}
        for table in tables
    ]


def _models() -> Rows:
    from offsupport import zoo
    from offsupport.studies.models import MODELS

    made = [{"name": name, "about": MODELS[name].about, "clean accuracy": ""} for name in MODELS]
    # Those that bring their weights first; the others are trained when they are asked for.
    return [_zoo_row(zoo.card(name)) for name in zoo.names()] + made


def _zoo_row(card: dict[str, Any]) -> dict[str, Any]:
    accuracy = f"{100 * card['test']['accuracy']:.2f} %" if card.get("test") else ""
    return {"name": f"zoo:{card['name']}", "about": card["about"], "clean accuracy": accuracy}


def _tell_model(name: str, about: str, **accuracy: str) -> None:
    """Print a model in lines that fit any terminal: names are too long for columns."""
    known = [f"{value} of clean images right" for value in accuracy.values() if value]
    tell("  ".join([name, *known]))
    tell(_filled(about, "    ", "    "))


def _tell_methods(rows: Rows) -> None:
    """Print each method with its sentence, what it needs and what it costs, in lines that fit any terminal."""
    indent = max(len(row["name"]) for row in rows) + 2
    for row in rows:
        tell(_filled(row["summary"], f"{row['name']:{indent}}", " " * indent))
        tell(_filled("; ".join(_asks(**row)), " " * indent, " " * indent))


def _asks(norm: str, source: str, needs: str, passes: str, **_: Any) -> list[str]:
    """Return what a method asks for, in words."""
    layers = {"batch": "batch norm", "any": "norm layers"}
    needed = [layers.get(norm, ""), "source statistics" if source == "required" else "", needs]
    needed = [each for each in needed if each]
    better = ["better with source statistics"] if source == "optional" else []
    return [*([f"needs {', '.join(needed)}"] if needed else []), *better, f"passes: {passes or 'not known'}"]


def _filled(text: str, first: str, others: str) -> str:
    from rich.console import Console

    width = min(Console().width, WIDEST)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _recipes() -> Rows:
    from offsupport.training import list_recipes

    return [{"name": name, "about": about} for name, about in list_recipes().items()]
