"""bench diff and bench verify: planted differences are found and named, equal runs are equal."""

import json

import pytest
from bench_kinds import square_cell

from offsupport.bench import Outcome, Place, Store
from offsupport.bench.runs import run_grid
from offsupport.bench.store import seal
from offsupport.bench.verify import TOLERANCE, compare, differing, require_same, verify
from offsupport.core.errors import FileError, GridIncompleteError


def changed(store, cell, change):
    """Change a stored result as if it had been computed so."""
    body = json.loads(store.path(cell.key).read_bytes())["record"]
    change(body)
    store.path(cell.key).write_bytes(seal(body))


def run_of(folder, cells, found=lambda x: {"square": x * x}):
    store = Store(folder)
    for cell in cells:
        store.write(cell, Outcome(found(cell.config["x"]), {"data_sha256": "0"}, {"seconds": 1.0}))
    store.add_to_grid(cells, {"verb": "bench"})
    return store


def test_equal_runs_differ_in_nothing_but_times(tmp_path):
    cells = [square_cell(x) for x in range(3)]
    run_of(tmp_path / "a", cells)
    later = run_of(tmp_path / "b", cells)
    changed(later, cells[0], lambda body: body["timing"].update(seconds=9))
    assert compare(tmp_path / "a", tmp_path / "b") == []


def test_every_planted_difference_is_named_once(tmp_path):
    cells = [square_cell(x) for x in range(4)]
    run_of(tmp_path / "a", cells)
    other = run_of(tmp_path / "b", cells)
    for cell in cells[1:3]:
        changed(other, cell, lambda body: body["deterministic"].update(square=-1))
    changed(other, cells[3], lambda body: body["provenance"].update(cpu="abacus", extra=1))
    found = {each.field: each for each in compare(tmp_path / "a", tmp_path / "b")}
    assert list(found) == ["deterministic.square", "provenance.cpu", "provenance.extra"]
    assert (found["deterministic.square"].cells, found["deterministic.square"].a, found["deterministic.square"].b) == (
        2, 1, -1,
    )  # fmt: skip
    assert (found["provenance.cpu"].cells, found["provenance.cpu"].b) == (1, "abacus")
    assert (found["provenance.extra"].a, found["provenance.extra"].b) == ("(absent)", 1)


def test_runs_of_other_settings_say_which(tmp_path):
    run_of(tmp_path / "a", [square_cell(x) for x in (1, 2)])
    run_of(tmp_path / "b", [square_cell(1), square_cell(2, "brief")])
    (found,) = compare(tmp_path / "a", tmp_path / "b")
    assert (found.field, found.a, found.b) == ("config.behaviour", ["fine"], ["brief"])


def test_two_result_files_of_different_cells(tmp_path):
    store = run_of(tmp_path, [square_cell(1), square_cell(3)])
    found = compare(store.path(square_cell(1).key), store.path(square_cell(3).key))
    assert [(each.field, each.a, each.b) for each in found] == [("config.x", 1, 3), ("deterministic.square", 1, 9)]
    with pytest.raises(FileError, match="no run folder or result file"):
        compare(tmp_path, tmp_path / "nowhere")
    store.path(square_cell(1).key).write_bytes(b"{}")
    with pytest.raises(FileError, match="damaged"):
        compare(store.path(square_cell(1).key), tmp_path)


def test_true_and_one_differ():
    assert list(differing({"a": True, "b": [1, 2]}, {"a": 1, "b": [1, 2]})) == [("a", True, 1)]


@pytest.fixture
def squares(in_process, tmp_path):
    cells = [square_cell(x) for x in range(4)]
    run_grid(cells, Place(tmp_path / "run"), {"verb": "bench"})
    return tmp_path / "run", cells


def test_what_was_computed_here_is_verified_bit_for_bit_and_only_read(squares):
    folder, _ = squares
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    found = verify(folder, sample=3)
    assert (found.done, found.sample, found.exact, found.tolerant, found.different) == (4, 3, 3, 0, {})
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before
    assert verify(folder, sample=99).exact == 4


