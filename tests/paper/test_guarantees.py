"""The table of guarantees: rows and claims from stored studies."""

import numpy as np
import pytest

from offsupport.bench.store import Record
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.guarantee_runs import GuaranteeConfig
from offsupport.studies.ours.guarantees import _correlation, _ratio, claims, rows


def record(study, accuracy, scores, failing=None, first=0):
    runs = len(next(iter(scores.values())))
    cell = GuaranteeConfig(study=study, first=first, runs=runs).cell()
    return Record(cell.key, cell, {"accuracy": accuracy, "scores": scores, "failing": failing or {}}, {}, {})


def verdicts(records):
    return {claim.claim: claim.verdict for claim in claims(records)}


def test_blocks_cover_the_runs_once_and_smoke_fits_no_flow():
    cells = TABLES["guarantees"].cells("small", TableOptions(runs=30))
    spans = sorted(
        (c.config["study"], c.config["first"], c.config["runs"]) for c in cells if c.config["study"] != "sparse"
    )
    assert spans == [(study, *span) for study in ("gap", "inside") for span in ((0, 25), (25, 5))]
    assert {c.config["study"] for c in TABLES["guarantees"].cells("smoke", TableOptions())} == {"sparse", "inside"}


@pytest.mark.parametrize(("reached", "verdict"), [(0.97, "holds"), (0.85, "does-not-hold")])
def test_guarantees_are_held_against_the_ceiling_and_the_threshold(reached, verdict):
    rng = np.random.default_rng(0)
    values = (reached + 0.01 * rng.normal(size=25)).tolist()
    accuracy = {"extrapolator": {"sparse-9": values}, "given-c": {"sparse-9": [0.98] * 25}}
    records = [record("sparse", accuracy, {"r2_c": values})]
    found = verdicts(records)
    assert len(found) == 2
    assert set(found.values()) == {verdict}
    (row, ceiling) = rows(records)
    assert row.value == pytest.approx(np.mean(values))
    assert row.low < row.value < row.high
    assert row.n == 25 * 20
    assert ceiling.value == pytest.approx(0.98)
    few = [record("sparse", {m: {"sparse-9": c["sparse-9"][:5]} for m, c in accuracy.items()}, {"r2_c": values[:5]})]
    assert set(verdicts(few).values()) == {"undecided"}


def test_the_gap_is_explained_by_correlation_oracles_and_failing_assumptions():
    rng = np.random.default_rng(0)
    gap = rng.uniform(0.2, 1.5, size=40)
    curve = (0.95 - 0.2 * gap + 0.01 * rng.normal(size=40)).tolist()
    accuracy = {"extrapolator": {f"dense-{d}": curve for d in ("3.5", "5", "12")}}
    halves = [
        record(
            "gap",
            {"extrapolator": {c: values[part] for c, values in accuracy["extrapolator"].items()}},
            {"gap": gap[part].tolist(), "gap_oracle": [0.01] * 20},
            {"v distance": 20},
            first=first,
        )
        for first, part in ((20, slice(20, 40)), (0, slice(0, 20)))
    ]
    found = verdicts(halves)
    assert len(found) == 6
    assert set(found.values()) == {"holds"}
    last = claims(halves)[-1]
    assert "v distance" in last.claim
    assert last.evidence.value == 1.0
    assert last.evidence.n == 40
    assert TABLES["guarantees"].measure("small", halves).to_dict()["table"] == "guarantees"


def test_estimates_match_their_closed_forms():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 200, 1))
    found = _correlation(a, a + b)
    assert found.value == pytest.approx(np.corrcoef(a[:, 0], (a + b)[:, 0])[0, 1])
    assert found.low < found.value < found.high
    assert _ratio(a + 5, b + 10).value == pytest.approx((a + 5).mean() / (b + 10).mean())
