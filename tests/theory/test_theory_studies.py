"""The studies of the guarantees: the true flow inverts the generator, and outcomes have their shape."""

import math
from dataclasses import replace

import pytest
import torch

from offsupport.latent.extrapolator.dense import FlowConfig, fit_dense, transform, views
from offsupport.latent.inputs import check_source
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import preset
from offsupport.studies.guarantee_runs import (
    EXACT,
    FRACTIONS,
    SPARSE_DISTANCES,
    _nll,
    gap_study,
    inside_study,
    sparse_study,
    true_flow,
)

QUICK = FlowConfig(starts=1, rounds=0, steps=5, polish_steps=5)


@pytest.fixture(scope="module")
def truth():
    draws = draw(preset("table", n_source=500), [10_600, 10_601])
    source = check_source(draws.x, draws.y.numpy())
    model = fit_dense(source, QUICK, lambda part: torch.Generator().manual_seed(len(part)))
    return draws, source, model, true_flow(draws, source, model)


def test_true_flow_gives_back_the_latents(truth):
    draws, source, model, flat = truth
    z, _ = transform(views(flat, model.shape), (source.x @ model.white).mT, [1e-6] * 3)
    expected = torch.cat([draws.c, draws.s], -1)
    assert torch.allclose(z.mT, expected, atol=2e-3)


def test_its_likelihood_is_the_change_of_variables(truth):
    draws, source, model, flat = truth
    nll = _nll(replace(model, flat=flat), source, EXACT).double()
    h, log_det = torch.cat([draws.c, draws.s], -1).double(), torch.zeros(2, 500, dtype=torch.float64)
    residual = h - 2 * draws.y[..., None] * (torch.arange(6) < 4)
    for layer, (W, b) in enumerate(zip(draws.g.mlp.weights, draws.g.mlp.biases, strict=True)):
        if layer:
            log_det += (h < 0).sum(-1) * math.log(0.2)
            h = torch.nn.functional.leaky_relu(h, 0.2)
        h = h @ W.double().mT + b.double()[:, None]
        log_det += torch.linalg.slogdet(W.double())[1][:, None]
    to_white = torch.linalg.slogdet(model.white.double())[1] - source.scale.log().sum((1, 2))
    true = (0.5 * residual.square().sum(-1) + 3 * math.log(2 * math.pi) + log_det).mean(1) + to_white
    assert torch.allclose(nll, true, atol=1e-3)


def test_gap_study_has_oracles_that_beat_an_unfinished_fit():
    study = gap_study([10_600, 10_601], 10, replace(QUICK, polish_steps=200))
    assert set(study.accuracy) == {"extrapolator", "flow begun at the truth", "true density"}
    assert all(len(runs) == 2 for columns in study.accuracy.values() for runs in columns.values())
    assert min(study.accuracy["true density"]["dense-12"]) > 0.8
    assert min(study.scores["gap"]) > max(study.scores["gap_oracle"])
    assert study.failing == {"i smooth": 2, "ii compact": 2, "iii discrete": 2, "v distance": 2}


def test_inside_study_stays_within_the_certified_radius():
    study = inside_study([10_600], 10)
    assert list(study.accuracy["extrapolator"]) == [f"inside-{fraction:g}" for fraction in FRACTIONS]
    assert study.accuracy["extrapolator"]["inside-1"][0] >= 0.9
    assert 0 < study.scores["certified_radius"][0] < 1


@pytest.mark.slow
def test_sparse_study_identifies_c():
    study = sparse_study([10_600], 10)
    assert list(study.accuracy["extrapolator"]) == [f"sparse-{distance:g}" for distance in SPARSE_DISTANCES]
    assert study.scores["r2_c"][0] > 0.9