def test_a_forged_result_is_found_and_told(squares):
    folder, cells = squares
    changed(Store(folder), cells[3], lambda body: body["deterministic"].update(square=9.0000001))
    found = verify(folder, sample=4)
    (said,) = found.different.values()
    assert said == "deterministic.square was 9.0000001, is 9"
    with pytest.raises(GridIncompleteError, match="1 of 4 results came out differently") as error:
        require_same(found, folder)
    assert error.value.exit_code == 4


@pytest.mark.parametrize(("value", "same"), [(9 * (1 + 0.9 * TOLERANCE), True), (9 * (1 + 1.2 * TOLERANCE), False)])
def test_results_from_elsewhere_are_compared_within_the_tolerance(squares, value, same):
    folder, cells = squares
    for cell in cells:
        changed(Store(folder), cell, lambda body: body["provenance"].update(cpu="another"))
    changed(Store(folder), cells[3], lambda body: body["deterministic"].update(square=value))
    found = verify(folder, sample=4)
    assert (found.exact, found.tolerant, not found.different) == (3, 1, same), "three have the same bits there too"
    assert "because versions or CPU are others" in found.words()


@pytest.mark.parametrize(("there", "same"), [([1.0, 0.95, 0.9], True), ([0.9, 0.9, 0.9], False), ([0.95], False)])
def test_runs_are_compared_by_their_mean_elsewhere(there, same, in_process, tmp_path):
    cell = square_cell(3, "runs")
    run_grid([cell], Place(tmp_path), {"verb": "bench"})
    changed(Store(tmp_path), cell, lambda body: body["deterministic"].update(runs=there))
    assert verify(tmp_path).different, "here every bit counts"
    changed(Store(tmp_path), cell, lambda body: body["provenance"].update(cpu="another"))
    assert (not verify(tmp_path).different) is same


def test_single_gates_may_differ_elsewhere_and_their_sums_may_not(in_process, tmp_path):
    cell = square_cell(3, "gates")
    run_grid([cell], Place(tmp_path), {"verb": "bench"})
    there = {"gates": {"conv": [0.9]}, "zero_gates": 0.1}
    changed(Store(tmp_path), cell, lambda body: body["deterministic"].update(findings=there))
    (said,) = verify(tmp_path).different.values()
    assert said == "deterministic.findings.gates.conv[0] was 0.9, is 0.4", "here every bit counts"
    changed(Store(tmp_path), cell, lambda body: body["provenance"].update(cpu="another"))
    assert not verify(tmp_path).different
    changed(Store(tmp_path), cell, lambda body: body["deterministic"]["findings"].update(zero_gates=0.2))
    (said,) = verify(tmp_path).different.values()
    assert said == "deterministic.findings.zero_gates was 0.2, is 0.1"


def test_other_data_are_different_everywhere(squares):
    folder, cells = squares
    changed(Store(folder), cells[0], lambda body: body["provenance"].update(cpu="another", data_sha256="1"))
    (said,) = verify(folder, sample=4).different.values()
    assert "provenance.data_sha256 was '1', is '0'" in said


@pytest.mark.parametrize(("square", "same"), [(9, True), (9.05, False)])
def test_data_that_came_another_way_is_the_same_where_every_bit_is(squares, square, same):
    """Hashes of files and of how data are made never agree; numbers that are only close do not tell that data do."""
    folder, cells = squares
    elsewhere = {"cpu": "another", "data_source": "files", "data_sha256": "1"}
    changed(Store(folder), cells[3], lambda body: body["provenance"].update(elsewhere))
    changed(Store(folder), cells[3], lambda body: body["deterministic"].update(square=square))
    found = verify(folder, sample=4)
    assert (found.remade, not found.different) == (int(same), same)
    assert ("came another way" in found.words()) is same


def test_a_result_that_fails_now_is_different(tmp_path):
    store = run_of(tmp_path, [square_cell(7, "raise")])
    (said,) = verify(store.folder).different.values()
    assert said == "failed now: RuntimeError: seven is right out"


def test_a_run_without_results_cannot_be_verified(tmp_path):
    store = Store(tmp_path)
    store.add_to_grid([square_cell(1)], {"verb": "bench"})
    with pytest.raises(GridIncompleteError, match="no results yet"):
        verify(tmp_path)
