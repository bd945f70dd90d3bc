"""``offsupport demo``: the tour. Shifted digits, a table of the paper, a diagnosis, one page; no download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.bench import finish
from offsupport.cli.output import JSON, emit_json, emit_table, say
from offsupport.report import figures
from offsupport.report.page import Figure, Page, Section, Table
from offsupport.report.words import value_text

if TYPE_CHECKING:
    from offsupport.theory import Diagnosis


METHODS = ("source", "bn", "tent", "shot", "eata", "sar")
ESTIMATORS = ("only-source", "trimmed-nn", "extrapolator", "given-c")
"""Rows of Table 1; the others train anew for every target, which takes too long for a tour."""
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "brightness", "frost", "fog", "contrast")
SEVERITY = 5
BATCH_SIZE = 64
RUN, DISTANCE = 5, 3.1
"""The diagnosed target: a run of the process that meets the assumptions, and how far its s lies from the origin."""
DEFAULT_OUT = Path("runs/demo")
Results = dict[str, dict[str, dict[str, Any]]]
"""What was measured, by kind of digits and by method."""


def demo(
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for report.html and the runs it shows; resumed if it exists."),
    seed: int = typer.Option(0, help="Seed of the order of the images."),
    json: bool = JSON,
) -> None:
    """Take the tour: adapt a network to shifted digits, run a table of the paper, diagnose a shift."""
    from offsupport.core.files import require_folder
    from offsupport.report.page import write

    require_folder(out)
    say("1 of 3. Training a small network on the digits inside scikit-learn, and adapting it to shifted ones ...")
    results = adapt_digits(out / "digits", seed)
    say("2 of 3. Table 1 of the paper at smoke scale: what synthetic shifts can be recovered from ...")
    table = synthetic_table(out / "table1")
    say("3 of 3. Diagnosing one synthetic shift: does a theorem say that it can be recovered?")
    diagnosis = diagnose_target()
    about = facts(results, seed)
    write(demo_page(results, table, diagnosis, about), out / "report.html")
    if json:
        emit_json({"about": about, "results": results, "table1": table, "diagnosis": diagnosis.to_dict()})
    else:
        _show(results, table, diagnosis)
    say(f"Report: {out / 'report.html'}")


def adapt_digits(folder: Path, seed: int) -> Results:
    """Return what every method makes of clean and shifted digits; computed into a run folder, or taken from it."""
    from offsupport.bench.runs import status
    from offsupport.report.run_page import write_report
    from offsupport.studies import AdaptConfig

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
    finish(folder, None, list(cells.values()), {"verb": "bench"}, workers=0)
    write_report(folder)
    records = {record.key: record for record in status(folder, list(cells.values())).done}
    results: Results = {}
    for (name, method), cell in cells.items():
        record = records[cell.key]
        results.setdefault(name, {})[method] = {**record.deterministic, **record.timing, "made of": record.provenance}
    return results


def synthetic_table(folder: Path) -> dict[str, Any]:
    """Return Table 1 at smoke scale for some estimators: rows and claims as ``reproduce --json`` prints them."""
    from dataclasses import asdict

    from offsupport.report.run_page import write_report
    from offsupport.studies import TABLES, Options, cells_of

    options = Options(methods=ESTIMATORS)
    request = {"verb": "reproduce", "table": "table1", "scale": "smoke", "options": asdict(options)}
    finish(folder, None, cells_of(TABLES["table1"], "smoke", options), request, workers=0)
    return write_report(folder)[1]


def diagnose_target() -> Diagnosis:
    """Return the diagnosis of a target close to the support of a process that meets the assumptions."""
    import torch

    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import preset
    from offsupport.theory import diagnose

    return diagnose(draw(preset("assumptions", "dense"), [RUN], [DISTANCE], dtype=torch.float64))


def table_rows(results: Results, form: str = "{} ({}-{})") -> list[list[str]]:
    """Return one row per kind of digits: its name, then error and interval, in this form, for each method."""
    return [[name, *(_cell(result, form) for result in row.values())] for name, row in results.items()]


def facts(results: Results, seed: int) -> dict[str, str]:
    """Return what the numbers were made of."""
    from offsupport import __version__

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


def _cell(result: dict[str, Any], form: str) -> str:
    bounds = (f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in result["ci95"])
    return form.format(f"{100 * result['error']:.1f}", *bounds)


def _show(results: Results, table: dict[str, Any], diagnosis: Diagnosis) -> None:
    from offsupport.cli.bench import print_rows

    title = f"Error in %, with its 95 % interval; severity {SEVERITY}"
    emit_table(title, ["digits", *METHODS], table_rows(results, "{}\n{}-{}"))
    print_rows("Table 1 at smoke scale: accuracy", table["rows"])
    typer.echo(str(diagnosis))


# The page of the tour: what was measured on digits, on the paper's synthetic data, and what the theory says.


_INTRO = (
    "A small residual network, trained on clean digits, meets noise, blur, changed light and weather; estimators meet "
    "synthetic samples outside the support of their training data; and the theory says of one sample whether it can be "
    "recovered at all."
)


def demo_page(results: Results, table: dict[str, Any], diagnosis: Diagnosis, about: Mapping[str, str]) -> Page:
    """Return the page of the tour.

    Args:
        results: Measured on digits.
        table: Table 1 as ``reproduce --json`` prints it.
        diagnosis: Of one synthetic target.
        about: What the digits results were made of.
    """
    sections = [_digits(results, about), _synthetic(table), _theory(diagnosis), _next()]
    return Page("offsupport demo", _INTRO, sections)


def _digits(results: Results, about: Mapping[str, str]) -> Section:
    errors = {m: {name: _percent(row[m]) for name, row in results.items()} for m in METHODS}
    traces = {m: [100 * error for error in results["contrast"][m]["trace"]] for m in METHODS}
    costs = [
        [m, f"{row['seconds']:.2f}", *(str(row["passes"].get(way, 0)) for way in ("forward", "backward"))]
        for m, row in results["clean"].items()
    ]
    return Section(
        "Shifted digits",
        "The same network, the same images, one pass; only the method differs. 'source' is the network as trained.",
        tables=[
            Table(["digits", *METHODS], table_rows(results), "Error in %, with its 95 % Wilson interval."),
            Table(
                ["method", "seconds", "forward", "backward"],
                costs,
                "What one pass over the clean test digits cost, in batches.",
            ),
        ],
        figures=[
            Figure(figures.intervals(errors), "Error of every method, clean and shifted."),
            Figure(figures.traces(traces, "error of the batch (%)"), "Contrast, batch by batch."),
        ],
        notes=[
            "Intervals in one row overlap less than they seem to: all methods saw the same images.",
            "The full report of this run is digits/report.html beside this page.",
        ],
        facts=about,
    )


def _synthetic(table: dict[str, Any]) -> Section:
    cells = {(row["method"], row["column"]): row for row in table["rows"]}
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    body = [[m, *(value_text(cells[m, c]) if (m, c) in cells else "" for c in columns)] for m in methods]
    verdicts = [claim["verdict"] for claim in table["claims"]]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    return Section(
        "Table 1 of the paper, at smoke scale",
        "Latent variables c and s make a sample; its label depends on c alone, and the target's s lies outside the "
        "training support, at the distance in the column's name. A handful of runs decides little: `reproduce table1 "
        "--scale paper` has 500.",
        tables=[Table(["accuracy", *columns], body, "'given-c' knows the true c and is the ceiling.")],
        notes=[
            f"Claims checked: {counts}.",
            "The full report, with intervals and claims, is table1/report.html beside this page.",
        ],
    )


def _theory(diagnosis: Diagnosis) -> Section:
    verdicts = [
        [verdict.theorem, verdict.status, "; ".join(f"{c.name}: {c.status}" for c in verdict.conditions)]
        for verdict in (diagnosis.theorem1, diagnosis.theorem2)
    ]
    return Section(
        "Can this shift be recovered?",
        "One target of a process that meets the assumptions of Theorem 1, a little outside the support.",
        tables=[Table(["theorem", "verdict", "assumptions"], verdicts, text_columns=3)],
        figures=[
            Figure(
                figures.svg(diagnosis.plot()),
                "Left: the source support of s, the target, and how far Theorem 1 reaches. Right: the classes in x.",
                wide=True,
            )
        ],
        facts={"command": f"offsupport diagnose --preset assumptions --distance {DISTANCE} --seed {RUN}"},
    )


def _next() -> Section:
    return Section(
        "Where to go next",
        "Your own images, your own grid, and every table of the paper:",
        code="offsupport adapt --model zoo:NAME --images DIR --method tent --out predictions.csv\n"
        "offsupport bench run --dataset digits-c --corruptions fog,contrast --methods source,bn,tent --out runs/mine\n"
        "offsupport list tables",
    )


def _percent(result: Mapping[str, Any]) -> figures.Interval:
    low, high = result["ci95"]
    return 100 * result["error"], 100 * low, 100 * high
