import hashlib
import json
import random
import re

import pytest
from bench_kinds import square_cell

from offsupport.bench import Cell, Invalid, Outcome, Record, Store
from offsupport.bench.store import cpu_type
from offsupport.core.errors import FileError

OUTCOME = Outcome({"error": 0.125, "trace": [0.1, 1e-05]}, {"weights_sha256": "ab"}, {"seconds": 1.5})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


def test_round_trip(store):
    cell = square_cell(3)
    store.write(cell, OUTCOME)
    record = store.read(cell.key)
    assert isinstance(record, Record)
    assert record.cell == cell
    assert record.deterministic == OUTCOME.deterministic
    assert record.timing == OUTCOME.timing
    assert record.provenance["weights_sha256"] == "ab"
    assert {"offsupport", "torch", "numpy", "python", "cpu"} <= set(record.provenance)


def test_the_file_is_plain_json_with_a_checksum(store):
    cell = square_cell(3)
    store.write(cell, OUTCOME)
    whole = json.loads(store.path(cell.key).read_bytes())
    assert set(whole) == {"checksum", "record"}
    assert set(whole["record"]) == {"schema", "key", "cell", "deterministic", "provenance", "timing"}


def test_fingerprint_ignores_times_and_nothing_else(store):
    cell = square_cell(3)
    prints = []
    for outcome in (
        OUTCOME,
        Outcome(OUTCOME.deterministic, OUTCOME.provenance, {"seconds": 9}),
        Outcome({"error": 0.25}, OUTCOME.provenance, {}),
        Outcome(OUTCOME.deterministic, {"weights_sha256": "cd"}, {}),
    ):
        store.write(cell, outcome)
        prints.append(store.read(cell.key).fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_missing_is_said(store):
    found = store.read(square_cell(1).key)
    assert isinstance(found, Invalid)
    assert not found.found


def test_every_bit_flip_is_detected(store):
    cell = square_cell(3)
    store.write(cell, OUTCOME)
    path = store.path(cell.key)
    whole = path.read_bytes()
    rng = random.Random(0)
    # every bit of an exponent sign and its neighbours, where 1e-05 and 1E-05 read alike, and 100 random ones
    exponent = whole.index(b"1e-05")
    places = [(exponent + i, bit) for i in range(5) for bit in range(8)]
    places += [(rng.randrange(len(whole)), rng.randrange(8)) for _ in range(100)]
    for at, bit in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        found = store.read(cell.key)
        assert isinstance(found, Invalid), (at, bit)
        assert found.found
        assert "damaged" in found.reason
    path.write_bytes(whole)
    assert isinstance(store.read(cell.key), Record)


def test_every_truncation_is_detected(store):
    cell = square_cell(3)
    store.write(cell, OUTCOME)
    whole = store.path(cell.key).read_bytes()
    rng = random.Random(1)
    for length in [0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))]:
        store.path(cell.key).write_bytes(whole[:length])
        assert isinstance(store.read(cell.key), Invalid), length
    store.path(cell.key).write_bytes(whole + b" ")
    assert isinstance(store.read(cell.key), Invalid)


def test_other_schema_and_other_cell_are_not_used(store, monkeypatch):
    cell, other = square_cell(3), square_cell(4)
    store.write(cell, OUTCOME)
    store.path(other.key).write_bytes(store.path(cell.key).read_bytes())
    assert store.read(other.key) == Invalid("of another cell", found=True)
    monkeypatch.setattr("offsupport.bench.store.SCHEMA", 2)
    assert store.read(cell.key) == Invalid("of schema 1, this version reads 2", found=True)


def test_failure_is_forgotten_once_there_is_a_result(store):
    cell = square_cell(3)
    store.write_failure(cell, "no luck")
    assert store.failure(cell.key) == "no luck"
    store.write(cell, OUTCOME)
    assert store.failure(cell.key) is None


