"""How sure a predicted number is: intervals that held the truth of the source as often as they should.

A model gives a standard deviation per sample; how many of them an interval needs is the quantile of what it took on
source samples that were kept out (split conformal prediction with normalised residuals). For the sparse model half of
those samples are pushed off the source first, in as many columns as may move, so the quantile covers such shifts too.
For the flow they are not: how far its error grows off the support is what nothing on the source tells.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from offsupport.latent.dense import DenseModel
from offsupport.latent.sparse import SparseModel

KEPT_OUT = 400  # source samples that calibrate, at most a quarter
PUSH = (4.0, 40.0)  # how far columns are pushed, in standard deviations


def multiples(residual: Tensor, spread: Tensor, level: float) -> Tensor:
    """Return the (R, 1) multiple of the spread (R, m) that holds the residuals (R, m) at the level."""
    ratio = residual.abs() / spread.clamp_min(1e-9)
    m = ratio.shape[-1]
    rank = min(m, int(-(-level * (m + 1) // 1)))
    return ratio.sort(-1).values[:, rank - 1 : rank]


def sparse_multiple(model: SparseModel, level: float, rng: torch.Generator) -> Tensor:
    """Return the multiple for the sparse model, from kept-out source samples of which half are pushed."""
    source = model.source
    _, n, d = source.x.shape
    order = torch.randperm(n, generator=rng)
    out, rest = order[: min(KEPT_OUT, n // 4)], order[min(KEPT_OUT, n // 4) :]
    x = source.x[:, out].clone()
    pushed = torch.arange(len(out)) % 2 == 1
    columns = torch.rand(len(out), d, generator=rng).argsort(-1) < model.largest
    far = PUSH[0] + (PUSH[1] - PUSH[0]) * torch.rand(len(out), d, generator=rng)
    signs = torch.where(torch.rand(len(out), d, generator=rng) < 0.5, -1.0, 1.0)
    x = x + (far * signs * columns * pushed[:, None]).to(x.dtype)
    without = replace(model, source=replace(source, x=source.x[:, rest], y=source.y[:, rest]))
    return multiples(without.output(x) - source.y[:, out], without.spread(x), level)


def flow_multiple(model: DenseModel, x: Tensor, y: Tensor, level: float) -> Tensor:
    """Return the multiple for the flow, from source samples (R, m, d) and their standardised numbers (R, m)."""
    mean, spread = model.moments(x)
    return multiples(mean - y, spread, level)
