"""What keeps a stream safe: bad samples are set apart, bad steps are undone, collapse is noticed."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from offsupport.core.errors import ModelError
from offsupport.functional import as_rows

EVENTS = ("bad_input", "bad_loss", "bad_grad", "bad_param", "empty_selection", "small_batch", "collapse", "reset")

LARGEST = 1e4
"""Images are in [0, 1]; this leaves room for any other unit."""

CollapseAction = Literal["warn", "reset", "off"]


class StepRejected(Exception):  # noqa: N818 (control flow between a method's step and the base, never the user's error)
    """Raised inside a step to have it undone; carries the event to count."""

    def __init__(self, event: str) -> None:
        super().__init__(event)
        self.event = event


def finite_rows(x: Tensor) -> Tensor:
    """Return for each sample whether all its values are finite, (N,)."""
    return torch.isfinite(x).flatten(1).all(1)


def plausible_rows(x: Tensor) -> Tensor:
    """Return for each sample whether its values could be an image's in any usual unit, (N,).

    An absurd sample is predicted like any other, but must not stay in a window where it would spoil the statistics of
    the samples that follow.
    """
    return x.abs().flatten(1).amax(1) <= LARGEST


def blank(x: Tensor) -> bool:
    """Tell whether no sample shows anything: each is one constant, as the frames of a covered or dead camera are."""
    rows = x.flatten(1)
    return rows.shape[1] > 1 and bool((rows == rows[:, :1]).all())


def repair(x: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the non-finite values of each sample by the mean of its finite ones.

    Returns:
        The repaired samples, and for each whether it had a finite value at all (where not, it is zero).
    """
    finite = torch.isfinite(x)
    kept = torch.where(finite, x, 0.0)
    axes = list(range(1, x.dim()))
    count = finite.sum(axes, keepdim=True)
    # In double precision: the sum of large but finite values must not overflow.
    mean = (kept.double().sum(axes, keepdim=True) / count.clamp(min=1)).to(x.dtype)
    return torch.where(finite, x, mean), count.flatten() > 0


def require_finite_loss(loss: Tensor) -> None:
    """Reject the step when the loss is not a finite number."""
    if not torch.isfinite(loss).all():
        raise StepRejected("bad_loss")


def require_graph(loss: Tensor) -> None:
    """Refuse a loss that no gradient can be taken of: the model's doing, so no event of the stream."""
    if not loss.requires_grad:
        raise ModelError(
            "The model computes its logits without gradients, so no step can be taken.",
            "Remove torch.no_grad() or detach() from its forward, or use 'bn' or 'source'.",
        )


def all_finite(tensors: list[Tensor]) -> bool:
    """Tell whether every value of every tensor is finite, in one pass over them all.

    A sum is finite only where all its terms are; they are looked at one by one only where a sum is not, since large but
    finite terms overflow too.
    """
    if not tensors:
        return True
    sums = torch.stack([tensor.sum().to(tensors[0].device) for tensor in tensors])
    return bool(sums.isfinite().all()) or all(bool(tensor.isfinite().all()) for tensor in tensors)


@dataclasses.dataclass(frozen=True)
class CollapseMonitor:
    """Notices that nearly all recent predictions fall into one class.

    Predictions are averaged with weights that fade over about ``window`` samples. A collapse is a largest class share
    above ``share`` together with a marginal entropy below ``entropy`` of its maximum ln K.
    """

    window: int = 256
    share: float = 0.95
    entropy: float = 0.25

    def observe(self, state: Tensor, logits: Tensor) -> Tensor:
        """Return the faded sums of probabilities and of votes, (2, K), after one more batch; empty at the start."""
        rows = as_rows(logits).float()
        votes = torch.bincount(rows.argmax(1), minlength=rows.shape[1]).to(rows.dtype)
        seen = torch.stack([rows.softmax(1).sum(0), votes]) * (len(logits) / len(rows))
        return seen if state.numel() == 0 else state * math.exp(-len(logits) / self.window) + seen

    def collapsed(self, state: Tensor) -> bool:
        """Tell whether what was observed is a collapse; never before most of a window was seen."""
        weight = float(state[1].sum())
        if weight < 0.7 * self.window:
            return False
        marginal = state[0] / weight
        entropy = float(torch.special.entr(marginal).sum())
        return float(state[1].max()) > self.share * weight and entropy < self.entropy * math.log(len(marginal))
