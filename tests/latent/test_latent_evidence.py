"""Sparse or dense: evidence against brute force, and the call on shifts simulated from the source."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from offsupport.latent import Extrapolator
from offsupport.latent.extrapolator.decision import DECISIVE
from offsupport.latent.extrapolator.dense import FlowConfig
from offsupport.latent.extrapolator.sparse import all_masks, fit_mixture, log_odds, sparse_evidence, weigh
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process

D, LARGEST, LOG_PRIOR = 4, 2, -4.6
QUICK = FlowConfig(layers=2, starts=1, rounds=0, steps=20, polish_steps=10)


@pytest.fixture(scope="module")
def fitted():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2000, D, generator=rng) @ torch.randn(1, D, D, generator=rng)
    x[:, ::2] += 2.0
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    return x, fit_mixture(x, 6, 20, 1e-3, torch.Generator().manual_seed(1))


def odds(fitted, x):
    _, mixture = fitted
    return log_odds(mixture, weigh(mixture, x, LARGEST, LOG_PRIOR), x, LOG_PRIOR)


def test_widened_density_matches_brute_force(fitted):
    x, mixture = fitted
    sample = 3 * x[:, :5]
    for i in range(5):
        terms = []
        for k in range(mixture.mean.shape[1]):
            covariance = torch.linalg.inv(mixture.precision[0, k]) + 4.0 * torch.eye(D, dtype=torch.float64)
            normal = MultivariateNormal(mixture.mean[0, k], covariance)
            terms.append(mixture.log_weight[0, k] + normal.log_prob(sample[0, i].double()))
        expected = float(torch.stack(terms).logsumexp(0))
        assert float(mixture.widened(sample, 4.0)[0, i]) == pytest.approx(expected, rel=1e-9)


def test_sparse_evidence_sums_over_sets_of_every_size(fitted):
    x, mixture = fitted
    sample = x[:, :3] + torch.tensor([0.0, 9.0, 0.0, 0.0])
    found = sparse_evidence(weigh(mixture, sample, LARGEST, LOG_PRIOR), LOG_PRIOR)
    for i in range(3):
        terms = []
        for size in range(1, LARGEST + 1):
            sets = list(itertools.combinations(range(D), size))
            density = mixture.log_density(sample, all_masks(D, LARGEST)[size])[0, i]
            terms += [float(value) + LOG_PRIOR * size - math.log(LARGEST * len(sets)) for value in density]
        assert float(found[0, i]) == pytest.approx(
            float(torch.tensor(terms, dtype=torch.float64).logsumexp(0)), rel=1e-9
        )


def test_simulated_shifts_are_told_apart_and_the_source_decides_nothing(fitted):
    x, _ = fitted
    rng = torch.Generator().manual_seed(2)
    samples = x[:, :200]
    assert (odds(fitted, samples).abs() < DECISIVE).double().mean() > 0.95
    few = samples.clone()
    few[..., 1] += 12
    assert (odds(fitted, few) > DECISIVE).double().mean() > 0.95
    every = samples + 12 * torch.nn.functional.normalize(torch.randn(1, 200, D, generator=rng), dim=-1)
    assert (odds(fitted, every) < -DECISIVE).double().mean() > 0.8


@pytest.mark.parametrize(("shift", "distance"), [("dense", 5.0), ("sparse", 18.0)])
def test_a_single_target_of_the_synthetic_process_is_called_right(shift, distance):
    draws = draw(Process(shift=shift, n_source=4000), range(10_500, 10_506), [distance], n_targets=4)
    estimator = Extrapolator(flow=QUICK).fit(draws.x, draws.y)
    called = []
    for target in draws.x_tgt[:, 0].unbind(1):
        called += [found.shift for found in estimator.explain(target[:, None])]
    assert called.count(shift) >= 0.9 * len(called)


def test_undecided_targets_go_to_the_dense_model_only_if_it_can_be_fitted():
    draws = draw(Process(n_source=4000), [10_500])
    for n, half in ((4000, "flow"), (200, "sparse")):
        estimator = Extrapolator(flow=QUICK).fit(draws.x[0, :n], draws.y[0, :n])
        found = estimator.explain(draws.x[0, :3])
        assert "do not tell" in found.reason
        assert found.half == half


def test_inferred_dimensions_are_per_run_and_bounded():
    rng = np.random.default_rng(0)
    flat = np.outer(rng.normal(size=600), np.ones(6)) + 1e-3 * rng.normal(size=(600, 6))
    full = rng.normal(size=(600, 6))
    y = (full[:, 0] > 0).astype(int)

    def d_c(*sources):
        X = np.stack(sources)
        estimator = Extrapolator(shift="sparse", d_s=2).fit(X, np.stack([y] * len(sources)))
        return [found.d_c for found in estimator.explain(X[:, :5])]

    alone = [*d_c(flat), *d_c(full)]
    assert d_c(flat, full) == alone
    assert alone[0] < alone[1] <= 4
    assert 1 <= d_c(rng.integers(0, 3, size=(600, 6)).astype(float))[0] <= 4
