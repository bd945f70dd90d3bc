"""Pseudo-label refinement: predictions averaged over the nearest among recent samples of every class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Queue = dict[str, Tensor]
"""``features`` (K, size, D) and ``log_q`` (K, size, K) of past samples by label, and how many came, ``count`` (K,)."""


def empty_queue(features: Tensor, log_q: Tensor, size: int) -> Queue:
    """Return a queue of ``size`` places per class for such features (N, D) and predictions (N, K)."""
    classes = log_q.shape[1]
    return {
        "features": features.new_zeros(classes, size, features.shape[1]),
        "log_q": log_q.new_zeros(classes, size, classes),
        "count": log_q.new_zeros(classes, dtype=torch.long),
    }


def push(queue: Queue, features: Tensor, log_q: Tensor) -> Queue:
    """Return the queue with a batch at the end of the queues of its labels, argmax q; the oldest samples leave."""
    size, classes = queue["features"].shape[1], log_q.shape[1]
    labels = log_q.argmax(1)
    same = labels[:, None] == labels
    rank = same.tril(-1).sum(1)
    newest = same.triu(1).sum(1) < size
    place = (queue["count"][labels] + rank) % size
    # Where a batch holds more of a class than there are places, only the last of them are written.
    at = (labels[newest], place[newest])
    return {
        "features": queue["features"].index_put(at, features[newest]),
        "log_q": queue["log_q"].index_put(at, log_q[newest]),
        "count": queue["count"] + torch.bincount(labels, minlength=classes),
    }


def refined(queue: Queue, features: Tensor, neighbours: int) -> Tensor:
    """Return log of the mean prediction of the ``neighbours`` samples in the queue nearest in angle, (N, K)."""
    size = queue["features"].shape[1]
    filled = (torch.arange(size, device=features.device) < queue["count"][:, None]).flatten()
    past = nn.functional.normalize(queue["features"].flatten(0, 1)[filled], dim=1)
    cosine = nn.functional.normalize(features, dim=1) @ past.T
    nearest = cosine.topk(min(neighbours, len(past)), dim=1).indices
    found = queue["log_q"].flatten(0, 1)[filled][nearest]
    return found.logsumexp(1) - math.log(found.shape[1])
