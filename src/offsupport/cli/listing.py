"""``offsupport list``: what there is to choose from."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say, tell
from offsupport.core.errors import ConfigError, nearest

Rows = list[dict[str, Any]]
HIDDEN = ("summary", "single", "paper", "bounded", "record")
"""Sentences too long for a table on a terminal, and what a heading says; ``--json`` has them."""


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
    else:
        for title, group in _grouped(what, rows).items():
            columns = [name for name in group[0] if name not in HIDDEN]
            body = [[str(row[name]) for name in columns] for row in group]
            emit_table(title, columns, body, text_columns=len(columns))
    if what == "methods":
        say("norm: the norm layers it needs. source: source statistics. passes: over a batch, F forward, B backward.")
        say("+sc behind a method that takes steps, as in tent+sc, adds the sparsity constraint.")


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
    return made + [_zoo_row(zoo.card(name)) for name in zoo.names()]


def _zoo_row(card: dict[str, Any]) -> dict[str, Any]:
    accuracy = f"{100 * card['test']['accuracy']:.2f} %" if card.get("test") else ""
    return {"name": f"zoo:{card['name']}", "about": card["about"], "clean accuracy": accuracy}


def _tell_model(name: str, about: str, **accuracy: str) -> None:
    """Print a model in lines that fit any terminal: names are too long for columns."""
    from rich.console import Console

    known = [f"{value} of clean images right" for value in accuracy.values() if value]
    tell("  ".join([name, *known]))
    tell(textwrap.fill(about, min(Console().width, 100), initial_indent="    ", subsequent_indent="    "))


def _recipes() -> Rows:
    from offsupport.training import list_recipes

    return [{"name": name, "about": about} for name, about in list_recipes().items()]
