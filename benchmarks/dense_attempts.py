"""Attempts to close the likelihood gap of the dense flow, on process seeds that no table reports.

    python benchmarks/dense_attempts.py [--runs 8] [--memory DIR] [--json FILE]

Every attempt begins with the flows of `Extrapolator`, fitted to the same source in three rotations of its whitened
columns, which are three independent fits. Printed are accuracies at two distances, intervals from a bootstrap over
runs, the source's negative log-likelihood per sample, and seconds of the processor relative to one fit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.extrapolator.dense import (
    SHARP,
    FlowConfig,
    FlowShape,
    Problem,
    fitted_flow,
    gradient,
    log_density,
    views,
    whitening,
)
from offsupport.latent.inputs import check_source
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import preset
from offsupport.results.intervals import mean_estimate

FIRST, FITS, TARGETS, DISTANCES = 10_200, 3, 20, (12.0, 18.0)
SECOND_ORDER_STEPS = 60
REFINED_STEPS, REFINED_BATCH, REFINED_RATE = 60, 256, 2e-3


@dataclass(frozen=True)
class Setting:
    """Runs with their flows: R runs in K rotations each.

    Attributes:
        x, labels: (K, R, d, n) whitened and rotated source, (R, q, n) its labels.
        x_tgt, y_tgt: (K, R, d, m) targets likewise, (R, D, T) their classes.
        flat: (K, R, count) the flows.
    """

    x: Tensor
    labels: Tensor
    x_tgt: Tensor
    y_tgt: Tensor
    flat: Tensor
    shape: FlowShape

    def nll(self, flat: Tensor) -> Tensor:
        """Return the source's negative log-likelihood per sample, (K, R)."""
        problem = Problem(self.x.flatten(0, 1), self.labels.repeat(len(self.x), 1, 1), self.shape)
        return problem.nll(flat.flatten(0, 1), 1).view(flat.shape[:2])

    def log_posterior(self, flat: Tensor) -> Tensor:
        """Return log p(y | x) of the targets, (K, R, m, 2)."""
        x = self.x_tgt.flatten(0, 1)
        flows, sharp = views(flat.flatten(0, 1), self.shape), [SHARP] * (self.shape.layers - 1)
        terms = []
        for label in torch.eye(self.shape.labels):
            features = label[:, None].expand(len(x), -1, x.shape[-1])
            terms.append(log_density(flows, x, features, sharp))
        return torch.stack(terms, -1).log_softmax(-1).view(*flat.shape[:2], -1, self.shape.labels)


def named(part: str) -> torch.Generator:
    """Return the generator of a part of a fit."""
    return torch.Generator().manual_seed(sum(map(ord, part)))


def prepared(runs: int, memory: str | None) -> Setting:
    """Draw the runs and fit their flows."""
    draws = draw(preset("table", "dense"), range(FIRST, FIRST + runs), DISTANCES, n_targets=TARGETS)
    source = check_source(draws.x, draws.y.numpy())
    white = whitening(source.x.mT @ source.x / source.x.shape[1])
    x, x_tgt = (source.x @ white).mT, (source.standardise(draws.x_tgt.flatten(1, 2)) @ white).mT
    labels = functional.one_hot(source.y, 2).to(x.dtype).mT.contiguous()
    d, rng = x.shape[1], torch.Generator().manual_seed(0)
    turns = torch.linalg.qr(torch.randn(FITS, d, d, generator=rng))[0]
    turned, turned_tgt = (torch.einsum("kij,rjn->krin", turns, part).contiguous() for part in (x, x_tgt))
    flat = fitted_flow(memory, turned.flatten(0, 1), labels.repeat(FITS, 1, 1), FlowConfig(), named)
    shape = FlowShape(d, FlowConfig().layers, 2)
    return Setting(turned, labels, turned_tgt, draws.y_tgt, flat.view(FITS, runs, -1), shape)


def second_order(setting: Setting) -> Tensor:
    """Return the flows after L-BFGS on the whole source, where that raised its likelihood."""
    polished = setting.flat.clone()
    sharp = [SHARP] * (setting.shape.layers - 1)
    for k in range(len(polished)):
        for run in range(polished.shape[1]):
            x, labels = setting.x[k, run][None], setting.labels[run][None]
            flat = polished[k, run][None].clone().requires_grad_()
            optimiser = torch.optim.LBFGS([flat], max_iter=SECOND_ORDER_STEPS, line_search_fn="strong_wolfe")
            problem = Problem(x, labels, setting.shape)

            def closure(flat: Tensor = flat, problem: Problem = problem) -> Tensor:
                flat.grad = torch.zeros_like(flat)
                with torch.no_grad():
                    gradient(flat, problem.shape, problem.x, problem.labels, sharp, flat.grad)
                    return problem.nll(flat, 1)[0, 0]

            optimiser.step(closure)  # type: ignore[no-untyped-call]
            polished[k, run] = flat.detach()[0]
    better = setting.nll(polished) < setting.nll(setting.flat)
    return torch.where(better[..., None], polished, setting.flat)