def test_lock_refuses_a_second_run_and_clears_leftovers(store):
    (store.folder / "cells").mkdir(parents=True)
    leftover = store.folder / "cells" / f".{square_cell(1).key}.json.abcdefgh.offsupport.tmp"
    leftover.touch()
    with store.locked():
        assert not leftover.exists()
        with pytest.raises(FileError, match=r"Another process is working in .*run.*Wait"), Store(store.folder).locked():
            pass
    with store.locked():
        pass


def test_grid_grows_and_remembers_the_last_request(store):
    store.add_to_grid([square_cell(1), square_cell(2)], {"verb": "first"})
    store.add_to_grid([square_cell(2), square_cell(3)], {"verb": "second"})
    assert store.grid() == [square_cell(i) for i in (1, 2, 3)]
    assert store.request() == {"verb": "second"}


def test_a_folder_that_is_no_run_is_said(store):
    with pytest.raises(FileError, match="not a run folder"):
        store.grid()


def test_non_finite_results_are_refused_before_anything_is_written(store):
    with pytest.raises(ValueError, match="Out of range"):
        store.write(square_cell(1), Outcome({"error": float("nan")}, {}, {}))
    assert not list(store.folder.rglob("*"))


def test_names_of_files_are_hashes(store):
    store.write(Cell("../../x", {"method": "../../etc"}), OUTCOME)
    (path,) = (store.folder / "cells").iterdir()
    assert re.fullmatch(r"[0-9a-f]{64}\.json", path.name)


def test_runs_beside_each_other_share_cells_where_a_marker_says_so(tmp_path):
    one, other, cell = Store(tmp_path / "one"), Store(tmp_path / "other"), square_cell(3)
    (tmp_path / "cells").mkdir()
    one.write(cell, OUTCOME)
    assert isinstance(Store(tmp_path / "other").read(cell.key), Invalid), "without the marker nothing is shared"
    (tmp_path / "cells" / "SHARED").touch()
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    assert isinstance(one.read(cell.key), Invalid), "what is shared is not looked for in the run's own folder"
    one.write(cell, OUTCOME)
    assert other.read(cell.key).deterministic == OUTCOME.deterministic
    assert [path.name for path in (tmp_path / "cells").iterdir() if path.name != "SHARED"] == [f"{cell.key}.json"]


def test_a_sealed_file_of_another_layout_is_judged_by_what_it_says(store):
    cell = square_cell(3)
    store.write(cell, OUTCOME)
    body = json.loads(store.path(cell.key).read_bytes())["record"]
    start = '{"checksum": "', '",\n"record": '
    for changes, expected in (
        ({}, None),
        ({"key": "f" * 64}, "of another cell"),
        ({"schema": 7}, "of schema 7, this version reads 1"),
    ):
        rest = json.dumps({**body, **changes}) + "}\n"  # one line: no field begins a line of its own
        checksum = hashlib.sha256(rest.encode()).hexdigest()
        store.path(cell.key).write_text(f"{start[0]}{checksum}{start[1]}{rest}")
        found = store.read(cell.key)
        assert isinstance(found, Record) if expected is None else found == Invalid(expected, found=True)


def test_no_value_is_taken_for_a_field(store):
    cell = square_cell(3)
    store.write(cell, Outcome({"note": f'\n "key": "{"e" * 64}",\n', "key": "e" * 64}, {}, {}))
    other = store.path("e" * 64)
    other.write_bytes(store.path(cell.key).read_bytes())
    assert store.read("e" * 64) == Invalid("of another cell", found=True)


def test_cpus_that_share_a_name_are_told_apart():
    info = "model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: {}\nflags\t: fpu avx avx2 {}\n\nprocessor : 1"
    kinds = {cpu_type(info.format(*each)) for each in ((1, ""), (17, "avx512f"), (17, ""))}
    assert kinds == {"AMD EPYC (25/1, avx2)", "AMD EPYC (25/17, avx512f)", "AMD EPYC (25/17, avx2)"}
    assert cpu_type("") == cpu_type("Hardware : none"), "where nobody tells, the platform does"
