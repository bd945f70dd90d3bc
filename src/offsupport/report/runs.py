"""From a run folder to its report.html, report.csv and report.tex."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offsupport.bench.runs import status
from offsupport.bench.store import Record, Store
from offsupport.core import files
from offsupport.paper import TABLES, Options, Table, cells_of, payload
from offsupport.paper.declare import Claim, Row, row_values
from offsupport.paper.errors import error_rows
from offsupport.report.page import write
from offsupport.report.run_page import run_page


def write_report(folder: Path | str) -> tuple[Path, dict[str, Any]]:
    """Write the report of a run folder into it, and its numbers beside it; return its path and the data it shows."""
    folder = Path(folder)
    request = Store(folder).request()
    if request["verb"] == "reproduce":
        table = TABLES[request["table"]]
        options = {**request["options"], "methods": tuple(request["options"]["methods"] or ()) or None}
        found = status(folder, cells_of(table, request["scale"], Options(**options)))
        title, about = table.title, _about(table, request)
        data, behind = _measured(table, request["scale"], found.done)
    else:
        title, about = f"Benchmark {folder.resolve().name}", "A grid of cells of the user's own."
        found = status(folder)
        rows = error_rows(found.done, {})
        data, behind = {"rows": [row_values(row) for row in rows], "claims": []}, _behind(rows, [])
    page = run_page(title, about, data, found, behind, request)
    for file in page.downloads:
        files.write_text(folder / file.name, file.text)
    path = folder / "report.html"
    write(page, path)
    return path, data


def _measured(table: Table, scale: str, records: Sequence[Record]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``reproduce --json`` prints, and the cells behind it; every interval is computed once."""
    rows, claims = table.rows(records), table.claims(records)
    computed = dataclasses.replace(table, rows=lambda _: rows, claims=lambda _: claims)
    return payload(computed, scale, records), _behind(rows, claims)


def _behind(rows: list[Row], claims: list[Claim]) -> dict[str, Any]:
    return {"rows": [row.cells for row in rows], "claims": [claim.cells for claim in claims]}


def _about(table: Table, request: dict[str, Any]) -> str:
    asked = ", ".join(f"--{name} {value}" for name, value in request["options"].items() if value and name != "methods")
    about = f"{table.name} at {request['scale']} scale: {table.scales[request['scale']]}"
    return about + (f", but with {asked}." if asked else ".")
