"""The theory panel: radii of Theorem 1, identifiability and likelihood gaps, and assumptions found to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from offsupport.bench.store import Record
from offsupport.paper.columns import radii_of
from offsupport.report import figures
from offsupport.report.page import Figure, Section, Table

NAMES = {
    "r2_c": "R² of c from its estimate",
    "certified_radius": "certified radius of Theorem 1",
    "gap": "likelihood missed by the dense fit (nats)",
    "gap_oracle": "likelihood missed when begun at the truth (nats)",
}
Values = Mapping[str, Mapping[str, Sequence[float]]]


def theory_sections(records: Sequence[Record]) -> list[Section]:
    """Return the section about what the theorems say of these runs, if any result measures it."""
    radii, scores, failing = radii_of(records), _scores(records), _failing(records)
    tables, drawings = [], []
    if radii:
        drawings.append(_spread(radii, "distance from the support", "Radius of Theorem 1 by the way it is computed"))
        tables.append(_quartiles({f"{shift}: {way}": v for shift, own in radii.items() for way, v in own.items()}))
    if scores:
        tables.append(_quartiles({NAMES.get(name, name): values for name, values in scores.items()}))
        drawings += [_histogram(name, values) for name, values in scores.items() if len(set(values)) > 1]
    if failing:
        rows = [[name, f"{100 * count / runs:.0f}", str(runs)] for name, (count, runs) in failing.items()]
        tables.append(Table(["assumption", "fails in (%)", "runs"], rows, "Assumptions of Theorem 1 with a witness."))
    return [Section("Theory", tables=tables, figures=drawings)] if tables else []


def _scores(records: Sequence[Record]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in records:
        for name, values in record.deterministic.get("scores", {}).items():
            found.setdefault(name, []).extend(values)
    return found


def _failing(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """How many runs have a witness against each assumption, and of how many."""
    found: dict[str, tuple[int, int]] = {}
    for record in records:
        for name, count in record.deterministic.get("failing", {}).items():
            counted, runs = found.get(name, (0, 0))
            found[name] = counted + count, runs + record.cell.config["runs"]
    return found


def _spread(values: Values, label: str, what: str) -> Figure:
    series = {
        name: {way: _interval(found, (50, 10, 90)) for way, found in groups.items()} for name, groups in values.items()
    }
    return Figure(figures.intervals(series, label), f"{what}: the median over runs, and four in five.")


def _histogram(name: str, values: Sequence[float]) -> Figure:
    words = NAMES.get(name, name)
    return Figure(figures.histogram({"runs": values}, words, bins=12), f"{words}, over {len(values)} runs.")


def _quartiles(named: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for name, values in named.items():
        median, low, high = _interval(values, (50, 25, 75))
        rows.append([name, f"{median:.3f}", f"{low:.3f} to {high:.3f}", str(len(values))])
    return Table(["quantity", "median", "half of the runs", "runs"], rows)


def _interval(values: Sequence[float], quantiles: tuple[float, float, float]) -> figures.Interval:
    middle, low, high = np.percentile(values, quantiles)
    return float(middle), float(low), float(high)
