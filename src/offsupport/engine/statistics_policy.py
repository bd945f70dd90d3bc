"""Statistics policies: which means and variances batch norm normalises by while a method runs.

Each word of the hyper-parameter ``statistics`` is one. Some need nothing but the batch and the source; others follow
the stream, and what they know of it is memory of the adapter. Those that count images predict by what was known before,
so that an image has no say in its own prediction, and what stands beside it in a batch does not matter.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.engine.guard import finite_rows, shows
from offsupport.engine.state import Memory
from offsupport.functional import as_rows
from offsupport.nn.norm import AdaptiveStatistics, NormStatistics, Seen, Statistics

Predict = Callable[[Tensor], Tensor]
"""Logits of images by the statistics in force; keeps no graph."""


COMPANY = 2
"""A single image says too little to be predicted by what it tells of itself, and costs one pass."""


class StatisticsPolicy:
    """Statistics that remember nothing: of the batch, of the source, or of both.

    Args:
        kind: What the layers normalise by.
        norm_statistics: What they share.
    """

    follows: ClassVar[bool] = False
    """Whether the policy remembers what it saw."""
    memory: Memory
    """That of the adapter; there from its first batch on."""

    def __init__(self, kind: Statistics, norm_statistics: NormStatistics) -> None:
        self.kind = kind
        self.norm_statistics = norm_statistics

    def start(self, model: nn.Module) -> None:
        """Learn from ``model`` what it came with; again after it has moved to another device or type."""

    def initial_memory(self) -> dict[str, Tensor]:
        """Return what it remembers, at its start."""
        return {}

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something in a memory that no stream leaves there; None where there is nothing."""
        return None

    def use(self, images: int) -> None:
        """Put into force what a pass of so many images is normalised by."""

    def prepare(self, x: Tensor, predict: Predict) -> bool:
        """Do what comes before a step on ``x``, and tell whether ``x`` is counted by that."""
        return True

    def serve(self, x: Tensor, predict: Predict) -> Tensor:
        """Predict ``x`` and count it."""
        return predict(x)

    def count(self, x: Tensor, seen: Seen, logits: Tensor) -> None:
        """Count images, what a pass recorded of them, and their logits."""


class FixedShare(StatisticsPolicy):
    """Batch and source blended with a share of the batch that is the same for all sizes (You et al., 2021)."""

    def __init__(self, norm_statistics: NormStatistics, share: float) -> None:
        super().__init__("blend" if share else "source", norm_statistics)
        self.share = share

    def use(self, images: int) -> None:
        """Let the source count as so many images that the batch has its share."""
        if self.share:
            self.norm_statistics.prior = images * (1 - self.share) / self.share


class FollowedStatistics(StatisticsPolicy):
    """Statistics that follow the stream, from those the model came with."""

    follows: ClassVar[bool] = True

    def __init__(self, model: nn.Module, norm_statistics: NormStatistics) -> None:
        super().__init__("running", norm_statistics)
        self.start(model)

    def start(self, model: nn.Module) -> None:
        """Learn from ``model`` what it came with."""
        known = self.norm_statistics.follow(model)
        if not known.numel():
            raise ModelError(
                "The batch-norm layers of this model keep no running statistics: there is nothing to move away from.",
                "Use 'bn', or train with track_running_stats=True.",
            )
        self.known = known.clone()
        layers = [layer for layer in model.modules() if isinstance(layer, AdaptiveStatistics)]
        # A layer without running statistics takes those of its batch, which a smaller group would change.
        self.splits = all(layer.place is not None for layer in layers)
        # Which layer a channel belongs to, in the order in which they stand side by side.
        places = sorted((layer.place.start, layer.place.stop) for layer in layers if layer.place is not None)
        owners = [torch.full((stop - start,), i) for i, (start, stop) in enumerate(places)]
        self.layer = torch.cat(owners).to(known.device)


