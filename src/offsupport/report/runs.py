"""From a run folder to its report.html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.runs import Status, status
from offsupport.bench.store import Store
from offsupport.paper import TABLES, Options, cells_of, payload
from offsupport.paper.declare import row_values
from offsupport.paper.errors import error_rows
from offsupport.report.page import write
from offsupport.report.run_page import run_page


def write_report(folder: Path | str) -> tuple[Path, dict[str, Any]]:
    """Write the report of a run folder into it; return its path and the data it shows."""
    folder = Path(folder)
    request = Store(folder).request()
    if request["verb"] == "reproduce":
        title, about, found, data = _of_table(folder, request)
    else:
        title, about = f"Benchmark {folder.name}", "A grid of cells of the user's own."
        found = status(folder)
        data = {"rows": [row_values(row) for row in error_rows(found.done, {})], "claims": []}
    path = folder / "report.html"
    write(run_page(title, about, data, found), path)
    return path, data


def _of_table(folder: Path, request: dict[str, Any]) -> tuple[str, str, Status, dict[str, Any]]:
    table, scale = TABLES[request["table"]], request["scale"]
    options = {**request["options"], "methods": tuple(request["options"]["methods"] or ()) or None}
    cells: list[Cell] = cells_of(table, scale, Options(**options))
    found = status(folder, cells)
    asked = ", ".join(f"--{name} {value}" for name, value in request["options"].items() if value and name != "methods")
    about = f"{table.name} at {scale} scale: {table.scales[scale]}" + (f", but with {asked}." if asked else ".")
    return table.title, about, found, payload(table, scale, found.done)
