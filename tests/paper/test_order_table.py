"""The table of orders: streams by order and shift, harm against no adaptation, and `minimal` against the others."""

from __future__ import annotations

from offsupport.bench.store import Record
from offsupport.results.correctness import pack
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.ours.order import CORRUPTIONS, METHODS, claims, rows
from offsupport.studies.tables import TABLES, TableOptions


def test_every_method_meets_every_stream():
    cells = TABLES["order"].cells("small", TableOptions())
    assert len(cells) == 2 * len(METHODS) * len(CORRUPTIONS) * 2
    assert {cell.config["dataset"] for cell in cells} == {"cifar10", "cifar10-c"}


def record(method, corruption, order, wrong):
    dataset = "digits-c" if corruption else "digits"
    cell = AdaptConfig(dataset=dataset, method=method, corruption=corruption, order=order).cell()
    images = pack(range(300), [i >= wrong for i in range(300)])
    return Record(cell.key, cell, {"domains": {corruption or "clean": {"images": images}}}, {}, {})


def test_harm_and_rank_are_judged_stream_by_stream():
    found = [
        *(record("source", corruption, order, 60) for corruption in (None, "fog") for order in ("iid", "sorted")),
        record("bn", None, "sorted", 200),
        record("bn", "fog", "sorted", 200),
        record("minimal", None, "sorted", 60),
        record("minimal", "fog", "sorted", 30),
    ]
    values = {(row.method, row.column): round(row.value) for row in rows(found)}
    assert values["bn", "small/clean-sorted"] == 67
    assert values["source", "small/shifted-random"] == 20
    verdicts = {claim.claim: claim.verdict for claim in claims(found)}
    assert verdicts["bn errs at most 1 point more than no adaptation on small/clean-sorted"] == "does-not-hold"
    assert verdicts["minimal errs at most 1 point more than no adaptation on small/clean-sorted"] == "holds"
    assert verdicts["minimal errs less than bn on small/shifted-sorted"] == "holds"
