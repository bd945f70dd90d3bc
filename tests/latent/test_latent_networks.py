"""The batched trainer is R plain loops; a run does not depend on its batch."""

import numpy as np
import pytest
import torch
from torch import nn

from offsupport.latent.baselines.imsda import parameter_count, sigmoid_flow
from offsupport.latent.baselines.vae import Vae
from offsupport.latent.networks import adam, batches, init_mlp, mlp, supervised_loss
from offsupport.studies import latent_runs
from offsupport.studies.latent_runs import run_block


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_vectorised_trainer_equals_a_plain_loop(task):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 200, 5, generator=rng, dtype=torch.float64)
    y = x[..., 0] * x[..., 1] if task == "regression" else (x[..., 0] > x[..., 1]).long()
    outputs = 1 if task == "regression" else 2
    params = init_mlp([5, 8, 8, outputs], 3, torch.Generator().manual_seed(1), torch.float64)
    start = [p.detach().clone() for p in params]
    order = list(batches(200, 32, 2, torch.Generator().manual_seed(2)))
    adam(params, lambda i: supervised_loss(mlp(params, x[:, i]), y[:, i]), iter(order), 2e-3)
    for r in range(3):
        layers = [nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, outputs)]
        plain = nn.Sequential(layers[0], nn.LeakyReLU(0.2), layers[1], nn.LeakyReLU(0.2), layers[2]).double()
        with torch.no_grad():
            for k, layer in enumerate(layers):
                layer.weight.copy_(start[2 * k][r].T)
                layer.bias.copy_(start[2 * k + 1][r, 0])
        optimiser = torch.optim.Adam(plain.parameters(), lr=2e-3)
        criterion = nn.MSELoss() if task == "regression" else nn.CrossEntropyLoss()
        for index in order:
            optimiser.zero_grad()
            out = plain(x[r, index])
            criterion(out[:, 0] if task == "regression" else out, y[r, index]).backward()
            optimiser.step()
        for k, layer in enumerate(layers):
            assert torch.allclose(params[2 * k][r].T, layer.weight, rtol=1e-8, atol=1e-12)
            assert torch.allclose(params[2 * k + 1][r, 0], layer.bias, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("method", ["only-source", "vae", "imsda", "trimmed-nn", "extrapolator"])
def test_splitting_a_block_gives_the_same_numbers(method):
    few = {"only-source": {"epochs": 1}, "vae": {"epochs": 1}, "imsda": {"epochs": 1}}.get(method)
    settings = {"changes": {"n_source": 600}, "options": few, "n_targets": 5}
    seeds = [1_000_000, 1_000_001, 1_000_002]
    whole = run_block("sparse", "regression", method, seeds, [18, 24], **settings)
    parts = [run_block("sparse", "regression", method, part, [18, 24], **settings) for part in (seeds[:1], seeds[1:])]
    joined = np.concatenate([part.outcome for part in parts])
    assert whole.outcome.shape == (3, 2, 5)
    assert whole.metric == "mse"
    np.testing.assert_allclose(whole.outcome, joined, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["vae", "imsda"])
def test_columns_that_are_fitted_side_by_side_are_those_fitted_alone(method, monkeypatch):
    settings = {"changes": {"n_source": 600}, "options": {"epochs": 1}, "n_targets": 2}
    seeds, distances = [1_000_000, 1_000_001], [5, 12, 30]
    fits, fit = [], Vae.fit

    def counted(estimator, x, *others):
        fits.append(len(x))
        return fit(estimator, x, *others)

    monkeypatch.setattr(Vae, "fit", counted)
    blocks = []
    for together in (16, 5, 1):
        monkeypatch.setattr(latent_runs, "SIDE_BY_SIDE", together)
        blocks.append(run_block("dense", "regression", method, seeds, distances, **settings).outcome)
    assert fits == [6, 4, 2, 2, 2, 2]
    for block in blocks[1:]:
        np.testing.assert_allclose(block, blocks[0], rtol=1e-4, atol=1e-5)


def test_sigmoid_flow_is_increasing_and_its_log_determinant_is_its_derivative():
    rng = torch.Generator().manual_seed(0)
    flow = torch.randn(2, 3, parameter_count(4), generator=rng, dtype=torch.float64)
    offsets = torch.randn(2, 4, 4, generator=rng, dtype=torch.float64)
    s = torch.linspace(-4, 4, 201, dtype=torch.float64)[None, :, None].repeat(2, 1, 3)
    out, _ = sigmoid_flow(s, flow, offsets, 4)
    assert (out.diff(dim=1) > 0).all()
    s = s.requires_grad_()
    out, log_det = sigmoid_flow(s, flow, offsets, 4)
    (slopes,) = torch.autograd.grad(out.sum(), s)
    assert torch.allclose(slopes.log().sum(-1), log_det, rtol=1e-8, atol=1e-8)


def test_sigmoid_flow_has_the_gradients_of_finite_differences():
    rng = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 2), (2, 2, parameter_count(3)), (2, 3, 3))
    given = [torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda s, flow, offsets: sigmoid_flow(s, flow, offsets, 3), given)


def test_sigmoid_flow_starts_near_the_identity():
    s = torch.linspace(-3, 3, 50, dtype=torch.float64)[None, :, None]
    zeros = torch.zeros(1, 1, parameter_count(16), dtype=torch.float64)
    out, log_det = sigmoid_flow(s, zeros, torch.zeros(1, 16, 16, dtype=torch.float64), 16)
    assert torch.allclose(out, s, atol=1e-9)
    assert torch.allclose(log_det, torch.zeros_like(log_det), atol=1e-9)
