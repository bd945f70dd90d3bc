"""Synthetic tables: cells, rows and claims from stored blocks of runs."""

import json

import numpy as np
import pytest

from offsupport.bench.cell import Place, compute
from offsupport.bench.runs import Status
from offsupport.bench.store import Record, Store
from offsupport.core.errors import ConfigError
from offsupport.functional import wilson
from offsupport.latent.extrapolator.dense import FlowConfig
from offsupport.latent.process.process import preset
from offsupport.report.page import render
from offsupport.report.run_page import run_page
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.latent_runs import LatentConfig, LikelihoodConfig, RadiusConfig, make
from offsupport.studies.ours.sensitivity import CLAIMS as SENSITIVITY_CLAIMS
from offsupport.studies.synthetic import (
    FIRST,
    WITH_CHANGES,
    Names,
    below_by_column,
    bounded,
    median_radii,
    outcomes,
    synthetic_rows,
)


def record(method, outcome, metric="accuracy", first=0, shift="dense", distances=(12.0,), targets=1):
    """What a cell would have stored; outcome is (runs, distances, targets), or less where an axis has one entry."""
    outcome = np.asarray(outcome, dtype=float).reshape(-1, len(distances), targets)
    config = LatentConfig(
        method=method, shift=shift, distances=list(distances), first=first, runs=len(outcome), targets=targets
    )
    cell = config.cell()
    measured = {"metric": metric, "outcome": outcome.mean(-1).tolist(), "first_target": outcome[..., 0].tolist()}
    return Record(cell.key, cell, measured, {}, {"seconds": 1.0})


def test_blocks_cover_the_runs_once():
    for method, expected in (("vae", [(0, 50), (50, 10)]), ("trimmed-nn", [(0, 25), (25, 25), (50, 10)])):
        cells = TABLES["tableA1"].cells("small", TableOptions(runs=60, methods=(method,)))
        spans = [(c.config["shift"], c.config["first"] - FIRST, c.config["runs"]) for c in cells]
        assert spans == [(shift, *span) for shift in ("dense", "sparse") for span in expected]


def test_no_reported_run_was_seen_when_something_was_chosen():
    choice = {
        seed
        for cell in TABLES["kl-choice"].cells("paper", TableOptions())
        for seed in range(cell.config["first"], cell.config["first"] + cell.config["runs"])
    }
    for table in ("table1", "tableA1", "harder", "sensitivity"):
        for cell in TABLES[table].cells("paper", TableOptions()):
            seeds = range(cell.config["first"], cell.config["first"] + cell.config["runs"])
            assert seeds[0] >= 500  # stored and looked at while the estimators were built
            assert not choice & set(seeds)


def test_only_methods_that_do_not_fit_targets_have_several():
    cells = [c for c in TABLES["table1"].cells("smoke", TableOptions()) if c.kind == "latent"]
    assert {c.config["method"] for c in cells if c.config["targets"] == 1} == {"vae", "imsda"}
    assert all(("kl" in c.config["options"]) == (c.config["targets"] == 1) for c in cells)


@pytest.mark.parametrize("name", ["table1", "tableA1"])
def test_smoke_learns_from_less_and_no_other_scale_does(name):
    cells = [cell for cell in TABLES[name].cells("smoke", TableOptions()) if cell.kind == "latent"]
    assert all(cell.config["changes"] == {"n_source": 4000} for cell in cells)
    flows = {cell.config["method"] for cell in cells if "flow" in cell.config["options"]}
    assert flows == {"extrapolator", "extrapolator-inferred"}
    for cell in TABLES[name].cells("small", TableOptions()):
        assert not cell.config["changes"]
        assert "flow" not in cell.config.get("options", {})


def test_a_cell_says_how_flows_are_fitted_in_plain_values():
    made = make("extrapolator", preset("table", "dense"), {"flow": {"rounds": 2}})
    assert made.flow == FlowConfig(rounds=2)
    with pytest.raises(ConfigError, match="Unknown setting 'round' for the flow"):
        make("extrapolator", preset("table", "dense"), {"flow": {"round": 2}})


def test_accuracy_is_wilson_over_all_blocks():
    records = [record("vae", [1, 1, 0]), record("vae", [1, 0], first=3)]
    (row,) = synthetic_rows(records, {("vae", "dense-12"): 0.78})
    assert (row.value, row.n, row.paper) == (0.6, 5, 0.78)
    assert (row.low, row.high) == wilson(3, 5)


