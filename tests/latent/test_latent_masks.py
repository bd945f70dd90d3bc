"""Marginals of the mixture against brute force; greedy search against enumeration."""

import itertools

import pytest
import torch
from torch.distributions import MultivariateNormal

from offsupport.latent.extrapolator import sparse as masks_module
from offsupport.latent.extrapolator.sparse import BEAM, all_masks, beam_search, fit_mixture, weigh


@pytest.fixture(scope="module")
def fitted():
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(2, 4, 4, generator=rng)
    x = torch.randn(2, 1500, 4, generator=rng) @ mixing
    x[:, ::2] += 2.0
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    return x, fit_mixture(x, 5, 20, 1e-3, torch.Generator().manual_seed(1))


def brute_force(mixture, r, x, hidden):
    kept = [i for i in range(len(x)) if i not in hidden]
    total = []
    for k in range(mixture.mean.shape[1]):
        covariance = torch.linalg.inv(mixture.precision[r, k])[kept][:, kept]
        normal = MultivariateNormal(mixture.mean[r, k, kept], covariance)
        total.append(mixture.log_weight[r, k] + normal.log_prob(x[kept].double()))
    return torch.stack(total).logsumexp(0)


def test_every_marginal_matches_brute_force(fitted):
    x, mixture = fitted
    samples = torch.cat([x[:, :3], 6 * x[:, 3:5]], 1)
    for size in (0, 1, 2, 3):
        sets = list(itertools.combinations(range(4), size))
        density = mixture.log_density(samples, all_masks(4, 3)[size])
        for r, i, j in itertools.product(range(2), range(5), range(len(sets))):
            assert float(density[r, i, j]) == pytest.approx(
                float(brute_force(mixture, r, samples[r, i], sets[j])), rel=1e-6
            )


def test_mixture_beats_a_single_gaussian_on_two_clusters(fitted):
    x, mixture = fitted
    single = fit_mixture(x, 1, 3, 1e-3, torch.Generator())
    none = all_masks(4, 0)[0]
    assert (mixture.log_density(x, none).mean(1) > single.log_density(x, none).mean(1)).all()


def test_weights_find_the_moved_dimension_and_sum_to_one(fitted):
    x, mixture = fitted
    moved = x[:, :50].clone()
    moved[..., 2] += 25
    weighed = weigh(mixture, moved, 2, -4.6)
    assert torch.allclose(weighed.weight.sum(-1), torch.ones(2, 50, dtype=torch.float64))
    assert weighed.top(1).masks[:, :, 0, 2].all()
    assert (weighed.distrust()[..., 2] > 0.99).all()
    assert weigh(mixture, x[:, :50], 2, -4.6).distrust().mean() < 0.1


def test_greedy_search_finds_what_enumeration_finds(fitted, monkeypatch):
    x, mixture = fitted
    moved = x[:, :10].clone()
    moved[..., 1] += 9
    moved[:, 5:, 3] -= 12
    full = weigh(mixture, moved, 2, -4.6)
    monkeypatch.setattr(masks_module, "ENUMERATED", 0)
    greedy = weigh(mixture, moved, 2, -4.6)
    assert torch.equal(greedy.top(1).masks, full.top(1).masks)
    assert torch.allclose(greedy.distrust(), full.distrust(), atol=1e-3)


@pytest.fixture(scope="module")
def wide():
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(2, 2000, 4, generator=rng) @ torch.randn(2, 4, 16, generator=rng)
    x = x + 0.3 * torch.randn(x.shape, generator=rng)
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    return x, fit_mixture(x, 5, 20, 1e-3, torch.Generator().manual_seed(1))


def test_beam_search_keeps_distinct_sets_and_their_exact_densities(wide):
    x, mixture = wide
    samples = x[:, :6] + 20 * (torch.arange(16) % 3 == 0)
    masks, density = beam_search(mixture, samples, 8, -4.6)
    for r, i in itertools.product(range(2), range(6)):
        rows = {
            tuple(row.nonzero()[:, 0].tolist()): float(value)
            for row, value in zip(masks[r, i], density[r, i], strict=True)
        }
        assert len(rows) == masks.shape[2] == 1 + sum(min(BEAM, 16 - size + 1) for size in range(1, 9))
        for hidden in list(rows)[::13]:
            assert rows[hidden] == pytest.approx(float(brute_force(mixture, r, samples[r, i], hidden)), rel=1e-6)


def test_beam_search_ends_where_larger_sets_stop_paying_and_does_not_mind_its_batch(wide, monkeypatch):
    x, mixture = wide
    samples = x[:, :40].clone()
    samples[0, :, :5] += 20
    together = weigh(mixture, samples, 8, -4.6)
    assert torch.equal(together.likeliest()[0, :, :5], torch.ones(40, 5, dtype=torch.bool))
    assert weigh(mixture, x[:, :3], 8, -4.6).masks.sum(-1).max() < 8
    monkeypatch.setattr("offsupport.latent.extrapolator.sparse.MOST_ENTRIES", 1)
    apart = weigh(mixture, samples, 8, -4.6)
    assert torch.allclose(apart.distrust(), together.distrust(), atol=1e-3)
    assert torch.equal(apart.likeliest(), together.likeliest())
