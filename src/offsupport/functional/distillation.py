"""Losses between a student's logits (N, K) and a teacher's prediction, which is given as log q (N, K)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offsupport.functional.entropy import marginal_entropy


def mean_prediction(logits: list[Tensor]) -> Tensor:
    """Return log of the mean of the softmax of several logits (N, K), in log space throughout.

    Example:
        >>> mean_prediction([torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])]).exp()
        tensor([[0.5000, 0.5000]])
    """
    return torch.stack([each.log_softmax(1) for each in logits]).logsumexp(0) - math.log(len(logits))


def flipped_cross_entropy(logits: Tensor, log_q: Tensor) -> Tensor:
    """Mean over samples of -sum_k p_k log q_k: the student's p stands outside, so its own entropy is paid for too."""
    return -(logits.softmax(1) * log_q).sum(1).mean()


def self_training_loss(logits: Tensor, log_q: Tensor) -> Tensor:
    """Flipped cross-entropy minus the entropy of the mean prediction (Tomar et al., 2023, test-time objective).

    It equals mean KL(p || q) minus the mutual information of the batch.
    """
    return flipped_cross_entropy(logits, log_q) - marginal_entropy(logits)


def distillation_loss(logits: Tensor, log_q: Tensor) -> Tensor:
    """Mean over samples of KL(q || p)."""
    return (log_q.exp() * (log_q - logits.log_softmax(1))).sum(1).mean()
