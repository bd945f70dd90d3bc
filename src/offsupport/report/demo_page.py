"""The page of the tour: what was measured on digits, on the paper's synthetic data, and what the theory says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offsupport.report import figures
from offsupport.report.page import Figure, Page, Section, Table
from offsupport.report.tables import value_text
from offsupport.results.rows import Measured

if TYPE_CHECKING:
    from offsupport.theory import Diagnosis

METHODS = ("source", "bn", "tent", "shot", "eata", "sar")
RUN, DISTANCE = 5, 3.1
"""The diagnosed target: a run of the process that meets the assumptions, and how far its s lies from the origin."""
Results = dict[str, dict[str, dict[str, Any]]]
"""What was measured on digits, by corruption and method."""

_INTRO = (
    "A small residual network, trained on clean digits, meets noise, blur, changed light and weather; estimators meet "
    "synthetic samples outside the support of their training data; and the theory says of one sample whether it can be "
    "recovered at all."
)


def demo_page(results: Results, table: Measured, diagnosis: Diagnosis, about: Mapping[str, str]) -> Page:
    """Return the page of the tour.

    Args:
        results: Measured on digits.
        table: Table 1, measured.
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


def _synthetic(table: Measured) -> Section:
    cells = {(row.method, row.column): row for row in table.rows}
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    body = [[m, *(value_text(cells[m, c]) if (m, c) in cells else "" for c in columns)] for m in methods]
    verdicts = [claim.verdict for claim in table.claims]
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


def table_rows(results: Results, form: str = "{} ({}-{})") -> list[list[str]]:
    """Return one row per kind of digits: its name, then error and interval, in this form, for each method."""
    return [[name, *(_cell(result, form) for result in row.values())] for name, row in results.items()]


def _cell(result: dict[str, Any], form: str) -> str:
    bounds = (f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in result["ci95"])
    return form.format(f"{100 * result['error']:.1f}", *bounds)
