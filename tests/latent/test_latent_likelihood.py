"""Likelihood of the variational models: against the closed form of a linear Gaussian model, and against their loss."""

import numpy as np
import pytest
import torch

from offsupport.core.errors import ConfigError
from offsupport.latent.baselines.imsda import Imsda
from offsupport.latent.baselines.vae import Vae
from offsupport.latent.networks import mlp
from offsupport.studies.latent_runs import held_out_likelihood

D = 3


def fitted(kind, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, D))
    y = np.arange(40) % 2
    model = kind(d_c=2, d_s=1, epochs=1, **options)
    return model.fit(X, y, X[:1] + 5), X


def linear_gaussian(model):
    """Make the model x = a z + b + noise, with the exact posterior as its encoder; return a and b."""
    a, b = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([0.1, -0.2, 0.3])
    total = a.square() + model.noise_variance
    model.decoder_ = [a.diag()[None], b[None, None]]
    weight = torch.cat([(a / total).diag(), torch.zeros(D, D)], -1)
    bias = torch.cat([-b * a / total, (model.noise_variance / total).log()])
    model.encoder_ = [weight[None], bias[None, None]]
    if isinstance(model, Imsda):  # all parameters zero: the identity
        model.hyper_[-2:] = [torch.zeros_like(part) for part in model.hyper_[-2:]]
        model.offsets_ = torch.zeros_like(model.offsets_)
    return a, b


@pytest.mark.parametrize(("kind", "variance"), [(Vae, 0.05), (Imsda, 0.025)])
def test_log_likelihood_of_a_linear_gaussian_model_is_exact(kind, variance):
    model, X = fitted(kind, kl=0.01, reconstruction=0.1)
    assert model.noise_variance == pytest.approx(variance)
    a, b = linear_gaussian(model)
    x = model.source_.standardise(X)[0]
    expected = torch.distributions.Normal(b, (a.square() + variance).sqrt()).log_prob(x).sum(-1)
    np.testing.assert_allclose(model.log_likelihood(X, draws=3), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_the_loss_is_an_evidence_bound_with_that_noise():
    off = {"supervised": 0.0, "likelihood": 0.0, "distance": 0.0, "reconstruct_target": False}
    model, _ = fitted(Vae, kl=0.02, reconstruction=0.1, **off)
    x, y = model.source_.x, model.source_.y
    gaps = []
    for scale in (1.0, 0.3):
        model.decoder_ = [scale * part.detach() for part in model.decoder_]
        loss = model._loss(x, y, x[:, :1], torch.Generator().manual_seed(0)) / model.kl
        mu, logvar = model._encode(x)
        e = torch.randn(41, D, generator=torch.Generator().manual_seed(0))[:40]
        decoded = mlp(model.decoder_, mu + (logvar / 2).exp() * e)
        log_p = torch.distributions.Normal(decoded, model.noise_variance**0.5).log_prob(x).sum(-1)
        prior = torch.distributions.Normal(torch.zeros(D), 1.0)
        kl = torch.distributions.kl_divergence(torch.distributions.Normal(mu, (logvar / 2).exp()), prior).sum(-1)
        gaps.append(float((loss + (log_p - kl).mean()).detach()))
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-4)


def test_only_variational_models_have_a_likelihood():
    with pytest.raises(ConfigError, match="no likelihood"):
        held_out_likelihood("dense", "trimmed-nn", [1_000_000], 18.0)
