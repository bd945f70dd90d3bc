"""Tables A2 to A4 from presets and made-up results; printed numbers as they stand in the paper."""

import statistics

import numpy as np
import pytest
from record_maker import make_record

from offsupport.core.errors import ConfigError
from offsupport.data import STANDARD
from offsupport.results import within
from offsupport.results.intervals import Estimate
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.paper import table_a2, table_a3, table_a4


def flags(wrong, n=200):
    return np.arange(n) >= wrong


def test_hyper_parameters_are_those_of_the_presets_beside_the_printed_ones():
    found = TABLES["tableA2"].measure("smoke", []).to_dict()
    assert (found["rows"], found["claims"]) == ([], [])
    lines = {(line["method"], line["preset"], line["name"]): line for line in found["hyper_parameters"]}
    printed = {key: line["paper"] for key, line in lines.items() if line["paper"] is not None}
    assert len(printed) == 2 * 3 * 3
    assert printed["tesla+sc", "cifar100", "ratio_s"] == 0.1
    assert printed["tesla-s+sc", "imagenet", "ratio_l"] == 5
    assert all(line["value"] == line["paper"] for line in lines.values() if line["paper"] is not None)
    assert lines["tent", "imagenet", "lr"]["value"] == 2.5e-4
    assert "halves" in lines["tesla+sc", "imagenet", "lr"]["remark"]
    assert lines["tesla", "imagenet", "lr"]["remark"] is None


def test_a_preset_that_differs_from_the_paper_is_named(monkeypatch):
    monkeypatch.setitem(table_a2.PRINTED, ("tesla+sc", "cifar10", "rank"), 32)
    (line,) = (line for line in table_a2.hyper_parameters().to_dicts() if line["paper"] == 32)
    assert (line["value"], line["remark"]) == (64, "differs from the printed 32")


def test_table_a2_takes_no_options_and_has_no_cells():
    assert TABLES["tableA2"].cells("paper", TableOptions()) == []
    with pytest.raises(ConfigError, match=r"takes no --seeds.*no options"):
        TABLES["tableA2"].cells("smoke", TableOptions(seeds=1))


def source_record(method, model, wrong, corruption="fog"):
    return make_record(method, corruption, flags(wrong), "digits-c", model=model)


def test_supervised_and_moco_are_compared_by_accuracy():
    made = [source_record("tent", "digits-small-early", 20), source_record("tent", "digits-moco", 60)]
    made += [source_record("bn", "digits-small-early", 60), source_record("bn", "digits-moco", 20)]
    found = TABLES["tableA3"].measure("smoke", made).to_dict()
    rows = {(row["method"], row["column"]): row for row in found["rows"]}
    assert rows["tent", "supervised"]["value"] == pytest.approx(90)
    assert rows["bn", "moco"]["paper"] == 20.13
    assert rows["tent", "moco"]["paper"] == 8.94
    assert {row["metric"] for row in rows.values()} == {"accuracy"}
    assert [claim["verdict"] for claim in found["claims"]] == ["holds", "does-not-hold"]


def test_table_a3_grid_has_both_models_and_their_clean_accuracy():
    cells = TABLES["tableA3"].cells("smoke", TableOptions(methods=("tent",)))
    assert len(cells) == len(set(cells)) == 2 * (2 * 15 + 1)
    clean = [cell.config for cell in cells if cell.config["corruption"] is None]
    assert {config["model"] for config in clean} == {"digits-small-early", "digits-moco"}
    assert {config["method"] for config in clean} == {"source"}
    assert len(TABLES["tableA3"].cells("smoke", TableOptions())) == 2 * (5 * 15 + 1)


def test_models_of_every_scale_are_told_apart():
    names = [
        "zoo:cifar10-resnet18x0.25-moco@abcdefabcdef",
        "file:weights/imagenet-resnet50-moco.safetensors@abcdefabcdef",
    ]
    made = [source_record("tent", name, 10) for name in ("digits-moco", "digits-small-early")]
    pinned = [make_record("tent", "fog", flags(10), "digits-c", model=name) for name in names]
    assert list(table_a3.by_source(made)) == [("tent", "moco"), ("tent", "supervised")]
    assert list(table_a3.by_source(pinned)) == [("tent", "moco")]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.01, 0.01, "holds"), (0.03, 0.05, "does-not-hold"), (-0.05, -0.03, "does-not-hold"), (0.01, 0.03, "undecided")],
)
def test_similar_means_within_a_margin_on_either_side(low, high, verdict):
    claim = within("a is like b", Estimate((low + high) / 2, low, high, 100), 0.02, "a - b")
    assert claim.verdict == verdict


def test_printed_errors_stand_under_their_corruptions():
    printed = table_a4.PRINTED
    assert len(printed) == 2 * 3 * 7 * 16  # by either statistics
    assert printed["bn", "cifar10-c/gaussian_noise"] == 18.2
    assert printed["tesla+sc", "cifar10-c/jpeg_compression"] == 10.9
    assert printed["ttac", "cifar100-c/fog"] == 44.7
    assert printed["shot", "imagenet-c/contrast"] == 92.7
    assert printed["tesla", "imagenet-c/avg"] == 55.0


def test_printed_averages_are_those_of_the_printed_errors():
    for (method, column), value in table_a4.PRINTED.items():
        dataset, _, corruption = column.partition("/")
        if corruption == "avg":
            errors = [table_a4.PRINTED[method, f"{dataset}/{name}"] for name in STANDARD]
            assert statistics.fmean(errors) == pytest.approx(value, abs=0.07), (method, column)


def test_table_a4_shares_the_cells_of_table_2():
    four, two = (set(TABLES[name].cells("smoke", TableOptions())) for name in ("tableA4", "table2"))
    assert four == two
    assert {c.config["seed"] for c in TABLES["tableA4"].cells("smoke", TableOptions())} == {0}


def test_the_constraint_is_judged_corruption_by_corruption():
    made = [make_record("tesla", name, flags(40)) for name in ("fog", "snow")]
    made += [make_record("tesla+sc", name, flags(wrong)) for name, wrong in (("fog", 20), ("snow", 60))]
    found = TABLES["tableA4"].measure("small", made).to_dict()
    assert [(c["claim"].split()[-1], c["verdict"]) for c in found["claims"]] == [
        ("cifar10-c/fog", "holds"),
        ("cifar10-c/snow", "does-not-hold"),
    ]
    assert {row["paper"] for row in found["rows"] if row["column"] == "cifar10-c/fog"} == {15.6, 14.4}