def refined_at_the_target(setting: Setting) -> Tensor:
    """Return log shares (R, m, 2): of how well one flow explains the source and the target, if it is of that class."""
    runs, m = setting.x_tgt.shape[1], setting.x_tgt.shape[-1]
    n, sharp = setting.x.shape[-1], [SHARP] * (setting.shape.layers - 1)
    scores = torch.zeros(runs, m, 2)
    for run in range(runs):
        flat = setting.flat[0, run].repeat(2 * m, 1)
        target = setting.x_tgt[0, run].T.repeat_interleave(2, 0)[..., None]
        classes = torch.eye(2).repeat(m, 1)[..., None]
        gradients, own = torch.zeros_like(flat), torch.zeros_like(flat)
        rng, mean, square = torch.Generator().manual_seed(0), torch.zeros_like(flat), torch.zeros_like(flat)
        for step in range(REFINED_STEPS):
            index = torch.randint(n, (REFINED_BATCH,), generator=rng)
            x, labels = (part[..., index].expand(2 * m, -1, -1) for part in (setting.x[0, run], setting.labels[run]))
            gradient(flat, setting.shape, x, labels, sharp, gradients)
            gradient(flat, setting.shape, target, classes, sharp, own)
            gradients.add_(own, alpha=1 / n)
            mean.lerp_(gradients, 0.1)
            square.mul_(0.99).addcmul_(gradients, gradients, value=0.01)
            scale = (square / (1 - 0.99 ** (step + 1))).sqrt_().add_(1e-8)
            flat.sub_(mean / scale, alpha=REFINED_RATE * (1 - step / REFINED_STEPS) / (1 - 0.9 ** (step + 1)))
        flows = views(flat, setting.shape)
        there = log_density(flows, target, classes, sharp)[:, 0]
        source = [part.expand(2 * m, -1, -1) for part in (setting.x[0, run], setting.labels[run])]
        whole = log_density(flows, source[0], source[1], sharp).sum(1)
        scores[run] = (there + whole).view(m, 2)
    return scores.log_softmax(-1)


def outcome(setting: Setting, log_share: Tensor, nll: Tensor, cost: float) -> dict[str, Any]:
    """Return what an attempt reached, for log shares (R, m, 2)."""
    right = (log_share.argmax(-1).view_as(setting.y_tgt) == setting.y_tgt).double()
    found: dict[str, Any] = {"nll": float(nll.mean()), "cost": round(cost, 2)}
    for at, distance in enumerate(DISTANCES):
        estimate = mean_estimate(right[:, at].mean(-1, keepdim=True).numpy())
        found[f"{distance:g}"] = [round(v, 4) for v in (estimate.value, estimate.low, estimate.high)]
    return found


def attempts(setting: Setting, one_fit: float) -> dict[str, dict[str, Any]]:
    """Return the outcomes by name."""
    nll, log_p = setting.nll(setting.flat), setting.log_posterior(setting.flat)
    first, one = setting_of(setting, 1), nll[0]
    best, found = nll.argmin(0), {"one fit": outcome(setting, log_p[0], nll[0], 1.0)}
    chosen = log_p[best, torch.arange(len(best))]
    found["the likeliest of three"] = outcome(setting, chosen, nll.amin(0), FITS)
    found["three, equal shares"] = outcome(setting, log_p.logsumexp(0), nll, FITS)
    shares = (-3 * nll).log_softmax(0)[..., None, None]
    found["three, shares by likelihood"] = outcome(setting, (log_p + shares).logsumexp(0), nll, FITS)
    polished, seconds = timed(lambda: second_order(setting))
    found["one fit, then L-BFGS on the whole source"] = outcome(
        first, first.log_posterior(polished[:1])[0], first.nll(polished[:1])[0], 1 + seconds / FITS / one_fit
    )
    nll, log_p = setting.nll(polished), setting.log_posterior(polished)
    shares = (-3 * nll).log_softmax(0)[..., None, None]
    found["three, each then L-BFGS, shares by likelihood"] = outcome(
        setting, (log_p + shares).logsumexp(0), nll, FITS + seconds / one_fit
    )
    refined, seconds = timed(lambda: refined_at_the_target(setting))
    found["one fit, refined at each target for each class"] = outcome(setting, refined, one, 1 + seconds / one_fit)
    return found


def setting_of(setting: Setting, fits: int) -> Setting:
    """Return the same with fewer fits."""
    return Setting(
        setting.x[:fits], setting.labels, setting.x_tgt[:fits], setting.y_tgt, setting.flat[:fits], setting.shape
    )


def timed(function: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return what a function gives, and seconds of the processor."""
    started = time.process_time()
    result = function()
    return result, time.process_time() - started


def main() -> None:
    """Run the attempts and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument(
        "--one-fit", type=float, default=0.0, help="seconds of one fit of all runs, if read from memory"
    )
    parser.add_argument("--memory", help="folder that keeps the flows")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    setting = prepared(asked.runs, asked.memory)
    one_fit = asked.one_fit or (time.process_time() - started) / FITS
    found = {"runs": asked.runs, "targets": TARGETS, "first": FIRST, "attempts": attempts(setting, one_fit)}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
