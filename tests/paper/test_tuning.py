"""What was chosen on the extra corruptions is what the preset for narrow networks says."""

import json
from pathlib import Path

import pytest

from offsupport.core.errors import ConfigError
from offsupport.data import EXTRA, STANDARD
from offsupport.engine.registry import NARROW, PUBLISHED
from offsupport.methods import METHODS
from offsupport.results import Row
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.errors import row_name
from offsupport.studies.ours import ablation, tuning

RESULTS = Path(__file__).parents[2] / "results"


def stored(table):
    return [Row(**row) for row in json.loads((RESULTS / table / f"{table}.json").read_text())["rows"]]


def average(method, value):
    values = {"metric": "error", "unit": "percent", "low": value, "high": value, "n": 100}
    return Row(method=method, column="cifar10-c/avg", value=value, **values)


@pytest.mark.parametrize("table", ["tuning", "tuning-prox", "tuning-policy"])
def test_nothing_that_is_reported_takes_part(table):
    cells = TABLES[table].cells("small", TableOptions())
    assert {cell.config["corruption"] for cell in cells} == set(EXTRA)
    assert not set(EXTRA) & set(STANDARD)


def test_every_method_has_the_same_budget():
    cells = TABLES["tuning"].cells("small", TableOptions())
    tried = {(cell.config["method"], json.dumps(cell.config["hyper"])) for cell in cells}
    counts = {method: sum(name == method for name, _ in tried) for method, _ in tried}
    assert set(counts.values()) == {4}
    assert {cell.config["limit"] for cell in cells} == {tuning.IMAGES}
    with pytest.raises(ConfigError, match="no method 'bn'"):
        TABLES["tuning"].cells("smoke", TableOptions(methods=("bn",)))


def test_the_lowest_average_is_chosen():
    rows = [average("tent (lr=0.001)", 21.0), average("tent (lr=0.003)", 20.5), average("shot (lr=0.01)", 30.0)]
    rows.append(Row(**{**vars(average("tent (lr=0.00033)", 1.0)), "column": "cifar10-c/spatter"}))
    assert tuning.chosen(rows) == {"tent": {"lr": 0.003}, "shot": {"lr": 0.01}}


def test_the_narrow_preset_is_what_was_chosen():
    found = tuning.chosen(stored("tuning"))
    assert set(found) == set(tuning.METHODS)
    for method, best in found.items():
        presets = METHODS[method].presets
        assert presets[NARROW] == presets[PUBLISHED] | best, method


def test_the_ablation_takes_the_proximal_form_with_the_lowest_average():
    averages = {row.method: round(row.value, 6) for row in stored("tuning-prox") if row.column.endswith("/avg")}
    tried = {row_name("tesla+sc", hyper): hyper for hyper in tuning.prox_candidates()}
    assert set(averages) == set(tried)
    # Of two that are equal, the one whose gates move faster.
    best = min(tried, key=lambda name: (averages[name], -tried[name]["ratio_g"]))
    assert tried[best] == ablation.PROXIMAL


def test_a_method_without_a_choice_keeps_what_is_published():
    for method in ("bn", "memo", "tesla+sc"):
        presets = METHODS[method].presets
        assert presets[NARROW] == presets[PUBLISHED]
    # Where the constraint has defaults of its own, the preset for narrow networks has them as well.
    assert METHODS["tent+sc"].presets[NARROW] == METHODS["tent"].presets[NARROW] | METHODS["tent"].sparse_defaults
