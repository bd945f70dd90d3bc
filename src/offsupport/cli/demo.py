"""``offsupport demo``: the tour. Shifted digits, a table of the paper, a diagnosis, one page; no download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from offsupport.cli.bench import finish
from offsupport.cli.output import JSON, emit_json, emit_table, say, tell

if TYPE_CHECKING:
    from offsupport.report.demo_page import Results
    from offsupport.results import Measured
    from offsupport.theory import Diagnosis


ESTIMATORS = ("only-source", "trimmed-nn", "extrapolator", "given-c")
"""Rows of Table 1; the others train anew for every target, which takes too long for a tour."""
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "brightness", "frost", "fog", "contrast")
SEVERITY = 5
BATCH_SIZE = 64
DEFAULT_OUT = Path("runs/demo")


def demo(
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for report.html and the runs it shows; resumed if it exists."),
    seed: int = typer.Option(0, help="Seed of the order of the images."),
    json: bool = JSON,
) -> None:
    """Take the tour: adapt a network to shifted digits, run a table of the paper, diagnose a shift."""
    from offsupport.core.files import require_folder
    from offsupport.report.demo_page import demo_page
    from offsupport.report.page import require_own_page, write

    require_own_page(require_folder(out) / "report.html")
    say("1 of 3. Training a small network on the digits inside scikit-learn, and adapting it to shifted ones ...")
    results = adapt_digits(out / "digits", seed)
    say("2 of 3. Table 1 of the paper at smoke scale: what synthetic shifts can be recovered from ...")
    table = synthetic_table(out / "table1")
    say("3 of 3. Diagnosing one synthetic shift: does a theorem say that it can be recovered?")
    diagnosis = diagnose_target()
    about = facts(results, seed)
    write(demo_page(results, table, diagnosis, about), out / "report.html")
    if json:
        emit_json({"about": about, "results": results, "table1": table.to_dict(), "diagnosis": diagnosis.to_dict()})
    else:
        _show(results, table, diagnosis)
    say(f"Report: {out / 'report.html'}")


def adapt_digits(folder: Path, seed: int) -> Results:
    """Return what every method makes of clean and shifted digits; computed into a run folder, or taken from it."""
    from offsupport.bench import Place
    from offsupport.report.demo_page import METHODS
    from offsupport.report.run_page import write_report
    from offsupport.studies import AdaptConfig, Request

    cells = {
        (name, method): AdaptConfig(
            dataset="digits" if name == "clean" else "digits-c",
            corruption=None if name == "clean" else name,
            severity=SEVERITY,
            method=method,
            seed=seed,
            batch_size=BATCH_SIZE,
        ).cell()
        for name in ("clean", *CORRUPTIONS)
        for method in METHODS
    }
    run = finish(Place(folder), list(cells.values()), Request(), workers=0)
    write_report(run)
    records = {record.key: record for record in run.status(cells.values()).done}
    results: Results = {}
    for (name, method), cell in cells.items():
        record = records[cell.key]
        results.setdefault(name, {})[method] = {**record.deterministic, **record.timing, "made of": record.provenance}
    return results


def synthetic_table(folder: Path) -> Measured:
    """Return Table 1 at smoke scale for some estimators."""
    from offsupport.bench import Place
    from offsupport.report.run_page import write_report
    from offsupport.studies import TABLES, Request, TableOptions

    request = Request("table1", "smoke", TableOptions(methods=ESTIMATORS))
    cells = TABLES[request.table].cells(request.scale, request.options)
    _, measured = write_report(finish(Place(folder), cells, request, workers=0))
    return measured


def diagnose_target() -> Diagnosis:
    """Return the diagnosis of a target close to the support of a process that meets the assumptions."""
    import torch

    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import preset
    from offsupport.report.demo_page import DISTANCE, RUN
    from offsupport.theory import diagnose

    return diagnose(draw(preset("assumptions", "dense"), [RUN], [DISTANCE], dtype=torch.float64))


def facts(results: Results, seed: int) -> dict[str, str]:
    """Return what the numbers were made of."""
    from offsupport.core.version import __version__

    first = results["clean"]["source"]
    made_of = first["made of"]
    return {
        "command": f"offsupport demo --seed {seed}",
        "version": __version__,
        "data": f"digits, test split, {first['n']} images, sha256 {made_of['data_sha256'][:16]}",
        "order": f"seed {seed}, sha256 {made_of['order_sha256'][:16]}",
        "corruptions": f"severity {SEVERITY}, generated with seed 0",
        "batch size": str(BATCH_SIZE),
        "protocol": "online: one pass, reset at each corruption",
    }


def _show(results: Results, table: Measured, diagnosis: Diagnosis) -> None:
    from offsupport.cli.bench import print_rows
    from offsupport.report.demo_page import METHODS, table_rows

    title = f"Error in %, with its 95 % interval; severity {SEVERITY}"
    emit_table(title, ["digits", *METHODS], table_rows(results, "{}\n{}-{}"))
    print_rows("Table 1 at smoke scale: accuracy", table.rows)
    tell(str(diagnosis))