@dataclasses.dataclass(frozen=True)
class Current:
    """What follows from what is known; it holds until more images are counted."""

    state: Tensor
    """What it follows from."""
    running: Tensor
    """Means and variances to normalise by, (2, channels)."""
    moments: Tensor
    """Moments of the stream as far as they are known, (2, 1, channels)."""
    images: float
    """Images counted."""


class CountedStatistics(FollowedStatistics):
    """Statistics by the moments of the images counted so far."""

    group: int = 16
    """Images that are predicted together; the next group knows of them."""
    young: int = 64
    """From the first image on that was predicted when fewer than this had been seen a batch is predicted once more."""

    def start(self, model: nn.Module) -> None:
        """Learn from ``model`` what it came with."""
        super().start(model)
        self._current: Current | None = None

    @abc.abstractmethod
    def images(self) -> float:
        """Return how many images were counted."""

    @abc.abstractmethod
    def state(self) -> Tensor:
        """Return the tensor of the memory that is replaced whenever images are counted."""

    @abc.abstractmethod
    def _moved(self) -> Tensor:
        """Return the means and variances to normalise by, (2, channels)."""

    @abc.abstractmethod
    def _count(self, moments: Tensor, shares: Tensor) -> None:
        """Add the moments (2, N, channels) of a group and its mean prediction (K,) to what is known."""

    @abc.abstractmethod
    def moments(self) -> Tensor:
        """Return the moments of the stream as far as they are known, (2, channels)."""

    @abc.abstractmethod
    def unseen(self) -> Tensor:
        """Return the moments that stand in for layers that did not run, (2, channels)."""

    @property
    def now(self) -> Current:
        """What follows from what is known."""
        # Memory is replaced, never changed in place: the same tensor stands for the same statistics.
        state = self.state()
        if self._current is None or self._current.state is not state:
            self._current = Current(state, self._moved(), self.moments()[:, None], self.images())
        return self._current

    def use(self, images: int) -> None:
        """Let the layers normalise by what follows from what is known."""
        self.norm_statistics.running = self.now.running

    def prepare(self, x: Tensor, predict: Predict) -> bool:
        """Count a batch before a step on it where too little is known to predict it by."""
        early = self.now.images < self.young and len(x) >= COMPANY
        if early:
            for group in self._groups(x):
                self._predict_and_count(group, predict)
        return early

    def serve(self, x: Tensor, predict: Predict) -> Tensor:
        """Predict group by group, each by what was known before it; where that was too little, predict once more."""
        logits, poor, fine = [], False, 0
        for group in self._groups(x):
            before = self.now.images
            logits.append(self._predict_and_count(group, predict))
            # After an abrupt change fewer images count than before: the group was predicted by what no longer holds.
            poor = poor or before < self.young or self.now.images < before
            fine += 0 if poor else len(group)
        found = torch.cat(logits) if len(logits) > 1 else logits[0]
        if poor and len(x) >= COMPANY:
            counted = finite_rows(found[fine:]) & shows(x[fine:])
            again = self._predict_again(x[fine:] if fine else x, predict, counted)
            # Not written into: it may be what the model itself goes on holding.
            found = torch.cat([found[:fine], again]) if fine else again
        return found

    def _predict_again(self, x: Tensor, predict: Predict, counted: Tensor) -> Tensor:
        """Predict images of which these (N,) were counted, by what they told."""
        return predict(x)

    def _groups(self, x: Tensor) -> tuple[Tensor, ...]:
        # The batch itself where it is one group: the base looks at its moments in the same pass.
        return torch.split(x, self.group) if self.splits and len(x) > self.group else (x,)

    def _predict_and_count(self, x: Tensor, predict: Predict) -> Tensor:
        with self.norm_statistics.recording() as seen:
            logits = predict(x)
        self.count(x, seen, logits)
        return logits

    def count(self, x: Tensor, seen: Seen, logits: Tensor) -> None:
        """Count images that a pass recorded, but for those that overflowed in it and those that show nothing."""
        if not seen:
            return
        moments, shown = seen.moments(self.unseen()), shows(x)
        if moments.shape[1] == len(shown) and not bool(shown.all()):
            moments, logits = moments[:, shown], logits[shown]
        if not math.isfinite(float(moments.sum() + logits.sum())):  # a sum is finite only where all its terms are
            finite = finite_rows(logits) & moments.isfinite().all(2).all(0)
            moments, logits = moments[:, finite], logits[finite]
        if len(logits):
            self._count(moments, as_rows(logits).softmax(1).mean(0))