def test_mse_is_a_mean_with_a_bootstrap_interval():
    rng = np.random.default_rng(0)
    errors = rng.exponential(size=400)
    (row,) = synthetic_rows([record("vae", errors, metric="mse")], {})
    assert row.value == pytest.approx(errors.mean())
    half = 1.96 * errors.std() / 20
    assert row.high - row.low == pytest.approx(2 * half, rel=0.2)


def test_claims_pair_the_same_runs():
    rng = np.random.default_rng(0)
    base = rng.random(300) < 0.5
    better = base | (rng.random(300) < 0.2)
    records = [record("extrapolator", better), record("only-source", base)]
    (claim,) = below_by_column(records, [("extrapolator", "only-source", "dense"), ("vae", "only-source", "dense")])
    assert claim.verdict == "holds"
    assert claim.evidence.value == pytest.approx(-100 * (better.mean() - base.mean()))
    (other,) = below_by_column(records, [("only-source", "extrapolator", "dense")])
    assert other.verdict == "does-not-hold"


def test_several_targets_of_a_run_count_as_one_draw():
    rng = np.random.default_rng(0)
    easy = rng.random(200) < 0.5  # all targets of a run are right, or all are wrong
    clustered = np.repeat(easy[:, None], 10, 1)
    (row,) = synthetic_rows([record("extrapolator", clustered, targets=10)], {})
    (alone,) = synthetic_rows([record("extrapolator", easy)], {})
    assert (row.value, row.n) == (pytest.approx(easy.mean()), 2000)
    assert row.high - row.low == pytest.approx(alone.high - alone.low, rel=0.1)


def test_methods_with_several_targets_meet_others_on_the_first():
    rng = np.random.default_rng(0)
    ours = (rng.random((200, 1, 10)) < 0.9).astype(float)
    ours[:, 0, 0] = 0  # wrong on every first target
    theirs = np.ones(200)
    records = [record("vae", theirs), record("extrapolator", ours, targets=10)]
    (claim,) = below_by_column(records, [("vae", "extrapolator", "dense")])
    assert claim.evidence.value == pytest.approx(-100)
    records = [record("trimmed-nn", 0 * ours, targets=10), record("extrapolator", ours, targets=10)]
    (claim,) = below_by_column(records, [("extrapolator", "trimmed-nn", "dense")])
    assert claim.evidence.value == pytest.approx(-100 * ours.mean())


def test_a_bound_is_met_when_the_interval_is():
    right = np.random.default_rng(0).random((300, 1)) < 0.97
    (met,) = bounded([record("extrapolator", right)], "extrapolator", {"dense-12": 0.1, "dense-5": 0.1})
    (missed,) = bounded([record("extrapolator", right)], "extrapolator", {"dense-12": 0.005})
    (open_,) = bounded([record("extrapolator", right)], "extrapolator", {"dense-12": 0.03})
    assert (met.verdict, missed.verdict, open_.verdict) == ("holds", "does-not-hold", "undecided")
    assert met.evidence.value == pytest.approx(100 * (1 - right.mean() - 0.1))
    assert met.evidence.low <= met.evidence.value <= met.evidence.high


def test_a_margin_allows_some_loss():
    rng = np.random.default_rng(0)
    base = rng.random((400, 1)) < 0.9
    worse = base & (rng.random((400, 1)) < 0.98)
    records = [record("extrapolator-inferred", worse), record("extrapolator", base)]
    pair = [("extrapolator-inferred", "extrapolator", "dense")]
    assert below_by_column(records, pair)[0].verdict == "does-not-hold"
    assert below_by_column(records, pair, margin=0.05)[0].verdict == "holds"


def test_a_cell_computes_what_the_block_function_does(tmp_path):
    from offsupport.studies.latent_runs import run_block

    config = LatentConfig(method="only-source", shift="sparse", distances=[18.0, 24.0], first=7, runs=2)
    outcome = compute(config.cell(), Place(tmp_path))
    expected = run_block("sparse", "classification", "only-source", [7, 8], [18.0, 24.0]).per_run()
    assert outcome.deterministic == {"metric": "accuracy", "outcome": expected.tolist()}
    Store(tmp_path).write(config.cell(), outcome)
    found = outcomes([Store(tmp_path).read(config.cell().key)], Names())
    assert set(found["only-source"]) == {"sparse-18", "sparse-24"}
    assert set(found["only-source"]["sparse-18"].mean) == {7, 8}


