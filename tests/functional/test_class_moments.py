"""Class-wise moments against a loop over classes, and distances of moments against torch."""

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from offsupport.functional import (
    Moments,
    coral,
    mean_and_covariance,
    mean_gap,
    outer_sums,
    pooled,
    symmetric_diagonal_kl,
    update_class_moments,
    update_moments,
)

CLASSES, WIDTH = 5, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(diagonal=False):
    root = draw(CLASSES, WIDTH, 2 * WIDTH, seed=1)
    cov = root @ root.mT
    counts = torch.tensor([0.0, 3.0, 50.0, 7.0, 0.0], dtype=torch.float64)
    return Moments(draw(CLASSES, WIDTH, seed=2), cov.diagonal(dim1=1, dim2=2) if diagonal else cov, counts)


LABELS = torch.tensor([2, 0, 2, 3, 0, 2, 2, 3, 2, 2])


@pytest.mark.parametrize("n_max", [4, 20, 1000])
def test_each_class_follows_as_one_alone_would(n_max):
    moments, z = start(), draw(len(LABELS), WIDTH)
    present, after = update_class_moments(moments, z, LABELS, n_max)
    assert present.tolist() == [0, 2, 3]
    for i, k in enumerate(present.tolist()):
        alone = update_moments(Moments(moments.mean[k], moments.cov[k], moments.count[k]), z[k == LABELS], n_max)
        torch.testing.assert_close(after.mean[i], alone.mean)
        torch.testing.assert_close(after.cov[i], alone.cov)
        assert float(after.count[i]) == float(alone.count)


def test_diagonals_are_those_of_the_full_covariances():
    z = draw(len(LABELS), WIDTH)
    _, full = update_class_moments(start(), z, LABELS, 20)
    _, diagonal = update_class_moments(start(diagonal=True), z, LABELS, 20)
    torch.testing.assert_close(diagonal.mean, full.mean)
    torch.testing.assert_close(diagonal.cov, full.cov.diagonal(dim1=1, dim2=2))


def test_no_vectors_make_no_classes():
    present, after = update_class_moments(start(), draw(0, WIDTH), LABELS[:0], 20)
    assert present.shape == (0,)
    assert after.cov.shape == (0, WIDTH, WIDTH)


@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_of_class_moments(diagonal):
    def value(z):
        _, after = update_class_moments(start(diagonal), z, LABELS, 20)
        return after.mean, after.cov

    assert torch.autograd.gradcheck(value, draw(len(LABELS), WIDTH).requires_grad_())


def test_outer_sums_by_a_loop():
    z, (present, member, counts) = draw(10, WIDTH), LABELS.unique(return_inverse=True, return_counts=True)
    got = outer_sums(z, member, counts)
    for i, k in enumerate(present):
        expected = sum(torch.outer(row, row) for row, label in zip(z, LABELS, strict=True) if label == k)
        torch.testing.assert_close(got[i], expected)


def test_diagonal_divergence_against_torch_distributions():
    mean_a, mean_b = draw(4, WIDTH), draw(4, WIDTH, seed=1)
    var_a, var_b = draw(4, WIDTH, seed=2).exp(), draw(4, WIDTH, seed=3).exp()
    a, b = (Independent(Normal(m, v.sqrt()), 1) for m, v in ((mean_a, var_a), (mean_b, var_b)))
    expected = kl_divergence(a, b) + kl_divergence(b, a)
    torch.testing.assert_close(symmetric_diagonal_kl(mean_a, var_a, mean_b, var_b), expected)
    inputs = [each.requires_grad_() for each in (mean_b, var_b)]
    assert torch.autograd.gradcheck(lambda m, v: symmetric_diagonal_kl(mean_a, var_a, m, v), inputs)


def test_distances_of_moments_in_the_words_of_their_definition():
    a, b = draw(9, WIDTH), draw(7, WIDTH, seed=1)
    (mean_a, cov_a), (mean_b, cov_b) = mean_and_covariance(a), mean_and_covariance(b)
    torch.testing.assert_close(cov_a, torch.cov(a.T))
    expected = sum((cov_a[i, j] - cov_b[i, j]) ** 2 for i in range(WIDTH) for j in range(WIDTH)) / (4 * WIDTH**2)
    torch.testing.assert_close(coral(cov_a, cov_b), expected)
    torch.testing.assert_close(mean_gap(mean_a, mean_b), sum((mean_a - mean_b) ** 2) / WIDTH)


def test_gradients_of_the_distances():
    mean, cov = mean_and_covariance(draw(9, WIDTH))

    def value(z):
        other_mean, other_cov = mean_and_covariance(z)
        return coral(cov, other_cov), mean_gap(mean, other_mean)

    assert torch.autograd.gradcheck(value, draw(6, WIDTH, seed=1).requires_grad_())


@pytest.mark.parametrize("diagonal", [False, True])
def test_pooled_moments_of_groups(diagonal):
    z, labels = draw(6, WIDTH), torch.tensor([0, 0, 1, 0, 3, 3])
    counts = torch.bincount(labels, minlength=4).double()
    groups = [z[labels == k] for k in range(4)]
    first = torch.stack([group.sum(0) for group in groups])
    second = torch.stack([group.T @ group for group in groups])
    if diagonal:
        second = second.diagonal(dim1=1, dim2=2)
    mean, cov = pooled((counts, first, second))
    for k in (0, 3):
        expected = torch.cov(groups[k].T)
        torch.testing.assert_close(mean[k], groups[k].mean(0))
        torch.testing.assert_close(cov[k], expected.diagonal() if diagonal else expected)
    for k in (1, 2):  # one vector, and none
        assert not cov[k].any()
