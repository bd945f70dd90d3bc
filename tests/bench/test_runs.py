"""A run as one command sees it: every result read and checked once, and parsed when somebody looks."""

from collections import Counter

import pytest
from bench_kinds import square_cell

from offsupport.bench import KINDS, Cell, Kind, Outcome, Place, Store
from offsupport.bench import store as store_module
from offsupport.bench.cell import label
from offsupport.bench.runs import Run, run_grid
from offsupport.core.errors import GridIncompleteError


@pytest.fixture
def counted(monkeypatch):
    counts = Counter()
    for name in ("intact", "parse"):
        real = getattr(store_module, name)
        monkeypatch.setattr(
            store_module, name, lambda data, name=name, real=real: (counts.update([name]), real(data))[1]
        )
    return counts


def test_a_result_is_checked_once_per_command_and_parsed_when_looked_at(tmp_path, counted):
    cells = [square_cell(x) for x in range(3)]
    store = Store(tmp_path)
    for cell in cells:
        store.write(cell, Outcome({"square": 1}, {}, {}))
    run = run_grid(cells, Place(tmp_path), {"verb": "bench"})
    assert len(run.summary.present) == 3
    for _ in range(2):
        assert run.status().counts() == {"total": 3, "done": 3, "failed": 0, "missing": 0}
    assert counted == {"intact": 3}
    for _ in range(2):
        assert [record.cell for record in run.status(cells).done] == cells
    assert counted == {"intact": 3, "parse": 3}


def test_cells_without_a_result_keep_their_names_and_reasons(tmp_path):
    done, failed, missing = (square_cell(x) for x in range(3))
    store = Store(tmp_path)
    store.add_to_grid([done, failed, missing], {"verb": "bench"})
    store.write(done, Outcome({}, {}, {}))
    store.write_failure(failed, "no luck")
    found = Run(tmp_path).status()
    assert found.failed == {failed: "no luck"}
    assert found.missing == {missing: "not computed yet"}


def test_a_run_with_failures_is_incomplete(tmp_path):
    run = run_grid([square_cell(1), square_cell(2, "raise")], Place(tmp_path), {"verb": "bench"})
    with pytest.raises(GridIncompleteError, match=r"1 of 2 cells have no result.*seven is right out"):
        run.require_complete()


def test_a_label_is_what_the_kind_names_its_cells_by(monkeypatch):
    monkeypatch.setattr(KINDS, "_items", dict(KINDS._items))
    KINDS.register("named")(Kind(dict, print, named_by=("colour", "parts")))
    cell = Cell("named", {"colour": "red", "parts": ["a", "b"], "size": "large"})
    assert label(cell) == f"red {cell.key[:8]}"
    unknown = Cell("unheard-of", {"colour": "red"})
    assert label(unknown) == unknown.key[:8]
