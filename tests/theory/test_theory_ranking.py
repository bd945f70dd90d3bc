"""Rank correlations over shifts, alone and in groups, and what the benchmark of diagnose_model makes of its cells."""

import importlib.util
import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from offsupport.core.errors import InputError
from offsupport.theory import rank_correlation

ROOT = Path(__file__).parents[2]


def benchmark():
    spec = importlib.util.spec_from_file_location("bench_diagnose", ROOT / "benchmarks" / "diagnose_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a = rng.normal(size=30)
    b = np.round(a + rng.normal(size=30), 1)
    found = rank_correlation(a, b)
    assert found.value == pytest.approx(spearmanr(a, b).statistic)
    assert -1 <= found.low < found.value < found.high <= 1
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]).value == -1


def test_shifts_of_one_group_count_as_one():
    """Nine near-copies of each of 15 shifts say hardly more than the 15."""
    rng = np.random.default_rng(1)
    score, group = rng.normal(size=15), np.repeat(np.arange(15), 9)
    error = score + 1.5 * rng.normal(size=15)
    copies = score[group] + 1e-3 * rng.normal(size=135), error[group] + 1e-3 * rng.normal(size=135)
    alone, grouped, few = (
        rank_correlation(*copies),
        rank_correlation(*copies, groups=group),
        rank_correlation(score, error),
    )
    assert grouped.value == alone.value
    assert (grouped.n, grouped.groups, alone.groups) == (135, 15, 135)
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)
    assert grouped.high - grouped.low == pytest.approx(few.high - few.low, rel=0.15)


def test_names_of_groups_do_not_matter():
    score, error = [1, 2, 3, 4, 5, 6], [2, 1, 4, 3, 6, 5]
    named = rank_correlation(score, error, groups=["fog", "fog", "snow", "snow", "blur", "blur"])
    assert named == rank_correlation(score, error, groups=[7, 7, 1, 1, 3, 3])


@pytest.mark.parametrize(
    ("score", "error", "groups", "message"),
    [
        ([1, 2], [1, 2], None, "at least three"),
        ([1, 2, math.nan, 4], [1, 2, 3, 4], None, "1 of the scores are not a number"),
        ([1, 2, 3, 4], [1, 2, 3, math.nan], None, "1 of the errors are not a number"),
        ([2, 2, 2, 2], [1, 2, 3, 4], None, "All scores are 2"),
        ([1, 2, 3, 4], [0, 0, 0, 0], None, "All errors are 0"),
        ([1, 2, 3], [1, 2, 3, 4], None, "one of each per shift"),
        ([[1, 2, 3]], [[1, 2, 3]], None, "one of each per shift"),
        ([1, 2, 3, 4], [1, 2, 3, 4], ["a", "b", "c"], "one group per shift"),
        ([1, 2, 3, 4], [1, 2, 3, 4], ["a", "a", "b", "b"], "2 groups cannot be resampled"),
    ],
)
def test_what_has_no_ranks_is_refused(score, error, groups, message):
    with pytest.raises(InputError, match=message):
        rank_correlation(score, error, groups=groups)


def cell(corruption, level, block=8, inside=None, outside=None):
    """A cell of the benchmark: of ten images ``level`` are dense far and wrong, the others on support and right."""
    return {
        "corruption": corruption, "block": block, "severity": 1, "share": 0.1, "inside": inside, "outside": outside,
        "hardness": 10.0 - level, "mean_regime": 0.3 * level, "error": level / 10,
        "regimes": {"on support": 10 - level, "dense far": level}, "wrong": {"dense far": level},
    }  # fmt: skip


def test_the_benchmark_holds_regimes_against_errors():
    cells = [
        cell("fog", 1, inside=0.5, outside=0.1), cell("fog", 2, inside=0.1, outside=0.2), cell("snow", 3),
        cell("snow", 4, inside=0.3, outside=0.2), cell("blur", 5, None, 0.9, 0.1), cell("blur", 6, None),
    ]  # fmt: skip
    found = benchmark().totals(cells)
    assert found["rank_correlation"]["value"] == -1
    assert found["regime_rank_correlation"]["value"] == 1
    assert found["regime_rank_correlation"]["groups"] == 3
    assert found["regimes"]["dense far"] == {"images": 21, "error": 1}
    assert found["regimes"]["on support"] == {"images": 39, "error": 0}
    assert found["regimes"]["sparse"] == {"images": 0, "error": None}
    assert (found["cells_with_more_off_inside"], found["cells_with_a_block"]) == (2, 3)
    assert found["off_inside_minus_outside"] == pytest.approx(0.4 / 3)
    text = benchmark().summary({**found, "cells": cells})
    assert "2 of 3 cells" in text
    assert "over 3 corruptions" in text
    assert "dense far: 21 images, error 1.00" in text


def test_a_cell_says_regime_and_error_of_the_same_images():
    import torch

    from offsupport import diagnose_model
    from offsupport.data import corrupt
    from offsupport.nn import resnet18

    torch.manual_seed(0)
    model, source, x = resnet18(width=8).eval(), torch.rand(40, 3, 32, 32), torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        right = model(x).argmax(1)
    labels = (right + torch.tensor([0, 1, 0, 1])) % 10
    cells = benchmark().corruption_cells(model, source, (x, labels), "brightness")
    assert [(each["block"], each["severity"]) for each in cells] == list(itertools.product((8, 16, None), (1, 3, 5)))
    pixels = (255 * x).round().byte().permute(0, 2, 3, 1).numpy()
    for found in cells:
        changed = corrupt(pixels, "brightness", severity=found["severity"], block=found["block"])
        shifted = torch.from_numpy(changed).permute(0, 3, 1, 2) / 255
        with torch.no_grad():
            assert found["error"] == float((model(shifted).argmax(1) != labels).float().mean())
        alone = diagnose_model(model, source, shifted)
        assert found["hardness"] == pytest.approx(alone.hardness, rel=1e-4)
        assert found["regimes"] == Counter(alone.regime)
    found = cells[0]
    assert sum(found["regimes"].values()) == 4
    assert sum(found["wrong"].values()) == 4 * found["error"]
    assert set(found["wrong"]) <= set(found["regimes"])
    assert 0 <= found["mean_regime"] <= 3
