"""Methods that learn from each image alone and forget it again: an episode starts from the source and ends there."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from offsupport.engine.adapter import PixelAdapter, StepRejected, draws_for
from offsupport.engine.config import EVENTS
from offsupport.engine.guard import blank


class Episodes(PixelAdapter):
    """Takes some steps on an image from the source model, predicts it, and puts everything back.

    Nothing is carried over, and draws depend on the seed and on the image's own pixels, so that neither its company nor
    its place matters.
    """

    purpose: ClassVar[str]
    """What the draws of an episode are for: methods that say the same share them."""

    @abc.abstractmethod
    def losses(self, x: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the loss of each step on the images of an episode; the step is taken before the next is asked for."""

    def episodes(self, x: Tensor) -> Sequence[Tensor]:
        """Return the images of each episode: one each."""
        return torch.split(x, 1)

    def step(self, x: Tensor) -> Tensor:
        """Adapt to each episode's images and predict them, one after the other, each from the source model."""
        x, events = self.images(x), dict.fromkeys(EVENTS, False)
        logits = []
        for images in self.episodes(x):
            try:
                if blank(images):
                    raise StepRejected("empty_selection")
                for loss in self.losses(images, draws_for(images, self.purpose, self.options.seed)):
                    self.descend(loss)
            except StepRejected as rejected:
                events[rejected.event] = True
                self._return_to_source()
            logits.append(self.network(images).detach())
            self._return_to_source()
        # Events count batches, and an image is no batch of the stream.
        for event in (name for name, happened in events.items() if happened):
            self.count(event)
        return torch.cat(logits)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step; where an image has a say in statistics, they are its own."""
        if self.norm_statistics.kind not in ("batch", "blend"):
            return self.network(self.images(x))
        return torch.cat([self.network(images) for images in self.episodes(self.images(x))])

    def _return_to_source(self) -> None:
        # All but the memory: the window of past images is no part of what an image taught.
        self.restore(dataclasses.replace(self._start, memory=self.memory.copy()))
