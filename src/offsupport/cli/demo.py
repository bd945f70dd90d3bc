"""``offsupport demo``: a network meets shifted digits, with and without adaptation; no download, no arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say

if TYPE_CHECKING:
    from torch import nn

    from offsupport.evaluation import Result
    from offsupport.methods import SourceStats

CORRUPTIONS = ("gaussian_noise", "defocus_blur", "brightness", "frost", "fog", "contrast")
SEVERITY = 5
DEFAULT_OUT = Path("runs/demo")
BATCH_SIZE = 64
Results = dict[str, dict[str, "Result"]]


def demo(
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for report.html and the figures."),
    seed: int = typer.Option(0, help="Seed of the network and of the order of the images."),
    json: bool = JSON,
) -> None:
    """Train a small network on digits, shift the digits, and adapt it with every method."""
    import torch

    from offsupport.core.files import require_folder
    from offsupport.core.progress import progress
    from offsupport.training.digits import EPOCHS, digits_model

    require_folder(out)
    # The last bits of a convolution depend on the number of threads; one gives the same numbers on every machine.
    torch.set_num_threads(1)
    say("Training a small network on the digits inside scikit-learn ...")
    with progress("Training", EPOCHS) as advance:
        model = digits_model(seed, advance=advance)
    results = measure(model, seed)
    write_report(results, out, seed)
    if json:
        plain = {name: {m: r.to_dict() for m, r in row.items()} for name, row in results.items()}
        emit_json({"about": _facts(results, seed), "results": plain})
    else:
        columns = ["digits", *next(iter(results.values()))]
        emit_table(
            f"Error in %, with its 95 % interval; severity {SEVERITY}", columns, table_rows(results, "{}\n{}-{}")
        )
    say(f"Report: {out / 'report.html'}")


def measure(model: nn.Module, seed: int) -> Results:
    """Return the result of every method on the clean digits and on every corruption."""
    import offsupport
    from offsupport.core.progress import progress
    from offsupport.data import stream

    methods = offsupport.list_methods()
    sources = {"eata": _source_stats(model)}
    results: Results = {}
    with progress("Adapting", (1 + len(CORRUPTIONS)) * len(methods)) as advance:
        for name in ("clean", *CORRUPTIONS):
            kind = {} if name == "clean" else {"corruption": name, "severity": SEVERITY}
            batches = stream("digits-c" if kind else "digits", batch_size=BATCH_SIZE, seed=seed, **kind)  # type: ignore[arg-type]
            results[name] = {}
            for method in methods:
                adapted = offsupport.adapt(model, method, source=sources.get(method), collapse="off")
                results[name][method] = offsupport.evaluate(adapted, batches)
                advance(note=f"{method} on {name}")
    return results


def _source_stats(model: nn.Module) -> SourceStats:
    import offsupport
    from offsupport.data import stream

    return offsupport.source_stats(model, stream("digits", split="train", batch_size=BATCH_SIZE), "eata")


def table_rows(results: Results, form: str = "{} ({}-{})") -> list[list[str]]:
    """Return one row per kind of digits: its name, then error and interval, in this form, for each method."""
    return [[name, *(_cell(result, form) for result in row.values())] for name, row in results.items()]


def _cell(result: Result, form: str) -> str:
    bounds = (f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in result.ci95)
    return form.format(f"{100 * result.error:.1f}", *bounds)


def write_report(results: Results, out: Path, seed: int) -> None:
    """Write report.html and its figures as files of their own."""
    from offsupport.core.files import write_text
    from offsupport.report import figures
    from offsupport.report.page import Figure, Page, Section, Table, write

    methods = list(next(iter(results.values())))
    drawings = {
        "errors": figures.intervals({m: {c: _percent(row[m]) for c, row in results.items()} for m in methods}),
        "traces": figures.traces(
            {m: [100 * e for e in results["contrast"][m].trace] for m in methods}, "error of the batch (%)"
        ),
    }
    for name, drawing in drawings.items():
        write_text(out / f"{name}.svg", drawing)
    table = Table(["digits", *methods], table_rows(results), "Error in %, with its 95 % Wilson interval.")
    captions = {"errors": "Error of every method, clean and shifted.", "traces": "Contrast, batch by batch."}
    costs = Table(
        ["method", "seconds", "forward", "backward"],
        [
            [m, f"{row.seconds:.2f}", *(str(count) for count in row.passes.values())]
            for m, row in results["clean"].items()
        ],
        "What one pass over the clean test digits cost, in batches.",
    )
    section = Section(
        "Shifted digits",
        "The same network, the same images, one pass; only the method differs. 'source' is the network as trained.",
        tables=[table, costs],
        figures=[Figure(drawings[name], captions[name]) for name in drawings],
        notes=["Intervals in one row overlap less than they seem to: all methods saw the same images."],
        facts=_facts(results, seed),
    )
    intro = "A small residual network, trained on clean digits, meets noise, blur, changed light and weather."
    write(Page("offsupport demo", intro, [section]), out / "report.html")


def _percent(result: Result) -> tuple[float, float, float]:
    low, high = result.ci95
    return 100 * result.error, 100 * low, 100 * high


def _facts(results: Results, seed: int) -> dict[str, Any]:
    from offsupport import __version__
    from offsupport.data import stream

    about = stream("digits", batch_size=BATCH_SIZE, seed=seed).describe()
    n = next(iter(results["clean"].values())).n
    return {
        "command": f"offsupport demo --seed {seed}",
        "version": __version__,
        "data": f"digits, test split, {n} images, sha256 {about['sha256'][:16]}",
        "order": f"seed {seed}, sha256 {about['order_hash'][:16]}",
        "corruptions": f"severity {SEVERITY}, generated with seed 0",
        "batch size": str(BATCH_SIZE),
        "protocol": "online: one pass, reset at each corruption",
    }
