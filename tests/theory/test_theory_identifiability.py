"""Identifiability scores: one for bijections, zero for noise, and the leave-one-out shortcut equals leaving one out."""

import pytest
import torch

from offsupport.theory.identifiability import ALPHAS, GAMMAS, _kernel, _select, accuracy, r2, r2_table, spread_ratio


@pytest.fixture(scope="module")
def latents():
    rng = torch.Generator().manual_seed(0)
    c, s, noise = (torch.randn(800, 2, generator=rng, dtype=torch.float64) for _ in range(3))
    return c, s, noise


def test_table_of_a_perfect_and_of_an_entangled_estimate(latents):
    c, s, noise = latents
    bijection = torch.stack([c[:, 0] + c[:, 1].tanh(), c[:, 1] - 0.5 * c[:, 0].sin()], -1)
    good = r2_table(c, s, bijection, s.sinh(), n_train=400)
    assert min(good.c_from_c_hat, good.c_hat_from_c, good.s_from_s_hat) > 0.95
    assert max(good.s_from_c_hat, good.c_from_s_hat, good.s_from_c) < 0.1
    mixed = r2_table(c, s, c + s, noise, n_train=400)
    assert 0.3 < mixed.c_from_c_hat < 0.7
    assert 0.3 < mixed.s_from_c_hat < 0.7
    assert mixed.c_from_s_hat < 0.1
    assert set(good.to_dict()) == {
        "c_from_c_hat",
        "s_from_c_hat",
        "c_from_s_hat",
        "s_from_s_hat",
        "c_hat_from_c",
        "s_from_c",
    }


def test_scores_do_not_see_scale_and_constant_columns_do_not_count(latents):
    c, s, _ = latents
    train, test = torch.arange(300), torch.arange(300, 600)
    plain = r2(c + 0.3 * s, c, train, test)
    assert r2(100 * (c + 0.3 * s) + 7, c / 1e3, train, test) == pytest.approx(plain, rel=1e-6)
    padded = torch.cat([c, torch.ones(800, 1, dtype=torch.float64)], -1)
    assert r2(c + 0.3 * s, padded, train, test) == pytest.approx(plain, rel=1e-6)


def test_width_and_ridge_are_those_of_the_smallest_leave_one_out_error():
    rng = torch.Generator().manual_seed(1)
    X = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    Y = X.sin() + 0.1 * torch.randn(30, 2, generator=rng, dtype=torch.float64)
    errors = {}
    for gamma in GAMMAS:
        for alpha in ALPHAS:
            total = 0.0
            for i in range(30):
                rest = torch.arange(30) != i
                K = _kernel(X[rest], X[rest], gamma) + alpha * torch.eye(29, dtype=torch.float64)
                guess = _kernel(X[i : i + 1], X[rest], gamma) @ torch.linalg.solve(K, Y[rest])
                total += float((guess - Y[i]).square().mean())
            errors[gamma, alpha] = total
    assert _select(X, Y) == min(errors, key=errors.get)


def test_discrete_scores():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    centres = torch.tensor([[0.0, 0], [5, 0], [0, 5]], dtype=torch.float64)
    tight = centres[labels] + 0.1 * torch.randn(300, 2, generator=rng, dtype=torch.float64)
    assert accuracy(tight, labels) == 1.0
    assert spread_ratio(tight, labels) < 0.5
    noise = torch.randn(300, 2, generator=rng, dtype=torch.float64)
    assert accuracy(noise, labels) < 0.55
    assert spread_ratio(noise, labels) > 1
