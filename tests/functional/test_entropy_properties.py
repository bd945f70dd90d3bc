"""Entropies and intervals: bounds, equality cases, invariances, stability, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offsupport.functional import as_rows, entropy, marginal_entropy, mutual_information, wilson

many = settings(max_examples=200, deadline=None)


ROWS = st.integers(1, 8)


def logits(limit=50.0, rows=ROWS):
    shapes = st.tuples(rows, st.integers(2, 12))
    values = st.floats(-limit, limit, allow_nan=False, width=32)
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=values)).map(torch.from_numpy)


@many
@given(logits(1e4))
def test_entropy_is_between_zero_and_ln_k(x):
    for each in (x, x.float()):
        h = entropy(each)
        assert h.shape == (len(x),)
        assert h.isfinite().all()
        assert (h >= 0).all()
        assert (h <= math.log(x.shape[1]) + 1e-5).all()


@many
@given(st.integers(2, 1000), st.floats(-1e4, 1e4))
def test_entropy_is_ln_k_for_equal_logits_and_zero_for_a_certain_one(k, level):
    equal = torch.full((1, k), level, dtype=torch.float64)
    assert entropy(equal).item() == pytest.approx(math.log(k), abs=1e-9)
    certain = equal.clone()
    certain[0, 0] += 1e4
    assert entropy(certain).item() == 0.0


@many
@given(logits(30.0))
def test_entropy_is_the_textbook_sum(x):
    p = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    expected = -(p * np.log(p)).sum(1)
    assert np.allclose(entropy(x).numpy(), expected, atol=1e-10)
    assert np.allclose(entropy(x.float()).numpy(), expected, atol=1e-5)


@many
@given(logits(), st.floats(-1e4, 1e4), st.randoms(use_true_random=False))
def test_entropy_ignores_a_constant_and_the_order_of_classes(x, constant, rng):
    order = list(range(x.shape[1]))
    rng.shuffle(order)
    assert torch.allclose(entropy(x + constant), entropy(x), atol=1e-9)
    assert torch.allclose(entropy(x[:, order]), entropy(x), atol=1e-12)
    assert torch.allclose(mutual_information(x[:, order]), mutual_information(x), atol=1e-12)


@many
@given(logits(1e4))
def test_mutual_information_is_never_negative_nor_above_the_marginal_entropy(x):
    information = mutual_information(x)
    assert information >= -1e-9
    assert information <= marginal_entropy(x) + 1e-9
    assert marginal_entropy(x) <= math.log(x.shape[1]) + 1e-9


@many
@given(logits(100.0, rows=st.just(1)), st.integers(1, 20))
def test_mutual_information_is_zero_on_copies_and_so_is_its_gradient(x, copies):
    same = x.expand(copies, -1).clone().requires_grad_()
    information = mutual_information(same)
    assert information.item() == pytest.approx(0, abs=1e-9)
    (gradient,) = torch.autograd.grad(information, same)
    assert gradient.abs().max() < 1e-9


def test_mutual_information_is_ln_k_for_certain_and_diverse_rows():
    assert mutual_information(torch.eye(5) * 1e4).item() == pytest.approx(math.log(5), abs=1e-6)


def test_marginal_entropy_is_the_entropy_of_the_mean_prediction():
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p_bar = x.softmax(1).mean(0)
    assert marginal_entropy(x).item() == pytest.approx(-(p_bar * p_bar.log()).sum().item(), abs=1e-12)


@pytest.mark.parametrize("function", [lambda x: entropy(x).sum(), marginal_entropy, mutual_information])
def test_gradients_are_those_of_finite_differences(function):
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))


@many
@given(logits(1e4))
def test_gradients_are_finite_for_extreme_logits(x):
    x = x.float().requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(x).sum() + mutual_information(x), x)
    assert gradient.isfinite().all()


def test_dense_logits_become_one_row_per_position():
    x = torch.randn(2, 3, 4, 5)
    rows = as_rows(x)
    assert rows.shape == (40, 3)
    assert torch.equal(rows[0], x[0, :, 0, 0])
    assert torch.equal(rows[20 + 5 + 2], x[1, :, 1, 2])
    assert torch.allclose(entropy(rows).view(2, 4, 5), entropy(x))
    assert as_rows(rows) is rows


# Wilson --------------------------------------------------------------------------------------------------------------


@many
@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_are_where_the_score_test_just_rejects(pair):
    """The definition: at both ends p0, |p - p0| = z sqrt(p0 (1 - p0) / n)."""
    k, n = pair
    z = 1.959963984540054
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(k / n - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-6, abs=1e-12)
    assert (low == 0, high == 1) == (k == 0, k == n)
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low))


def test_wilson_without_trials_knows_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(3, 10, z=0) == pytest.approx((0.3, 0.3))