def as_moments(known: Tensor) -> Tensor:
    """Return means and variances, (2, channels), as first and second moments."""
    mean, var = known
    return torch.stack([mean, var + mean.square()])


class RunningStatistics(CountedStatistics):
    """The plain mean of all images so far, the source counted as ``prior`` of them."""

    def __init__(self, model: nn.Module, norm_statistics: NormStatistics, prior: float) -> None:
        self.prior = prior
        super().__init__(model, norm_statistics)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the mean of the moments, and of how many images."""
        return {"stream_moments": as_moments(self.known), "images": torch.zeros((), dtype=torch.float64)}

    def images(self) -> float:
        """Return how many images were counted."""
        return float(self.memory["images"])

    def state(self) -> Tensor:
        """Return the mean of the moments."""
        return self.memory["stream_moments"]

    def moments(self) -> Tensor:
        """Return their mean."""
        return self.memory["stream_moments"]

    def unseen(self) -> Tensor:
        """Return the mean of the moments: such a layer stays where it is."""
        return self.memory["stream_moments"]

    def _count(self, moments: Tensor, shares: Tensor) -> None:
        images, now = moments.shape[1], self.now
        away = (moments - now.moments).sum(1) / (self.prior + now.images + images)
        after = {"stream_moments": self.memory["stream_moments"] + away, "images": self.memory["images"] + images}
        self.memory.update(after)

    def _moved(self) -> Tensor:
        if not self.images():
            return self.known  # not by way of second moments, which would round it
        mean, square = self.memory["stream_moments"]
        return torch.stack([mean, (square - mean.square()).clamp(min=0)])


DECAY, LEAST = 0.94, 0.005
"""How the momentum of DUA shrinks with each batch, and where it ends (Mirza et al., 2022)."""


class MomentumStatistics(FollowedStatistics):
    """Running statistics that move as in training, by one more pass before each prediction.

    Args:
        model: The model.
        norm_statistics: What its layers share.
        rate: The momentum; ``decaying``, the one it starts with.
        decaying: Whether it shrinks with every batch, as in DUA, which takes 64 copies of one image for a batch.
    """

    def __init__(self, model: nn.Module, norm_statistics: NormStatistics, rate: float, decaying: bool) -> None:
        self.rate, self.decaying = rate, decaying
        self._moving: Tensor | None = None
        super().__init__(model, norm_statistics)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember means and variances, and how many batches moved them."""
        return {"followed": self.known, "batches": torch.zeros(())}

    def use(self, images: int) -> None:
        """Let the layers normalise by what was followed, or move it."""
        self.norm_statistics.running = self.memory["followed"] if self._moving is None else self._moving

    @torch.no_grad()
    def prepare(self, x: Tensor, predict: Predict) -> bool:
        """Move the statistics towards those of ``x``, by a pass that normalises by ``x`` as training does."""
        batches = self.memory["batches"] + 1
        self.norm_statistics.momentum = self.rate
        if self.decaying:
            self.norm_statistics.momentum = self.rate * DECAY ** int(batches) + LEAST
        # Memory is replaced, never changed in place: a snapshot may hold it.
        self._moving = moved = self.memory["followed"].clone()
        try:
            with self.norm_statistics.using("ema"):
                predict(x)
        finally:
            self._moving = None
        if moved.isfinite().all():
            self.memory.update({"followed": moved, "batches": batches})
        return True

    def serve(self, x: Tensor, predict: Predict) -> Tensor:
        """Move the statistics towards those of ``x``, and predict it by them."""
        self.prepare(x, predict)
        return predict(x)
