"""A low-dimensional code of what is invariant: an auto-encoder of the columns that targets leave in place.

Columns that the targets of a run distrust are left out, so no capacity goes to s; of the others some are hidden at
random, so that a code can be read from what a single target leaves. The decoder learns the distrusted columns too, from
the code as it is, so what it says about them is what c explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.inputs import Source
from offsupport.latent.networks import Params, adam, batches, init_mlp, mlp

WIDTH, BATCH = 64, 128
STAGES = ((25, 4e-3), (15, 1e-3), (10, 2e-4))  # epochs and step sizes


@dataclass(frozen=True)
class Code:
    """Encoder and decoder of every run, the (R, 1, d) columns the code is of, and the (R, 1, d) coordinates it has."""

    encoder: Params
    decoder: Params
    trusted: Tensor
    used: Tensor

    def encode(self, x: Tensor, kept: Tensor) -> Tensor:
        """Return c_hat (R, m, d) from the kept dimensions of standardised samples; zeros beyond each run's d_c."""
        seen = (kept & self.trusted).to(x.dtype)
        return mlp(self.encoder, torch.cat([x * seen, seen.expand_as(x)], -1)) * self.used

    def decode(self, x: Tensor, kept: Tensor) -> Tensor:
        """Return what the code says about all dimensions, (R, m, d)."""
        return mlp(self.decoder, self.encode(x, kept))


def fit_code(source: Source, trusted: Tensor, d_c: Tensor, largest: int, rng: Callable[[str], torch.Generator]) -> Code:
    """Train the auto-encoder.

    Args:
        source: The source samples.
        trusted: (R, d) columns the code is about; where a run trusts none, all.
        d_c: (R,) dimensions of the code; all runs draw weights for d, so a run does not depend on the others.
        largest: Most dimensions hidden at a time.
        rng: Gives the generator of a named part.
    """
    runs, n, d = source.x.shape
    trusted = (trusted | ~trusted.any(-1, keepdim=True))[:, None]
    code = Code(
        init_mlp([2 * d, WIDTH, WIDTH, d], runs, rng("encoder"), source.x.dtype),
        init_mlp([d, WIDTH, WIDTH, d], runs, rng("decoder"), source.x.dtype),
        trusted,
        (torch.arange(d) < d_c[:, None, None]).to(source.x.dtype),
    )
    hide, order = rng("hide"), rng("order")

    def loss(index: Tensor) -> Tensor:
        kept = random_kept(len(index), d, largest, hide)
        x = source.x[:, index]
        c_hat = code.encode(x, kept)
        explained = (mlp(code.decoder, c_hat) - x).square() * trusted
        beside = (mlp(code.decoder, c_hat.detach()) - x).square() * ~trusted
        return (explained + beside).mean((1, 2))

    for epochs, rate in STAGES:
        adam([*code.encoder, *code.decoder], loss, batches(n, BATCH, epochs, order), rate)
    return code


def random_kept(count: int, d: int, largest: int, rng: torch.Generator) -> Tensor:
    """Return (count, d) booleans: half the rows hide nothing, the others 1 to ``largest`` dimensions."""
    size = torch.randint(1 - largest, largest + 1, (count, 1), generator=rng)
    return torch.rand(count, d, generator=rng).argsort(-1) >= size
