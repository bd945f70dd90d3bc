"""Why the dense estimator stops short of the oracle: the likelihood its flow misses, and the assumptions that fail.

The flow of the Extrapolator can represent the inverse of a leaky-ReLU generator exactly, so its negative log-likelihood
on the source minus that of the truth is what optimisation missed. Two oracles bound what closing it would give: a fit
that starts at the truth, and the true density itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from offsupport.core.seeds import derive_seed
from offsupport.latent.dense import DenseModel
from offsupport.latent.draws import Draws, draw
from offsupport.latent.extrapolator import Extrapolator
from offsupport.latent.flow import log_density, views
from offsupport.latent.flow_fit import SHARP, FlowConfig, Problem, Stage, train
from offsupport.latent.inputs import Source
from offsupport.latent.process import preset
from offsupport.theory.diagnose import diagnose
from offsupport.theory.studies import Study

DISTANCES = (3.5, 5.0, 12.0, 18.0, 24.0, 30.0)
DIAGNOSED = 12.0
EXACT = 1e-6  # width of the true kinks: those of a fit are ramps, which costs it some likelihood


def gap_study(seeds: Sequence[int], targets: int, flow: FlowConfig | None = None) -> Study:
    """Measure the dense estimator and its oracles on the dense process of the tables.

    Scores: ``gap``, the fitted flow's likelihood gap in nats, and ``gap_oracle``, that of the fit begun at the truth.

    Args:
        seeds: Runs.
        targets: Predicted per run and distance.
        flow: How the flow is fitted; None: as by default.
    """
    flow = flow or FlowConfig()
    draws = draw(preset("table", "dense"), seeds, DISTANCES, n_targets=targets)
    estimator = Extrapolator(shift="dense", d_c=draws.process.d_c, d_s=draws.process.d_s, flow=flow)
    fitted = estimator.fit(draws.x, draws.y).dense_
    assert fitted is not None  # noqa: S101 - c is continuous here, so no class is a thin manifold
    source = estimator.source_
    truth = replace(fitted, flat=true_flow(draws, source, fitted))
    begun = replace(fitted, flat=_begun_at(truth, source, flow))
    study = Study()
    for method, model in (("extrapolator", fitted), ("flow begun at the truth", begun), ("true density", truth)):
        for at, distance in enumerate(DISTANCES):
            label = model.posterior(source.standardise(draws.x_tgt[:, at])).argmax(-1)
            study.add(method, f"dense-{distance:g}", label == draws.y_tgt[:, at])
    reference = _nll(truth, source, EXACT)
    study.scores["gap"] = (_nll(fitted, source) - reference).tolist()
    study.scores["gap_oracle"] = (_nll(begun, source) - reference).tolist()
    study.failing = _failing(draws)
    return study


def true_flow(draws: Draws, source: Source, model: DenseModel) -> Tensor:
    """Return the flat parameters (R, count) of the flow that inverts the true generator, in the model's coordinates.

    The model standardises and whitens x first; the outermost layer of the inverse undoes that. Slopes below zero are
    those of the generator, inverted; c given y is N(2 y, I), and s is taken as standard normal, not cut.
    """
    mlp = draws.g.mlp
    flat = torch.zeros_like(model.flat)
    flows = views(flat, model.shape)
    unwhiten = torch.linalg.inv(model.white.double()).mT * source.scale.mT  # x - mean = unwhiten @ white coordinates
    layers = list(zip(mlp.weights, mlp.biases, strict=True))[::-1]
    for at, (W, bias) in enumerate(layers):
        inverse = torch.linalg.inv(W.double())
        offset = bias.double()[..., None] - (source.mean.mT if at == 0 else 0)
        flows.A[at].copy_(inverse @ unwhiten if at == 0 else inverse)
        flows.b[at].copy_(-inverse @ offset)
        if at < len(layers) - 1:
            flows.rho[at].fill_(-math.log(mlp.slope))
    flows.means[:, : draws.process.d_c, 1] = 2.0
    return flat


def _begun_at(truth: DenseModel, source: Source, flow: FlowConfig) -> Tensor:
    """Polish the true flow on the source, as the last stage of every fit does."""
    flat = truth.flat.clone()
    rng = torch.Generator().manual_seed(derive_seed("gap", "polish"))
    train(_problem(truth, source), flat, 1, flow.polish_steps, Stage(flow.layers - 1), flow, rng)
    return flat


def _problem(model: DenseModel, source: Source) -> Problem:
    labels = torch.nn.functional.one_hot(source.y, source.n_classes).to(source.x.dtype).mT.contiguous()
    return Problem((source.x @ model.white).mT.contiguous(), labels, model.shape)


def _nll(model: DenseModel, source: Source, width: float = SHARP) -> Tensor:
    problem = _problem(model, source)
    widths = [width] * (model.shape.layers - 1)
    return -log_density(model.flows, problem.x, problem.labels, widths).mean(1)


def _failing(draws: Draws) -> dict[str, int]:
    """Count in how many runs each assumption of Theorem 1 fails for a target at distance 12."""
    counts: dict[str, int] = {}
    for seed in draws.seeds:
        found = diagnose(replace(draws.process, n_source=2000), run=seed, distance=DIAGNOSED, points=64)
        for condition in found.theorem1.failed():
            counts[condition.name] = counts.get(condition.name, 0) + 1
    return counts
