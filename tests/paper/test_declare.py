import dataclasses
import math

import numpy as np
import pytest
from record_maker import make_record

from offsupport.core.errors import ConfigError
from offsupport.functional import wilson
from offsupport.results import below
from offsupport.results.intervals import Estimate
from offsupport.studies import TABLES, TableOptions, adaptation
from offsupport.studies.adaptation import our_methods
from offsupport.studies.errors import below_claims, below_each, error_rows
from offsupport.studies.ours import ablation

TABLE2 = TABLES["table2"]


def flags(wrong: int, n: int = 200) -> np.ndarray:
    return np.arange(n) >= wrong


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.2, -0.1, "holds"), (0.1, 0.2, "does-not-hold"), (-0.1, 0.1, "undecided"), (0, 0, "undecided")],
)
def test_a_claim_is_decided_only_when_zero_is_excluded(low, high, verdict):
    claim = below("a below b", Estimate((low + high) / 2, low, high, 100), "a - b")
    assert claim.verdict == verdict
    few = below("a below b", Estimate((low + high) / 2, low, high, 10), "a - b")
    assert few.verdict == "undecided"
    assert claim.evidence.low == 100 * low


def test_rows_are_percent_with_wilson_intervals_and_an_average():
    records = [make_record("bn", "fog", flags(20)), make_record("bn", "snow", flags(40))]
    rows = {row.column: row for row in error_rows(records, {})}
    low, high = wilson(20, 200)
    assert list(rows) == ["cifar10-c/fog", "cifar10-c/snow", "cifar10-c/avg"]
    assert rows["cifar10-c/fog"].value == pytest.approx(10.0)
    assert (rows["cifar10-c/fog"].low, rows["cifar10-c/fog"].high) == pytest.approx((100 * low, 100 * high))
    average = rows["cifar10-c/avg"]
    assert average.value == pytest.approx(15.0)
    assert average.low < 15 < average.high
    assert average.n == 400
    assert all(row.metric == "error" and row.unit == "percent" for row in rows.values())


def test_printed_numbers_stand_only_beside_the_same_data():
    for dataset, expected in (("cifar10-c", 15.6), ("cifar100-c", 43.7), ("imagenet-c", 67.7), ("digits-c", None)):
        records = [make_record("bn", name, flags(20), dataset) for name in ("fog", "snow")]
        rows = {row.column: row.paper for row in TABLE2.rows(records)}
        assert rows[f"{dataset}/avg"] == expected
        assert rows[f"{dataset}/fog"] is None


def test_an_average_over_fewer_corruptions_is_not_shown():
    records = [
        make_record("bn", "fog", flags(1)),
        make_record("bn", "snow", flags(1)),
        make_record("tent", "fog", flags(1)),
    ]
    assert ("tent", "cifar10-c/avg") not in {(row.method, row.column) for row in error_rows(records, {})}


def test_several_seeds_are_averaged():
    records = [make_record("bn", "fog", flags(20), seed=0), make_record("bn", "fog", flags(40), seed=1)]
    (row,) = error_rows(records, {})
    assert row.value == pytest.approx(15.0)
    assert row.n == 400


def test_severities_and_hyper_parameters_are_told_apart():
    records = [
        make_record("bn", "fog", flags(20), severity=3),
        make_record("bn", "fog", flags(40), severity=5),
        make_record("bn", "fog", flags(60), severity=5, hyper={"prior": 4}),
    ]
    rows = {(row.method, row.column): row.value for row in error_rows(records, {})}
    assert rows["bn", "cifar10-c/fog/3"] == pytest.approx(10.0)
    assert rows["bn", "cifar10-c/fog/5"] == pytest.approx(20.0)
    assert rows["bn (prior=4)", "cifar10-c/fog/5"] == pytest.approx(30.0)


def test_claims_pair_images():
    wrong = np.random.default_rng(0).random(400) < 0.3
    fixed = wrong.copy()
    fixed[np.flatnonzero(wrong)[:12]] = False
    records = [make_record("tent", "fog", ~fixed), make_record("bn", "fog", ~wrong)]
    (claim,) = below_claims(records, [("tent", "bn"), ("shot", "bn")])
    assert claim.verdict == "holds"
    assert claim.evidence.value == pytest.approx(-3.0)
    (reverse,) = below_claims(records, [("bn", "tent")])
    assert reverse.verdict == "does-not-hold"


def test_claims_compare_the_seeds_that_both_have():
    records = [
        make_record("tent", "fog", flags(20), seed=0),
        make_record("bn", "fog", flags(24), seed=0),
        make_record("bn", "fog", flags(80), seed=1),  # an order of the stream that tent never saw
    ]
    (claim,) = below_claims(records, [("tent", "bn")])
    assert claim.evidence.value == pytest.approx(-2.0)
    (each,) = below_each(records, "tent", "bn")
    assert each.evidence.value == pytest.approx(-2.0)
    (apart,) = below_claims([records[0], records[2]], [("tent", "bn")])
    assert apart.evidence.value == pytest.approx(-30.0)


def test_table2_grid():
    cells = TABLE2.cells("smoke", TableOptions(seeds=2, methods=("bn", "source")))
    assert len(cells) == len(set(cells)) == 15 * 2 * 2
    assert {cell.config["method"] for cell in cells} == {"bn", "source"}
    assert {cell.config["seed"] for cell in cells} == {0, 1}
    assert len(TABLE2.cells("smoke", TableOptions())) == 15 * (11 + len(our_methods()))


