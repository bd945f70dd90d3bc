"""Maximum likelihood for the piecewise-linear flow, layer by layer from the outside in, best of several starts.

Plain training finds the outermost kinks (they are hyperplanes in x across which the density jumps) and gets stuck with
wrong inner ones. So the fit goes in stages: train everything; keep the outer layer of the best start, start the inner
layers anew on the representation it gives, train again; the same with two outer layers kept; repeat, and accept a
round only where the source likelihood rises. What plain training misses most are outer kinks: units of the outer layer
whose slope stayed near 1 explain nothing, so every round draws them anew. Nothing here sees a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.flow import FlowShape, Width, gradient, kink, log_density, views

SHARP = 0.01  # width at which kinks end, in units of the representation's standard deviation
KEPT = 0.05  # width of kinks that a stage keeps
POLISHED = 0.1  # width of kinks at the start of the last stage
STRAIGHT = 0.3  # log slopes below this in size bend nothing
MONITORED = 4000  # source samples the starts are compared on


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """How a flow is fitted; chosen on development seeds by source likelihood."""

    layers: int = 4
    """Linear layers; kinks stand between them."""
    starts: int = 4
    """Random starts per stage."""
    rounds: int = 6
    """Repetitions of the inner stages."""
    steps: int = 2000
    """Steps of the first stage."""
    inner_steps: int = 3000
    """Steps of the stage that keeps one layer; those that keep more take half."""
    polish_steps: int = 2500
    """Steps of the last stage: all layers, kinks sharp already."""
    polish_batch: int = 500
    """Samples per step of the last stage: small batches end above the likelihood that is there to be had."""
    batch_size: int = 64
    """Samples per step of the others."""
    lr: float = 0.05
    """Largest step size of a stage; the last stage takes two fifths."""
    kept_lr: float = 0.2
    """Step size of kept layers, relative."""


@dataclass(frozen=True)
class Problem:
    """Whitened source samples (R, d, n), features of their labels (R, q, n), and the shape of the flow."""

    x: Tensor
    labels: Tensor
    shape: FlowShape

    def nll(self, flat: Tensor, starts: int, count: int | None = None) -> Tensor:
        """Return the mean negative log-likelihood (R, starts) at sharp kinks."""
        x, labels = (t[..., :count].repeat_interleave(starts, 0) for t in (self.x, self.labels))
        sharp = [SHARP] * (self.shape.layers - 1)
        return -log_density(views(flat, self.shape), x, labels, sharp).mean(1).view(-1, starts)


def fit_flow(x: Tensor, labels: Tensor, config: FlowConfig, rng: Callable[[str], torch.Generator]) -> Tensor:
    """Fit one flow per run.

    Args:
        x: (R, d, n) whitened source samples.
        labels: (R, q, n) features of y; the class-conditional means are linear in them.
        config: How to fit.
        rng: Gives the generator of a named part; the runs share all draws.

    Returns:
        The flat parameters, (R, count).
    """
    problem = Problem(x, labels, FlowShape(x.shape[1], config.layers, labels.shape[1]))
    starts = config.starts
    flat = torch.zeros(len(x) * starts, problem.shape.count, dtype=x.dtype)
    restart(problem, flat, starts, 0, rng("start"))
    train(problem, flat, starts, config.steps, Stage(0), config, rng("first"))
    best, best_nll = _best(problem, flat, starts)
    for step in range(config.rounds):
        trial, nll = best, best_nll
        for kept in range(1, config.layers - 1):
            name = f"{step}-{kept}"
            flat = trial.repeat_interleave(starts, 0)
            fresh = reseed(problem, flat, starts, rng(f"kinks-{name}")) if kept == 1 else None
            restart(problem, flat, starts, kept, rng(f"start-{name}"))
            steps = config.inner_steps if kept == 1 else config.inner_steps // 2
            train(problem, flat, starts, steps, Stage(kept, fresh), config, rng(f"order-{name}"))
            trial, nll = _best(problem, flat, starts)
        better = (nll < best_nll)[:, None]
        best, best_nll = torch.where(better, trial, best), torch.minimum(nll, best_nll)
    polished = best.clone()
    train(problem, polished, 1, config.polish_steps, Stage(config.layers - 1), config, rng("polish"))
    return torch.where(problem.nll(polished, 1) < problem.nll(best, 1), polished, best)


def _best(problem: Problem, flat: Tensor, starts: int) -> tuple[Tensor, Tensor]:
    nll = problem.nll(flat, starts, MONITORED).nan_to_num(math.inf)
    lowest, index = nll.min(1)
    return flat.view(len(nll), starts, -1)[torch.arange(len(nll)), index], lowest


def restart(problem: Problem, flat: Tensor, starts: int, kept: int, rng: torch.Generator) -> None:
    """Start the layers from ``kept`` on anew, in place: whitening, random rotations, slopes e, means 0."""
    flows = views(flat, problem.shape)
    h = problem.x[..., :MONITORED].repeat_interleave(starts, 0)
    for layer in range(kept):
        h = kink(torch.baddbmm(flows.b[layer], flows.A[layer], h), flows.rho[layer], SHARP)[0]
    mean = h.mean(-1, keepdim=True)
    white = whitening((h - mean) @ (h - mean).mT / h.shape[-1])
    d = problem.shape.d
    for layer in range(kept, problem.shape.layers):
        drawn = torch.randn(starts, d, d, generator=rng, dtype=torch.float64)
        rotation = torch.linalg.qr(drawn)[0].to(h.dtype).repeat(len(problem.x), 1, 1)
        first = layer == kept
        flows.A[layer].copy_(rotation @ white if first else rotation)
        flows.b[layer].copy_(-(flows.A[layer] @ mean) if first else torch.zeros_like(mean))
        if layer < problem.shape.layers - 1:
            flows.rho[layer].fill_(1.0)
    flows.means.zero_()


def reseed(problem: Problem, flat: Tensor, starts: int, rng: torch.Generator) -> Tensor:
    """Draw the units of the outer layer that bend nothing anew, in place; return which, (R * starts, d, 1)."""
    flows, d = views(flat, problem.shape), problem.shape.d
    fresh = flows.rho[0].abs() < STRAIGHT
    rows = torch.nn.functional.normalize(torch.randn(starts, d, d, generator=rng, dtype=torch.float64), dim=-1)
    offsets = 0.7 * torch.randn(starts, d, 1, generator=rng, dtype=torch.float64)  # x is white: within its bulk
    for part, drawn in ((flows.A[0], rows), (flows.b[0], offsets), (flows.rho[0], torch.ones_like(offsets))):
        part.copy_(torch.where(fresh, drawn.to(part.dtype).repeat(len(problem.x), 1, 1), part))
    return fresh


def whitening(covariance: Tensor) -> Tensor:
    """Return the symmetric inverse square root of covariances (M, d, d), in double precision inside."""
    values, vectors = torch.linalg.eigh(covariance.double())
    floor = 1e-8 * values[..., -1:]
    white: Tensor = (vectors * values.clamp_min(floor).rsqrt()[..., None, :]) @ vectors.mT
    return white.to(covariance.dtype)


@dataclass(frozen=True)
class Stage:
    """What a stage of training keeps.

    Attributes:
        kept: Outer layers whose kinks are sharp already and which move slower.
        fresh: (M, d, 1) units of the outer layer that are new and treated like those of the inner layers.
    """

    kept: int
    fresh: Tensor | None = None

    def widths(self, layers: int) -> list[Width]:
        """Return the widths of the kinks to begin with."""
        begin: list[Width] = [KEPT if layer < self.kept else 1.0 for layer in range(layers - 1)]
        if self.fresh is not None:
            begin[0] = torch.where(self.fresh, 1.0, KEPT)
        return begin

    def speeds(self, shape: FlowShape, slow: float, flat: Tensor) -> Tensor:
        """Return the relative step sizes, (M, count) or (1, count): ``slow`` in the kept layers."""
        speed = torch.ones_like(flat[:1] if self.fresh is None else flat)
        parts = views(speed, shape)
        for layer in range(self.kept):
            for tensor in (parts.A[layer], parts.b[layer], parts.rho[layer]):
                tensor.fill_(slow)
                if layer == 0 and self.fresh is not None:
                    tensor.masked_fill_(self.fresh, 1.0)
        return speed


def train(
    problem: Problem, flat: Tensor, starts: int, steps: int, stage: Stage, config: FlowConfig, rng: torch.Generator
) -> None:
    """Take Adam steps on the flat parameters in place: one warm-up and cosine cycle, kinks annealed to sharp.

    Args:
        problem: The data.
        flat: (R * starts, count) parameters.
        starts: Flows per run.
        steps: Number of steps.
        stage: What is kept; a stage that keeps all but the last layer polishes: all layers move alike.
        config: Batch sizes and step sizes.
        rng: Draws the order of the samples.
    """
    polish = stage.kept == problem.shape.layers - 1
    begin = [POLISHED] * stage.kept if polish else stage.widths(problem.shape.layers)
    speed = torch.ones_like(flat[:1]) if polish else stage.speeds(problem.shape, config.kept_lr, flat)
    peak, size, warm = (0.4 * config.lr, config.polish_batch, 0.1) if polish else (config.lr, config.batch_size, 0.3)
    gradients, m, v = (torch.zeros_like(flat) for _ in range(3))
    beta1, beta2 = 0.9, 0.99
    for step in range(steps):
        x, labels = _batch(problem, starts, size, rng)
        widths = [w * (SHARP / w) ** (step / steps) for w in begin]
        gradient(flat, problem.shape, x, labels, widths, gradients)
        m.lerp_(gradients, 1 - beta1)
        v.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        lr = peak * cycle(step / steps, warm) / (1 - beta1 ** (step + 1))
        scale = (v / (1 - beta2 ** (step + 1))).sqrt_().add_(1e-8)
        flat.sub_((m / scale).mul_(speed), alpha=lr)


def cycle(t: float, warm: float = 0.3) -> float:
    """Return the step size at time t in [0, 1]: a cosine up until ``warm``, a cosine down to 0."""
    if t < warm:
        return 0.04 + 0.48 * (1 - math.cos(math.pi * t / warm))
    return 0.5 * (1 + math.cos(math.pi * (t - warm) / (1 - warm)))


def _batch(problem: Problem, starts: int, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    index = torch.randint(problem.x.shape[-1], (size,), generator=rng)
    x, labels = problem.x[..., index], problem.labels[..., index]
    return (x, labels) if starts == 1 else (x.repeat_interleave(starts, 0), labels.repeat_interleave(starts, 0))