@pytest.mark.parametrize("name", ["table1", "tableA1"])
def test_printed_numbers_stand_beside_the_columns_that_exist(name):
    from offsupport.studies.paper import table1, table_a1

    printed = {"table1": table1, "tableA1": table_a1}[name].PRINTED
    columns = {"table1": table1, "tableA1": table_a1}[name].COLUMNS
    known = {f"{shift}-{distance:g}" for shift, distances in columns.items() for distance in distances}
    assert {column for _, column in printed} <= known


def test_report_draws_a_curve_per_shift():
    table = TABLES["table1"]
    records = [
        record(m, [1, 0, 1], shift=s, distances=(12.0,)) for m in ("vae", "only-source") for s in ("dense", "sparse")
    ]
    found = table.measure("smoke", records)
    json.dumps(found.to_dict(), allow_nan=False)
    page = render(run_page(table.title, "about", found, Status(records, {}, {})))
    assert page.count("<svg") == 2
    assert "as printed" in page


def test_report_marks_the_median_radius_of_theorem_1():
    cell = RadiusConfig(shift="dense", runs=3).cell()
    radii = {"radius": {"certified": [0.1, 0.2, 0.9], "local": [0.3, 0.5, 7.0]}}
    records = [record("vae", [1, 0, 1]), Record(cell.key, cell, radii, {}, {"seconds": 1.0})]
    assert median_radii(records) == {"dense": {"certified": 0.2, "local": 0.5}}
    found = TABLES["table1"].measure("smoke", records)
    page = render(run_page("title", "about", found, Status(records, {}, {})))
    assert "Theorem 1 radius" in page
    assert "0.20 certified, 0.50 local" in page


def test_rows_and_columns_say_what_differs_from_table_1():
    cells = TABLES["sensitivity"].cells("smoke", TableOptions())
    rows = {WITH_CHANGES.row(cell.config) for cell in cells}
    groups = {WITH_CHANGES.group(cell.config) for cell in cells}
    assert {"vae", "vae, kl=0.01", "vae, kl=0.001", "vae, prior=classes", "only-source"} <= rows
    assert groups == {group for _, _, group in SENSITIVITY_CLAIMS}
    assert len(cells) == len(set(cells))
    harder = TABLES["harder"].cells("smoke", TableOptions())
    assert {WITH_CHANGES.group(c.config) for c in harder} == {"sparse, influence=varying", "sparse, noise=0.05"}


def test_the_weight_in_use_is_the_one_of_highest_likelihood():
    def stored(kl, nats):
        cell = LikelihoodConfig(method="vae", shift="dense", options={"kl": kl}, runs=len(nats)).cell()
        return Record(cell.key, cell, {"nats": list(nats)}, {}, {"seconds": 1.0})

    noise = np.random.default_rng(0).normal(size=30)
    records = [stored(0.1, -7 + noise), stored(0.01, -7.5 + noise), stored(0.001, -6.5 + noise)]
    found = TABLES["kl-choice"].measure("paper", records).to_dict()
    assert [row["value"] for row in found["rows"]] == pytest.approx([v + noise.mean() for v in (-7, -7.5, -6.5)])
    assert [claim["verdict"] for claim in found["claims"]] == ["holds", "does-not-hold"]
    assert found["claims"][0]["evidence"]["value"] == pytest.approx(-0.5)
    assert len(TABLES["kl-choice"].cells("smoke", TableOptions(methods=("vae",)))) == 6
    with pytest.raises(ConfigError, match="no method 'trimmed-nn'"):
        TABLES["kl-choice"].cells("smoke", TableOptions(methods=("trimmed-nn",)))


def test_cells_of_the_other_kinds_compute(tmp_path):
    radius = compute(RadiusConfig(shift="dense", first=1_000_000, runs=1).cell(), Place(tmp_path)).deterministic
    assert {way: len(values) for way, values in radius["radius"].items()} == {"certified": 1, "sampled": 1, "local": 1}
    assert 0 < radius["radius"]["certified"][0] <= radius["radius"]["sampled"][0] <= radius["radius"]["local"][0]
    config = LikelihoodConfig(method="vae", shift="dense", options={"epochs": 1}, first=1_000_000, runs=1)
    (nats,) = compute(config.cell(), Place(tmp_path)).deterministic["nats"]
    assert np.isfinite(nats)


def test_an_unknown_method_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="Did you mean 'extrapolator'"):
        TABLES["table1"].cells("smoke", TableOptions(methods=("extrapolatr",)))
