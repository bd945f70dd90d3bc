"""Methods that adapt as in training and score afterwards: batch-norm statistics follow the stream.

TTAC and TTT++ run their steps with batch norm in training mode: its running statistics move with every pass. Here these
are memory of the adapter, so that reset, save and the guard know them, and the buffers of the model stay as they came.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter, require_finite_loss
from offsupport.engine.config import StepConfig, require
from offsupport.nn.norm import Statistics
from offsupport.nn.projected import encoder_parameters

FLAT = 1e-6
"""Features that vary by less than this share of the source's variance say nothing of a distribution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowConfig(StepConfig):
    """Hyper-parameters of a method whose batch-norm statistics follow the stream."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with any norm layers, as moments need a batch."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule, without weight decay."""
    bn_momentum: float = 0.1
    """How far batch-norm statistics move towards those of each forward pass of a step."""
    score_stats: Literal["batch", "running"] = "batch"
    """Batch-norm statistics of the returned prediction: of the batch itself, or those followed so far, as published."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("bn_momentum", 0 <= self.bn_momentum <= 1, "in [0, 1]")


class Following(Adapter):
    """Moves the encoder, classifier kept; a batch is predicted after its step.

    A subclass says what a step looks at (:meth:`look`) and what it descends (:meth:`loss`). The statistics live in the
    memory: the buffers of the model stay as they came.
    """

    config: FollowConfig
    small_batch_without: ClassVar[int] = 16

    @property
    def statistics(self) -> Statistics:  # type: ignore[override]
        """What predictions are normalised by, unless other statistics are asked for."""
        return self.config.score_stats

    @property
    def looking(self) -> Statistics:
        """What a step is normalised by: ``ema`` as published, unless other statistics are asked for."""
        return "ema" if self.config.statistics in (None, "batch") else self.statistics_policy.kind

    @abc.abstractmethod
    def look(self, x: Tensor) -> tuple[Tensor, ...]:
        """Run the forward passes of a step, each under ``self.norm_statistics.using(self.looking)``.

        Returns:
            The features of the batch (N, D), and what else the loss needs.
        """

    @abc.abstractmethod
    def loss(self, *seen: Tensor) -> Tensor:
        """Return what a step descends, from what :meth:`look` returned; what is remembered moves on here."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter but those of the classifier and of a projection head."""
        return encoder_parameters(self.model, self.classifier)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the batch-norm statistics."""
        return {"running": self.norm_statistics.follow(self.model, self.config.bn_momentum)}

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model; in a step its batch-norm statistics move on."""
        # Memory is replaced, never changed in place: a snapshot may hold it.
        self.norm_statistics.running = moved = self.memory["running"].clone()
        logits = super().network(x, tensors)
        # Where the policy follows the stream, it has put statistics of its own into force.
        own = self.norm_statistics.kind == "ema" and self.norm_statistics.running is moved
        if own and moved.isfinite().all():
            self.memory["running"] = moved
        if torch.is_grad_enabled():
            require_finite_loss(logits)
        return logits

    def step(self, x: Tensor) -> Tensor:
        """Descend the loss of the batch, then predict it."""
        before, seen = self.memory["running"], self.look(x)
        if self._is_flat(seen[0].detach()):
            self.memory["running"] = before
            self.count("empty_selection")
        else:
            self.descend(self.loss(*seen))
        return self.predict(x)

    def _is_flat(self, z: Tensor) -> bool:
        """Tell whether features hardly vary beside those of the source: copies of one image, or a blank camera."""
        assert self.source is not None  # noqa: S101 (methods that align have source statistics)
        spread = self.source.tensors["feature_cov"].diagonal().sum().to(z)
        return bool(z.var(0).sum() < FLAT * spread)

    @torch.no_grad()
    def without_step(self, x: Tensor) -> Tensor:
        """Let the batch-norm statistics follow all the same: they do not depend on what went wrong."""
        self.look(x)
        return self.predict(x)
