import itertools
import math

import numpy as np
import pytest

from offsupport.results.intervals import bootstrap, difference_estimate, mean_estimate


def test_bootstrap_of_three_images_has_the_exact_distribution():
    errors = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    exact = [errors[list(draw)].mean(axis=0) for draw in itertools.product(range(3), repeat=3)]
    draws = bootstrap(errors, resamples=200_000)
    for value in {tuple(point) for point in exact}:
        wanted = np.mean([np.allclose(point, value) for point in exact])
        got = np.isclose(draws, value).all(axis=1).mean()
        assert got == pytest.approx(wanted, abs=4 * math.sqrt(wanted / 200_000))


def test_bootstrap_spread_is_the_binomial_one():
    errors = (np.arange(2000) % 10 == 0).astype(float)[:, None]
    draws = bootstrap(errors, resamples=4000)
    assert draws.std() == pytest.approx(math.sqrt(0.1 * 0.9 / 2000), rel=0.05)
    assert draws.mean() == pytest.approx(0.1, abs=5e-4)


def test_images_are_paired_across_streams():
    rng = np.random.default_rng(0)
    one = (rng.random((500, 3)) < 0.3).astype(float)
    same = difference_estimate(one, one.copy())
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    better = one.copy()
    better[np.flatnonzero(one[:, 0])[:20], 0] = 0.0
    paired = difference_estimate(better, one)
    unpaired = difference_estimate(better[rng.permutation(500)], one)
    assert paired.high < 0 < unpaired.high
    assert paired.value == pytest.approx(-20 / 500 / 3)


def test_correlated_streams_are_resampled_together():
    """Three identical streams carry the information of one, and the interval says so."""
    one = (np.random.default_rng(0).random((400, 1)) < 0.3).astype(float)
    single, triple = mean_estimate(one), mean_estimate(np.repeat(one, 3, axis=1))
    assert (single.low, single.high) == pytest.approx((triple.low, triple.high))


def test_average_weighs_streams_equally_whatever_their_size():
    errors = np.full((100, 2), np.nan)
    errors[:, 0] = 0.0
    errors[:10, 1] = 1.0
    found = mean_estimate(errors)
    assert found.value == 0.5
    assert found.low == found.high == 0.5
    assert found.n == 110


def test_coverage_is_about_95_percent():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        estimate = mean_estimate((rng.random((300, 2)) < 0.2).astype(float), seed=trial)
        hits += estimate.low <= 0.2 <= estimate.high
    assert 0.89 <= hits / 200 <= 0.99


def test_same_seed_same_interval():
    errors = (np.random.default_rng(0).random((200, 2)) < 0.2).astype(float)
    assert mean_estimate(errors, seed=3) == mean_estimate(errors, seed=3)
    assert mean_estimate(errors, seed=3) != mean_estimate(errors, seed=4)


def test_chunks_do_not_change_the_result(monkeypatch):
    for limit in ("_FEW", "_VERY_FEW"):  # or the draws of the first time would be used again
        monkeypatch.setattr(f"offsupport.results.intervals.{limit}", 0)
    errors = (np.random.default_rng(0).random((50, 2)) < 0.2).astype(float)
    whole = bootstrap(errors, resamples=100)
    monkeypatch.setattr("offsupport.results.intervals._CHUNK", 700)
    assert np.array_equal(bootstrap(errors, resamples=100), whole)


def test_draws_that_are_kept_are_those_that_are_drawn_anew(monkeypatch):
    errors = (np.random.default_rng(0).random((50, 2)) < 0.2).astype(float)
    small = bootstrap(errors, resamples=100)
    for limit in ("_VERY_FEW", "_FEW"):
        monkeypatch.setattr(f"offsupport.results.intervals.{limit}", 0)
        assert np.array_equal(bootstrap(errors, resamples=100), small)


def test_averages_over_streams_are_those_of_the_resampled_columns():
    rng = np.random.default_rng(3)
    ours, theirs = ((rng.random((60, 4)) < p).astype(float) for p in (0.3, 0.5))
    missing = np.where(rng.random((60, 4)) < 0.2, np.nan, ours)
    for errors in (ours, missing):
        draws = bootstrap(errors).mean(1)
        found = mean_estimate(errors)
        assert np.allclose([found.low, found.high], np.quantile(draws, [0.025, 0.975]), rtol=0, atol=1e-12)
        draws = draws - bootstrap(theirs).mean(1)
        found = difference_estimate(errors, theirs)
        assert np.allclose([found.low, found.high], np.quantile(draws, [0.025, 0.975]), rtol=0, atol=1e-12)
