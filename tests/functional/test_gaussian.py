"""Gaussian divergences against torch.distributions, running moments against a loop over vectors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from offsupport.functional import Moments, gaussian_kl, precision, symmetric_gaussian_kl, update_moments


def gaussian(dim, seed, batch=()):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*batch, dim, 2 * dim, generator=generator, dtype=torch.float64)
    return torch.randn(*batch, dim, generator=generator, dtype=torch.float64), root @ root.mT / dim


def covariance(z):
    return torch.cov(z.T, correction=0).reshape(z.shape[1], z.shape[1])


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_divergences_against_torch_distributions(dim, batch):
    a, b = gaussian(dim, 0, batch), gaussian(dim, 1, batch)
    forth = kl_divergence(MultivariateNormal(*a), MultivariateNormal(*b))
    back = kl_divergence(MultivariateNormal(*b), MultivariateNormal(*a))
    torch.testing.assert_close(gaussian_kl(*a, *b), forth)
    torch.testing.assert_close(symmetric_gaussian_kl(*a, *b), forth + back)
    torch.testing.assert_close(symmetric_gaussian_kl(*a, *b, precision_a=precision(a[1])), forth + back)


def test_a_gaussian_does_not_differ_from_itself():
    a = gaussian(5, 0)
    assert abs(gaussian_kl(*a, *a).item()) < 1e-12
    assert abs(symmetric_gaussian_kl(*a, *a).item()) < 1e-12


def test_gradients_of_divergences():
    (mean_a, cov_a), (mean_b, root) = gaussian(3, 0), gaussian(3, 1)
    inputs = [each.requires_grad_() for each in (mean_b, root)]

    def against(divergence):
        # A covariance is symmetric: differentiate along symmetric matrices.
        return lambda mean, root: divergence(mean_a, cov_a, mean, root @ root.mT)

    assert torch.autograd.gradcheck(against(gaussian_kl), inputs)
    assert torch.autograd.gradcheck(against(symmetric_gaussian_kl), inputs)
    assert torch.autograd.gradcheck(lambda mean, root: gaussian_kl(mean, root @ root.mT, mean_a, cov_a), inputs)


def test_no_covariance_gives_nan_rather_than_an_error():
    mean, cov = gaussian(2, 0)
    bad = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert gaussian_kl(mean, cov, mean, bad).isnan()
    assert symmetric_gaussian_kl(mean, cov, mean, bad).isnan()
    both = gaussian_kl(mean.expand(2, 2), cov.expand(2, 2, 2), mean.expand(2, 2), torch.stack([bad, cov]))
    assert both.isnan().tolist() == [True, False]


def reference(batches, n_max):
    """Section by section of the formula, one vector at a time."""
    dim = batches[0].shape[1]
    mean, cov, n = torch.zeros(dim).double(), torch.zeros(dim, dim).double(), 0
    for z in batches:
        n += len(z)
        a = 1 / min(n, n_max)
        delta, outer = torch.zeros(dim).double(), torch.zeros(dim, dim).double()
        for row in z:
            delta = delta + a * (row - mean)
            outer = outer + torch.outer(row - mean, row - mean)
        cov = cov + a * (outer - len(z) * cov) - torch.outer(delta, delta)
        mean = mean + delta
        yield mean, cov, n


@pytest.mark.parametrize("n_max", [20, 50, math.inf])
def test_moments_against_a_loop(n_max):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, generator=generator).double() + size for size in (12, 5, 20, 1, 9, 16)]
    moments = Moments.none(3, like=batches[0])
    for z, (mean, cov, n) in zip(batches, reference(batches, n_max), strict=True):
        moments = update_moments(moments, z, n_max)
        torch.testing.assert_close(moments.mean, mean)
        torch.testing.assert_close(moments.cov, cov)
        assert moments.count == n
        assert torch.linalg.eigvalsh(moments.cov).min() > -1e-9


def test_moments_without_a_window_are_those_of_all_vectors():
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 4, generator=generator).double() for size in (3, 40, 1, 7)]
    moments = Moments.none(4, like=batches[0])
    for z in batches:
        moments = update_moments(moments, z)
    torch.testing.assert_close(moments.mean, torch.cat(batches).mean(0))
    torch.testing.assert_close(moments.cov, covariance(torch.cat(batches)))


def test_a_batch_beyond_the_window_replaces_all_before():
    first, second = (torch.randn(30, 2, generator=torch.Generator().manual_seed(i)).double() for i in (0, 1))
    moments = update_moments(update_moments(Moments.none(2, like=first), first, 10), second, 10)
    torch.testing.assert_close(moments.mean, second.mean(0))
    torch.testing.assert_close(moments.cov, covariance(second))


def test_moments_carry_gradients_through_the_batch_alone():
    z = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    start = update_moments(
        Moments.none(2, like=z), torch.randn(9, 2, generator=torch.Generator().manual_seed(1)).double()
    )

    def flat(z):
        after = update_moments(start, z, 10)
        return torch.cat([after.mean, after.cov.flatten()])

    assert torch.autograd.gradcheck(flat, [z])
    assert not update_moments(start, z, 10).detach().cov.requires_grad
