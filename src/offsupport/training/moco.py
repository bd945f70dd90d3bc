"""Momentum contrast (He et al., 2020): queries pick their keys out of a queue of past ones; no labels."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError
from offsupport.nn import WithProjection, projected
from offsupport.nn.inspect import capture_input, find_head
from offsupport.training.objectives import OBJECTIVES, Loss, Objective

WIDTH = 128
"""Width of queries and keys."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MocoOptions:
    """Settings of momentum contrast."""

    queue: int = 4096
    """Past keys to tell the right one from; at least a batch of them."""
    temperature: float = 0.1
    """What cosines are divided by."""
    decay: float = 0.99
    """How much of the key network is kept at each step."""


@OBJECTIVES.register("moco")
class Moco(Objective):
    """InfoNCE between two views, one of them seen by a slowly following copy of the network.

    The copy normalises by following averages of the batch-norm statistics too (Cai et al., 2021): with statistics of
    the batch, partners would know each other by the company they keep.
    """

    options_class = MocoOptions
    views = 2
    classifies = False
    queue: Tensor
    position: Tensor

    def __init__(self, network: nn.Module, options: MocoOptions) -> None:
        super().__init__(network, options)
        pair = projected(network, WIDTH)
        self.projection = pair.projection
        find_head(network)[1].requires_grad_(False)  # it has no part in this
        # Not one of our parameters: it is never trained, and it is kept with the rest by its own name.
        self.keys: WithProjection = copy.deepcopy(pair).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(options.queue, WIDTH), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def train(self, mode: bool = True) -> Moco:
        """Let the key network stay in evaluation mode."""
        super().train(mode)
        self.keys.train(False)
        return self

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Loss:
        """Return the cross-entropy of picking the partner's key among it and the queue."""
        with capture_input(find_head(self.model)[1]) as features:
            self.model(views[0])
        query = nn.functional.normalize(self.projection(features[-1]), dim=1)
        with torch.no_grad():
            key = nn.functional.normalize(self.keys.both(views[1])[1], dim=1)
        partner = (query * key).sum(1, keepdim=True)
        # A clone, because the queue is written below while the gradient still needs what it held.
        logits = torch.cat([partner, query @ self.queue.T.clone()], dim=1) / self.options.temperature
        if self.training:
            self._enqueue(key)
        first = torch.zeros_like(labels)
        return Loss(nn.functional.cross_entropy(logits, first), logits.argmax(1) == first)

    @torch.no_grad()
    def _enqueue(self, key: Tensor) -> None:
        """Let the newest keys take the places of the oldest."""
        if len(key) > len(self.queue):
            raise ConfigError(f"A queue of {len(self.queue)} cannot hold a batch of {len(key)}.", "Set a longer queue.")
        at = (self.position + torch.arange(len(key), device=key.device)) % len(self.queue)
        self.queue[at] = key
        self.position.copy_((self.position + len(key)) % len(self.queue))

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the key network follow by one step: weights and batch-norm averages alike."""
        source = {**_tensors("backbone.", self.model), **_tensors("projection.", self.projection)}
        for name, followed in {**dict(self.keys.named_parameters()), **dict(self.keys.named_buffers())}.items():
            if followed.is_floating_point():
                followed.lerp_(source[name], 1 - self.options.decay)


def _tensors(prefix: str, module: nn.Module) -> dict[str, Any]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {prefix + name: tensor for name, tensor in named.items()}
