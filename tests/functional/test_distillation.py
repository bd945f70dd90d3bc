"""Losses of a student against plain formulas, their identity with the mutual information, and their gradients."""

import pytest
import torch

from offsupport.functional import distillation_loss, mean_prediction, mutual_information, self_training_loss


def logits(count=6, classes=5, seed=0, scale=2.0):
    return scale * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mean_prediction():
    views = [logits(seed=seed) for seed in range(4)]
    torch.testing.assert_close(mean_prediction(views).exp(), sum(view.softmax(1) for view in views) / 4)
    far = mean_prediction([torch.tensor([[0.0, 300.0]]), torch.tensor([[0.0, 200.0]])])
    assert far.isfinite().all()


def test_self_training_loss_against_the_formula():
    f, q = logits(), logits(seed=1).softmax(1)
    p = f.softmax(1)
    expected = -(p * q.log()).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum()
    torch.testing.assert_close(self_training_loss(f, q.log()), expected)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_self_training_is_divergence_minus_information(count):
    f, log_q = logits(count), logits(count, seed=1).log_softmax(1)
    log_p = f.log_softmax(1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(1).mean()
    torch.testing.assert_close(self_training_loss(f, log_q), divergence - mutual_information(f))


def test_distillation_against_torch():
    f, log_q = logits(), logits(seed=1).log_softmax(1)
    expected = torch.nn.functional.kl_div(f.log_softmax(1), log_q, reduction="batchmean", log_target=True)
    torch.testing.assert_close(distillation_loss(f, log_q), expected)
    assert abs(distillation_loss(log_q, log_q).item()) < 1e-12


@pytest.mark.parametrize("loss", [self_training_loss, distillation_loss])
def test_gradients(loss):
    log_q = logits(seed=1).log_softmax(1)
    assert torch.autograd.gradcheck(lambda f: loss(f, log_q), [logits().requires_grad_()])


def test_certain_teachers_and_students_stay_finite():
    f, log_q = logits(scale=2000.0), logits(seed=1, scale=2000.0).log_softmax(1)
    for loss in (self_training_loss, distillation_loss):
        x = f.clone().requires_grad_()
        value = loss(x, log_q)
        value.backward()
        assert value.isfinite()
        assert x.grad.isfinite().all()
