"""Entropies of predictions, from logits and in log space throughout."""

from __future__ import annotations

import math

from torch import Tensor


def as_rows(logits: Tensor) -> Tensor:
    """Flatten dense logits (N, K, *positions) to one row per position, (N * positions, K); rows stay as they are.

    Example:
        >>> import torch
        >>> as_rows(torch.zeros(2, 3, 4, 5)).shape
        torch.Size([40, 3])
    """
    return logits if logits.dim() == 2 else logits.movedim(1, -1).flatten(0, -2)


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) in nats, over dimension 1: (N, K, ...) to (N, ...).

    Example:
        >>> import torch
        >>> entropy(torch.zeros(1, 4)).exp().round(decimals=4)
        tensor([4.])
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction of the rows (N, K): high when the batch uses all classes."""
    log_p_bar = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(log_p_bar.exp() * log_p_bar).sum()


def mutual_information(logits: Tensor) -> Tensor:
    """Batch estimate of the information between input and label: H(p_bar) - mean H(p_i), never below zero.

    It is identically zero, with zero gradient, on copies of one sample.
    """
    return marginal_entropy(logits) - entropy(logits).mean()