def test_table2_at_small_scale_shows_both_statistics():
    cells = TABLE2.cells("small", TableOptions())
    seeds = 6 * 3 + 6  # methods with three seeds, and with one
    others = [cell for cell in cells if cell.config["hyper"]]
    assert len(cells) == len(set(cells)) == 15 * (seeds + 2 + len(our_methods()))
    assert {c.config["method"] for c in cells if c.config["source_split"] == "held-out"} == set(our_methods())
    assert {c.config["preset"] for c in cells} == {"cifar10-small"}
    assert {(c.config["method"], c.config["hyper"]["score_stats"]) for c in others} == {
        ("ttac", "running"), ("tesla", "running"),
    }  # fmt: skip
    assert not [c for c in TABLE2.cells("small", TableOptions(methods=("tent",))) if c.config["hyper"]]


def test_table2_on_a_hundred_classes_is_a_part_of_its_own(monkeypatch):
    monkeypatch.setattr(adaptation, "pinned", lambda name: name)
    cells = TABLE2.cells("small", TableOptions(parts=("tiny100",)))
    assert len(cells) == len(set(cells)) == 15 * (7 + len(our_methods()))
    assert {(c.config["dataset"], c.config["preset"], c.config["limit"]) for c in cells} == {
        ("tiny100-c", "cifar100", 2000)
    }
    assert {c.config["method"] for c in cells if c.config["source_split"] == "held-out"} == set(our_methods())
    both = TABLE2.cells("small", TableOptions(parts=("cifar10", "tiny100")))
    assert set(both) == {*cells, *TABLE2.cells("small", TableOptions())}
    with pytest.raises(ConfigError, match=r"no part 'tiny10'.*Did you mean 'tiny100'"):
        TABLE2.cells("small", TableOptions(parts=("tiny10",)))
    with pytest.raises(ConfigError, match="Leave --parts out: only small and imagenette have any"):
        TABLE2.cells("smoke", TableOptions(parts=("tiny100",)))


def test_table2_on_photographs_gives_tesla_fewer_images_and_others_to_compare_them_with(monkeypatch):
    monkeypatch.setattr(adaptation, "pinned", lambda name: name)
    cells = TABLE2.cells("imagenette", TableOptions())
    assert len(cells) == len(set(cells)) == 15 * (7 + len(our_methods())) + 4 * (4 + 4)
    assert {(c.config["dataset"], c.config["preset"]) for c in cells} == {("imagenet-folder-c", "imagenet")}
    few = {c.config["method"] for c in cells if c.config["limit"] == 250}
    assert few == {"source", "bn", "tent", "shot", "tesla", "tesla+sc", "tesla-s", "tesla-s+sc"}
    assert {c.config["limit"] for c in cells} == {250, 1000}
    assert set(TABLE2.cells("imagenette", TableOptions(parts=("tesla",)))) < set(cells)


def test_claims_of_table2_compare_streams_of_one_length():
    records = [
        *(make_record("bn", "fog", flags(20), "imagenet-folder-c", limit=limit) for limit in (20, 1000)),
        make_record("source", "fog", flags(20), "imagenet-folder-c", limit=1000),
    ]
    (claim,) = TABLE2.claims(records)
    assert claim.claim == "bn has a lower average error than source on imagenet-folder-c, 1000 images each"


def test_printed_numbers_of_cifar100_stand_beside_tiny100_in_a_list_of_their_own():
    records = [make_record("bn", name, flags(20), "tiny100-c") for name in ("fog", "snow")]
    found = TABLE2.measure("small", records).to_dict()
    assert {row["paper"] for row in found["rows"]} == {None}
    (line,) = found["hundred_classes"]
    assert (line["method"], line["error on tiny100-c, %"], line["printed for CIFAR-100-C, %"]) == ("bn", 10.0, 43.7)


def test_what_a_table_does_not_have_is_said():
    with pytest.raises(ConfigError, match="takes no --runs"):
        TABLE2.cells("smoke", TableOptions(runs=2))
    with pytest.raises(ConfigError, match=r"no scale 'smok'.*Did you mean 'smoke'"):
        TABLE2.cells("smok", TableOptions())
    with pytest.raises(ConfigError, match="Did you mean 'table2'"):
        TABLES["tabel2"]


def test_payload_has_exactly_the_promised_fields():
    records = [make_record(m, c, flags(20), "digits-c") for m in ("bn", "source") for c in ("fog", "snow")]
    found = TABLE2.measure("smoke", records).to_dict()
    assert list(found) == ["table", "scale", "rows", "claims"]
    assert (found["table"], found["scale"]) == ("table2", "smoke")
    for row in found["rows"]:
        assert list(row) == ["method", "column", "metric", "unit", "value", "low", "high", "n", "paper"]
        assert row["low"] <= row["value"] <= row["high"]
        assert math.isfinite(row["value"])
    for claim in found["claims"]:
        assert list(claim) == ["claim", "verdict", "evidence"]
        assert claim["verdict"] in ("holds", "does-not-hold", "undecided")


def test_a_table_can_be_declared_with_any_kind_of_cell():
    other = dataclasses.replace(TABLE2, name="other", grid=lambda scale, options: [], rows=lambda records: [])
    assert other.measure("smoke", []).to_dict()["rows"] == []


def test_ablation_claims_name_its_rows():
    cells = TABLES["ablation"].cells("smoke", TableOptions())
    rows = {(cell.config["method"], str(sorted(cell.config["hyper"].items()))) for cell in cells}
    assert len(rows) == 2 * 6
    records = [
        make_record(cell.config["method"], cell.config["corruption"], flags(20), hyper=cell.config["hyper"])
        for cell in cells
    ]
    named = {row.method for row in error_rows(records, {})}
    assert {name for pair in ablation.CLAIMS for name in pair} <= named
