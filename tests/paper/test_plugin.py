"""The table of the constraint as a plug-in: what it is put on, and what is asked of what it leaves behind."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from record_maker import make_record

from offsupport.core.errors import ConfigError
from offsupport.data import EXTRA, STANDARD
from offsupport.methods import METHODS
from offsupport.results.correctness import pack
from offsupport.results.intervals import Estimate
from offsupport.results.rows import Claim, Evidence, below
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.errors import row_name
from offsupport.studies.ours import plugin, tuning_sc

PLUGIN = TABLES["plugin"]


def record(method, wrong, change=0.01, wrong_after=40, corruption="fog", n=400, **settings):
    """Results of one stream: errors on it, changes of thirty parameters, errors on clean images afterwards."""
    made = make_record(method, corruption, np.arange(n) >= wrong, "digits-c", **settings)
    left = {
        "change": change,
        "changes": {f"layer{i}": change for i in range(30)},
        "disagreement": 0.1,
        "images": pack(np.arange(n), np.arange(n) >= wrong_after),
    }
    return dataclasses.replace(made, deterministic={**made.deterministic, "afterwards": left})


def test_every_base_stands_beside_itself_on_the_same_images():
    cells = [cell.config for cell in PLUGIN.cells("small", TableOptions())]
    arms = {(cell["method"], tuple(sorted(cell["hyper"].items()))) for cell in cells}
    plain = [name for name, (_, hyper) in plugin.BASES.items() if not hyper]
    forms = [{}, plugin.ALONE, plugin.PUBLISHED]
    assert arms == {
        *((name, ()) for name in plain),
        *((f"{name}+sc", tuple(sorted(form.items()))) for name in plain for form in forms),
        *((name, (("statistics", "minimal"),)) for name in ("tent", "tent+sc")),
    }
    assert len({(cell["limit"], cell["batch_size"], cell["seed"], cell["preset"]) for cell in cells}) == 1
    assert {cell["corruption"] for cell in cells} <= set(STANDARD)
    assert {cell["afterwards"] for cell in cells} == {plugin.CLEAN}
    with pytest.raises(ConfigError, match="no method 'bn'"):
        PLUGIN.cells("smoke", TableOptions(methods=("bn",)))


def test_harm_change_and_what_is_kept_are_judged_apart():
    made = [
        record("tent", 100, change=0.03, wrong_after=60),
        record("tent+sc", 100, change=0.01, wrong_after=40),
        record("tent+sc", 200, change=0.20, wrong_after=300, hyper=plugin.PUBLISHED),
        record("sar+sc", 200, hyper=plugin.ALONE),
    ]
    verdicts = {claim.claim: claim.verdict for claim in PLUGIN.claims(made)}
    assert verdicts == {
        "tent+sc errs at most 0.3 points more than tent": "holds",
        "tent+sc errs less than tent": "undecided",
        "tent+sc moves the weights less than tent": "holds",
        "tent+sc leaves a lower error on clean images than tent": "holds",
        "tent+sc, as published errs at most 0.3 points more than tent": "does-not-hold",
        "tent+sc, as published errs less than tent": "does-not-hold",
        "tent+sc, as published moves the weights less than tent": "does-not-hold",
        "tent+sc, as published leaves a lower error on clean images than tent": "does-not-hold",
    }
    rows = {(row.method, row.column): round(row.value, 6) for row in PLUGIN.rows(made)}
    assert rows["tent+sc, as published", "digits-c/fog"] == rows["tent+sc, as published", "digits-c/avg"] == 50
    assert rows["tent", "clean afterwards"] == 15
    assert rows["sar+sc, updates alone", "clean afterwards"] == 10
    (listing,) = PLUGIN.summaries(made)
    assert listing.lines[0] == ("tent", "25.00", "", "3.00", "15.00", "", "10.00")
    same, less = "+0.00 (+0.00 to +0.00)", listing.lines[1][5]
    assert listing.lines[1] == ("tent+sc", "25.00", same, "1.00", "10.00", less, "10.00")
    assert less.startswith("-5.00 (-")


def test_an_arm_without_its_base_or_without_a_corruption_says_nothing():
    assert PLUGIN.claims([record("tent+sc", 100)]) == []
    made = [record("tent", 100), record("tent", 100, corruption="contrast"), record("tent+sc", 50)]
    assert PLUGIN.claims(made) == []
    assert [row.column for row in PLUGIN.rows(made) if row.method == "tent+sc"] == ["digits-c/fog"]
    assert PLUGIN.summaries([]) == []


def test_the_constraint_is_chosen_on_images_that_no_table_reports():
    cells = [cell.config for cell in TABLES["tuning-sc"].cells("small", TableOptions())]
    assert {tuple(cell["corruption"]) for cell in cells} == {EXTRA}
    tried = {(cell["method"], str(cell["hyper"])) for cell in cells}
    counts = [sum(name == f"{base}+sc" for name, _ in tried) for base in tuning_sc.BASES]
    assert set(counts) == {len(tuning_sc.CANDIDATES)}
    with pytest.raises(ConfigError, match="no method 'tesla'"):
        TABLES["tuning-sc"].cells("smoke", TableOptions(methods=("tesla",)))


def test_the_lowest_upper_bound_with_gates_is_chosen():
    def claim(hyper, high):
        quantity = f"error({row_name('tent+sc', hyper)}) - error(tent)"
        return below("", Estimate(-0.01, -0.03, high, 100), quantity)

    bounds = dict(zip(tuning_sc.CANDIDATES, (0.05, 0.01, 0.02, 0.0, 0.03, 0.6), strict=True))
    claims = [claim(tuning_sc.CANDIDATES[name], high) for name, high in bounds.items()]
    assert tuning_sc.chosen(claims) == {"tent": tuning_sc.CANDIDATES["rank 4, a tenth"]}
    assert tuning_sc.chosen(claims[1:]) == {}


def test_the_defaults_are_what_was_chosen():
    path = Path(__file__).parents[2] / "results" / "tuning-sc" / "tuning-sc.json"
    stored = json.loads(path.read_text())["claims"]
    found = tuning_sc.chosen([Claim(**{**claim, "evidence": Evidence(**claim["evidence"])}) for claim in stored])
    assert set(found) == set(tuning_sc.BASES)
    for base, best in found.items():
        config = METHODS[f"{base}+sc"].config_class()
        assert {name: getattr(config, name) for name in best} == best, base
