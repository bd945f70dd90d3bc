"""A low-dimensional code of what is invariant: an auto-encoder that sees some dimensions and explains all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.inputs import Source
from offsupport.latent.networks import Params, adam, batches, init_mlp, mlp
from offsupport.latent.sparse import random_kept

WIDTH, EPOCHS, BATCH, RATE = 64, 60, 256, 4e-3


@dataclass(frozen=True)
class Code:
    """Encoder and decoder of every run."""

    encoder: Params
    decoder: Params

    def encode(self, x: Tensor, kept: Tensor) -> Tensor:
        """Return c_hat (R, m, d_c) from the kept dimensions of standardised samples."""
        kept = kept.to(x.dtype)
        return mlp(self.encoder, torch.cat([x * kept, kept.expand_as(x)], -1))

    def decode(self, x: Tensor, kept: Tensor) -> Tensor:
        """Return what the code says about all dimensions, (R, m, d)."""
        return mlp(self.decoder, self.encode(x, kept))


def fit_code(source: Source, d_c: int, largest: int, rng: Callable[[str], torch.Generator]) -> Code:
    """Train the auto-encoder with random dimensions hidden, so that no single one is needed."""
    runs, n, d = source.x.shape
    code = Code(
        init_mlp([2 * d, WIDTH, WIDTH, d_c], runs, rng("encoder"), source.x.dtype),
        init_mlp([d_c, WIDTH, WIDTH, d], runs, rng("decoder"), source.x.dtype),
    )
    hide = rng("hide")

    def loss(index: Tensor) -> Tensor:
        kept = random_kept(len(index), d, largest, hide)
        x = source.x[:, index]
        return (code.decode(x, kept) - x).square().mean((1, 2))

    adam([*code.encoder, *code.decoder], loss, batches(n, BATCH, EPOCHS, rng("order")), RATE)
    return code
