"""The flow's likelihood and hand-written gradient against automatic differentiation; the fit finds a planted map."""

import math
from dataclasses import replace

import pytest
import torch

from offsupport.latent.extrapolator.dense import (
    KEPT,
    FlowConfig,
    FlowShape,
    Problem,
    Stage,
    cycle,
    fit_flow,
    gradient,
    kink,
    log_density,
    reseed,
    train,
    transform,
    views,
    whitening,
)
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process

SHAPE = FlowShape(d=3, layers=3, labels=2)
WIDTHS = [0.3, 0.7]


def random_flows(count=4):
    rng = torch.Generator().manual_seed(0)
    flat = torch.randn(count, SHAPE.count, generator=rng, dtype=torch.float64) * 0.7
    x = torch.randn(count, 3, 50, generator=rng, dtype=torch.float64)
    labels = torch.nn.functional.one_hot(torch.randint(2, (count, 50), generator=rng), 2).double().mT
    return flat, x, labels


def test_log_determinant_matches_autograd():
    flat, x, _ = random_flows()
    flows = views(flat, SHAPE)
    _, log_det = transform(flows, x, WIDTHS)
    for m in range(4):
        one = views(flat[m : m + 1], SHAPE)
        for i in range(5):

            def single(v, one=one):
                return transform(one, v[None, :, None], WIDTHS)[0].flatten()

            J = torch.autograd.functional.jacobian(single, x[m, :, i])
            assert log_det[m, i] == pytest.approx(float(torch.linalg.slogdet(J)[1]), rel=1e-9, abs=1e-9)


def test_gradient_matches_autograd():
    flat, x, labels = random_flows()
    flat.requires_grad_()
    loss = -log_density(views(flat, SHAPE), x, labels, WIDTHS).mean(1).sum()
    (expected,) = torch.autograd.grad(loss, flat)
    out = torch.zeros_like(flat)
    gradient(flat.detach(), SHAPE, x, labels, WIDTHS, out)
    assert torch.allclose(out, expected, rtol=1e-9, atol=1e-10)


def test_kink_is_monotone_continuous_and_leaky_outside_its_ramp():
    u = torch.linspace(-3, 3, 3001, dtype=torch.float64)
    value, slope, _, _ = kink(u, torch.tensor(math.log(5.0), dtype=torch.float64), 0.2)
    assert (value.diff() > 0).all()
    assert torch.allclose(value[u < -0.201], 5 * u[u < -0.201])
    assert torch.allclose(value[u > 0.201], u[u > 0.201])
    assert torch.allclose(value.diff() / u.diff(), (slope[1:] + slope[:-1]) / 2, atol=1e-6)


def test_density_integrates_to_one_in_one_dimension():
    shape = FlowShape(d=1, layers=3, labels=1)
    flat = torch.randn(1, shape.count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    flat[:, :3] = torch.tensor([1.3, -0.8, 1.1], dtype=torch.float64)
    x = torch.linspace(-60, 60, 400_001, dtype=torch.float64)[None, None]
    density = log_density(views(flat, shape), x, torch.ones_like(x), [0.1, 0.1]).exp()
    assert float(density.sum() * (x[0, 0, 1] - x[0, 0, 0])) == pytest.approx(1, abs=1e-3)


def test_fit_comes_close_to_the_true_likelihood_of_a_shallow_generator():
    draws = draw(Process(layers=2, d_c=2, d_s=1, n_source=4000), [1_000_000, 1_000_001])
    mean = draws.x.mean(1, keepdim=True)
    white = whitening((draws.x - mean).mT @ (draws.x - mean) / 4000)
    x = ((draws.x - mean) @ white).mT.contiguous()
    labels = torch.nn.functional.one_hot(draws.y, 2).float().mT.contiguous()
    config = FlowConfig(layers=2, starts=2, rounds=0, steps=1200, polish_steps=400)
    flat = fit_flow(x, labels, config, lambda name: torch.Generator().manual_seed(len(name)))
    nll = Problem(x, labels, FlowShape(3, 2, 2)).nll(flat, 1)[:, 0] - torch.linalg.slogdet(white)[1]
    W = draws.g.mlp.weights
    hidden = torch.baddbmm(draws.g.mlp.biases[0][:, None], torch.cat([draws.c, draws.s], -1), W[0].mT)
    log_det = torch.linalg.slogdet(W[0])[1] + torch.linalg.slogdet(W[1])[1]
    log_det = log_det[:, None] + (hidden < 0).sum(-1) * math.log(0.2)
    centred = torch.cat([draws.c - 2 * draws.y[..., None], draws.s], -1)
    true = (0.5 * centred.square().sum(-1) + 1.5 * math.log(2 * math.pi) + log_det).mean(1)
    assert (nll - true < 0.1).all()
    assert (nll - true > -0.02).all()  # cannot be better than the truth by more than it overfits


def test_step_size_cycle_rises_and_ends_at_zero():
    assert cycle(0) == pytest.approx(0.04)
    assert cycle(0.3) == pytest.approx(1)
    assert cycle(1) == pytest.approx(0)


def test_reseeding_draws_straight_units_of_the_outer_layer_and_leaves_the_others():
    flat, x, labels = random_flows()
    flows = views(flat, SHAPE)
    flows.rho[0][:, 0], flows.rho[0][:, 1:] = 0.1, -1.5
    before = flat.clone()
    fresh = reseed(Problem(x[:2], labels[:2], SHAPE), flat, 2, torch.Generator().manual_seed(0))
    assert fresh[:, 0].all()
    assert not fresh[:, 1:].any()
    old = views(before, SHAPE)
    assert torch.equal(flows.A[0][:, 1:], old.A[0][:, 1:])
    assert torch.equal(flows.A[1], old.A[1])
    assert not torch.isclose(flows.A[0][:, 0], old.A[0][:, 0]).any()
    assert torch.equal(flows.A[0][:2, 0], flows.A[0][2:, 0])  # runs share the draws
    assert (flows.rho[0][:, 0] == 1).all()
    stage = Stage(1, fresh)
    assert stage.widths(3)[0][:, :, 0].tolist() == [pytest.approx([1.0, KEPT, KEPT])] * 4
    assert views(stage.speeds(SHAPE, 0.2, flat), SHAPE).A[0][0, :, 0].tolist() == pytest.approx([1.0, 0.2, 0.2])


def test_last_stage_moves_all_layers_in_its_own_batches_and_lowers_the_likelihood_gap():
    flat, x, labels = random_flows()
    problem = Problem(x, labels, SHAPE)
    config = FlowConfig(layers=3, batch_size=1, polish_batch=50)
    before = flat.clone()
    train(problem, flat, 1, 100, Stage(2), config, torch.Generator().manual_seed(0))
    assert ((flat - before).abs() > 0).all()
    assert (problem.nll(flat, 1) < problem.nll(before, 1)).all()
    other = before.clone()
    train(problem, other, 1, 100, Stage(2), replace(config, polish_batch=20), torch.Generator().manual_seed(0))
    assert not torch.equal(flat, other)
