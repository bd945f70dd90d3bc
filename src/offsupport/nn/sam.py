"""Sharpness-aware minimisation (Foret et al., 2021): the gradient is taken where the loss is worst nearby."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


@contextlib.contextmanager
def perturbed(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float) -> Iterator[None]:
    """Move ``parameters`` by rho * g / ||g|| inside the block, and back to the very same bits after it."""
    norm = torch.nn.utils.get_total_norm(list(gradients))
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient * (rho / (norm + 1e-12)))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
