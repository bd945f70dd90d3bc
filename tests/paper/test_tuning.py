"""What was chosen on the extra corruptions is what the preset for narrow networks says."""

import json
from pathlib import Path

import pytest

from offsupport.core.errors import ConfigError
from offsupport.data import EXTRA, STANDARD
from offsupport.methods.registry import METHODS
from offsupport.methods.tuned import CHOSEN, NARROW, PUBLISHED, with_narrow
from offsupport.paper import TABLES, Options, cells_of, tuning
from offsupport.paper.declare import Row

STORED = Path(__file__).parents[2] / "results" / "tuning" / "tuning.json"


def average(method, value):
    values = {"metric": "error", "unit": "percent", "low": value, "high": value, "n": 100}
    return Row(method=method, column="cifar10-c/avg", value=value, **values)


@pytest.mark.parametrize("table", ["tuning", "tuning-prox", "tuning-policy"])
def test_nothing_that_is_reported_takes_part(table):
    cells = cells_of(TABLES[table], "small", Options())
    assert {cell.config["corruption"] for cell in cells} == set(EXTRA)
    assert not set(EXTRA) & set(STANDARD)


def test_every_method_has_the_same_budget():
    cells = cells_of(TABLES["tuning"], "small", Options())
    tried = {(cell.config["method"], json.dumps(cell.config["hyper"])) for cell in cells}
    counts = {method: sum(name == method for name, _ in tried) for method, _ in tried}
    assert set(counts.values()) == {4}
    assert {cell.config["limit"] for cell in cells} == {tuning.IMAGES}
    with pytest.raises(ConfigError, match="no method 'bn'"):
        cells_of(TABLES["tuning"], "smoke", Options(methods=("bn",)))


def test_the_lowest_average_is_chosen():
    rows = [average("tent (lr=0.001)", 21.0), average("tent (lr=0.003)", 20.5), average("shot (lr=0.01)", 30.0)]
    rows.append(Row(**{**vars(average("tent (lr=0.00033)", 1.0)), "column": "cifar10-c/spatter"}))
    assert tuning.chosen(rows) == {"tent": {"lr": 0.003}, "shot": {"lr": 0.01}}


def test_the_narrow_preset_is_what_was_chosen():
    rows = [Row(**row) for row in json.loads(STORED.read_text())["rows"]]
    found = tuning.chosen(rows)
    assert set(found) == set(tuning.METHODS)
    for method, best in found.items():
        presets = METHODS[method].presets
        assert presets[NARROW] == presets[PUBLISHED] | best, method
        assert all(best[name] == value for name, value in CHOSEN.get(method, {}).items())


def test_a_method_without_a_choice_keeps_what_is_published():
    for method in ("bn", "memo", "tesla+sc"):
        presets = METHODS[method].presets
        assert presets[NARROW] == presets[PUBLISHED]
    assert METHODS["tent+sc"].presets[NARROW] == METHODS["tent+sc"].presets[PUBLISHED] | CHOSEN["tent"]
    assert with_narrow("mine", {}) == {}
