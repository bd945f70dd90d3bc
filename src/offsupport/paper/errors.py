"""Rows and claims about classification errors, shared by the tables that print them and by grids of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offsupport.bench.results import Part, difference, estimate, parts_of
from offsupport.bench.store import Record
from offsupport.paper.declare import Claim, Row, below

Printed = Mapping[tuple[str, str], float]
"""The paper's numbers by method and column."""


def error_rows(records: Sequence[Record], printed: Printed) -> list[Row]:
    """Return the error of each method on each corruption and on average, in percent.

    The average is left out for a method that lacks a column others have: it would compare different things.
    """
    table = _by_method_and_column(records)
    columns = list(dict.fromkeys(column for found in table.values() for column in found))
    rows = []
    for method, found in table.items():
        for dataset in dict.fromkeys(column.split("/")[0] for column in found):
            wanted = [column for column in columns if column.split("/")[0] == dataset]
            rows += [_row(method, column, found[column], printed) for column in wanted if column in found]
            if len(wanted) > 1 and all(column in found for column in wanted):
                every = [part for column in wanted for part in found[column]]
                rows.append(_row(method, f"{dataset}/avg", every, printed))
    return rows


def below_claims(records: Sequence[Record], pairs: Sequence[tuple[str, str]]) -> list[Claim]:
    """Check for each data set and pair (a, b) that the average error of a is below that of b, on shared columns."""
    table = _by_method_and_column(records)
    claims = []
    for better, worse in pairs:
        shared = [column for column in table.get(better, {}) if column in table.get(worse, {})]
        for dataset in dict.fromkeys(column.split("/")[0] for column in shared):
            columns = [column for column in shared if column.split("/")[0] == dataset]
            ours, theirs = ([part for c in columns for part in table[name][c]] for name in (better, worse))
            sentence = f"{better} has a lower average error than {worse} on {dataset}"
            claims.append(below(sentence, difference(ours, theirs), f"error({better}) - error({worse})"))
    return claims


def _by_method_and_column(records: Sequence[Record]) -> dict[str, dict[str, list[Part]]]:
    parts = parts_of(records)
    severities = {part.domain.rpartition("/")[2] for part in parts if "/" in part.domain}
    table: dict[str, dict[str, list[Part]]] = {}
    for part in parts:
        corruption = part.domain.rpartition("/")[0] if len(severities) == 1 and "/" in part.domain else part.domain
        table.setdefault(part.method, {}).setdefault(f"{part.dataset}/{corruption}", []).append(part)
    return table


def _row(method: str, column: str, parts: Sequence[Part], printed: Printed) -> Row:
    found = estimate(parts)
    return Row(
        method=method,
        column=column,
        metric="error",
        unit="percent",
        value=100 * found.value,
        low=100 * found.low,
        high=100 * found.high,
        n=found.n,
        paper=printed.get((method, column)),
        cells=found.cells,
    )
