"""Rows and claims about classification errors, shared by the tables that print them and by grids of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offsupport.bench.results import Part, difference, estimate, parts_of
from offsupport.bench.store import Record
from offsupport.paper.declare import Claim, Row, below

Printed = Mapping[tuple[str, str], float]
"""The paper's numbers by method and column."""


Columns = dict[str, dict[str, list[Part]]]
"""Results by method and column."""


def error_rows(records: Sequence[Record], printed: Printed) -> list[Row]:
    """Return the error of each method on each corruption and on average, in percent.

    The average is left out for a method that lacks a column others have: it would compare different things.
    """
    rows = []
    for dataset, table in _by_dataset(records).items():
        columns = list(dict.fromkeys(column for found in table.values() for column in found))
        for method, found in table.items():
            rows += [error_row(method, column, found[column], printed) for column in columns if column in found]
            if len(columns) > 1 and all(column in found for column in columns):
                every = [part for column in columns for part in found[column]]
                rows.append(error_row(method, f"{dataset}/avg", every, printed))
    return rows


def below_claims(records: Sequence[Record], pairs: Sequence[tuple[str, str]]) -> list[Claim]:
    """Check for each data set and pair (a, b) that the average error of a is below that of b, on shared columns.

    Only seeds that both have are compared: a seed is an order of the stream, and some orders are easier.
    """
    claims = []
    for dataset, table in _by_dataset(records).items():
        for better, worse in pairs:
            shared = [column for column in table.get(better, {}) if column in table.get(worse, {})]
            if shared:
                both = [_same_seeds(table[better][column], table[worse][column]) for column in shared]
                ours, theirs = ([part for found in side for part in found] for side in zip(*both, strict=True))
                sentence = f"{better} has a lower average error than {worse} on {dataset}"
                claims.append(below(sentence, difference(ours, theirs), f"error({better}) - error({worse})"))
    return claims


def below_each(records: Sequence[Record], better: str, worse: str) -> list[Claim]:
    """Check for each column that the error of one method is below that of another."""
    claims = []
    for table in _by_dataset(records).values():
        ours, theirs = table.get(better, {}), table.get(worse, {})
        for column in (column for column in ours if column in theirs):
            sentence = f"{better} has a lower error than {worse} on {column}"
            found = difference(*_same_seeds(ours[column], theirs[column]))
            claims.append(below(sentence, found, f"error({better}) - error({worse})"))
    return claims


def _same_seeds(ours: Sequence[Part], theirs: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Return what both sides have of the seeds that both have; all, where they have none in common."""
    seeds = {_seed(part) for part in ours} & {_seed(part) for part in theirs}
    if not seeds:
        return list(ours), list(theirs)
    return [part for part in ours if _seed(part) in seeds], [part for part in theirs if _seed(part) in seeds]


def _seed(part: Part) -> int:
    return int(part.record.cell.config["seed"])


def _by_dataset(records: Sequence[Record]) -> dict[str, Columns]:
    """Lay results out by data set; settings that differ between data sets only are no part of a method's name."""
    own: dict[str, list[Record]] = {}
    for record in (record for record in records if record.cell.kind == "adapt"):
        own.setdefault(str(record.cell.config["dataset"]), []).append(record)
    return {dataset: _by_method_and_column(found) for dataset, found in own.items()}


def _by_method_and_column(records: Sequence[Record]) -> Columns:
    parts = parts_of(records)
    severities = {part.domain.rpartition("/")[2] for part in parts if "/" in part.domain}
    table: Columns = {}
    for part in parts:
        corruption = part.domain.rpartition("/")[0] if len(severities) == 1 and "/" in part.domain else part.domain
        table.setdefault(part.method, {}).setdefault(f"{part.dataset}/{corruption}", []).append(part)
    return table


def error_row(method: str, column: str, parts: Sequence[Part], printed: Printed) -> Row:
    """Return the error over parts in percent, with its interval."""
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
