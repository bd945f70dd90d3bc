"""A table of someone else's: one file, the public helpers, and the commands know it."""

import json

import pytest

from offsupport import register_table
from offsupport.bench.store import Outcome, Store
from offsupport.cli.listing import list_
from offsupport.core.errors import ConfigError
from offsupport.report.run_page import write_report
from offsupport.results.correctness import pack
from offsupport.studies import TABLES, Request, Table, below_claims, expand


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setattr(TABLES, "_items", dict(TABLES._items))
    return register_table(
        Table(
            name="mine",
            title="Fog on the embedded digits",
            grid=lambda scale, options: expand(
                {"method": options.methods or ["source", "bn"]}, dataset="digits-c", corruption="fog"
            ),
            claims=lambda records: below_claims(records, [("bn", "source")]),
            options=frozenset({"methods"}),
        )
    )


def test_a_registered_table_is_listed_among_those_people_look_for(mine, capsys):
    list_("tables", json=True)
    rows = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in rows]
    assert names.index("mine") < min(names.index(row["name"]) for row in rows if row["record"])
    list_("tables", json=False)
    menu, records = capsys.readouterr().out.split("records: ")
    assert "mine" in menu
    assert "tuning" in records
    assert "tuning" not in menu


def test_records_are_tunings_and_sensitivities():
    tunings = {"tuning", "tuning-policy", "tuning-prox", "tuning-sc", "tuning-mae"}
    assert {name for name in TABLES if TABLES[name].record} == tunings | {"kl-choice", "sensitivity", "harder"}


def test_a_registered_table_is_reported_with_its_rows_and_claims(mine, tmp_path):
    store, cells = Store(tmp_path), mine.cells("smoke")
    store.add_to_grid(cells, Request("mine", "smoke").to_dict())
    for share, cell in zip((0.5, 0.9), cells, strict=True):
        correct = [i < 100 * share for i in range(100)]
        found = {"error": 1 - share, "n": 100, "images": pack(range(100), correct)}
        measured = {"n": 100, "domains": {"fog/5": found}, "trace": [], "passes": {}, "events": {}, "warnings": []}
        store.write(cell, Outcome(measured, {"weights_sha256": "ab"}, {"seconds": 1.0}))
    path, found = write_report(tmp_path)
    assert path.is_file()
    assert [(row.method, round(row.value, 9)) for row in found.rows] == [("source", 50.0), ("bn", 10.0)]
    assert [claim.verdict for claim in found.claims] == ["holds"]
    assert all(row.cells == (cell.key,) for row, cell in zip(found.rows, cells, strict=True))


def test_a_name_is_taken_once(mine):
    with pytest.raises(ConfigError, match="'mine' is registered already"):
        register_table(mine)
