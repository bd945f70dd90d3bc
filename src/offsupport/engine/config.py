"""What is said before the first batch: a method's card and hyper-parameters, and the user's options."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError

EVENTS = (
    *("bad_input", "bad_loss", "bad_grad", "bad_param", "empty_selection", "small_batch", "collapse", "reset"),
    *("out_of_range", "order", "disagreement"),
)
"""What the guard of a stream counts."""

CollapseAction = Literal["warn", "reset", "off"]

StatisticsWord = Literal["batch", "source", "blend", "alpha", "running", "ema", "dua", "minimal"]
"""What a user may have batch norm normalise by."""

Range = tuple[float, float]
"""The least and the greatest value of a pixel."""
PIXELS: Range = (0.0, 1.0)
"""The range of images everywhere in this package."""


@dataclasses.dataclass(frozen=True)
class MethodInfo:
    """A method in one line per question.

    Args:
        name: What ``adapt`` is given.
        summary: One sentence.
        paper: Where it was published.
        adapts: What changes at test time.
        scored: Whether the returned prediction is made before or after the step on the same batch.
        norm: Which normalisation layers the model must have: ``batch``, ``any`` or ``none`` needed.
        source: Whether source statistics are ``none``, ``optional`` or ``required``.
        single: What happens on single samples.
        needs: What else the model must have; nothing by default.
        passes: What a batch costs by default, in forward (F) and backward (B) passes over it.
        bounded: Whether a single image can change what follows by a small, known amount at most.
    """

    name: str
    summary: str
    paper: str
    adapts: str
    scored: str
    norm: Literal["batch", "any", "none"]
    source: Literal["none", "optional", "required"]
    single: str
    needs: str = ""
    passes: str = ""
    bounded: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a user says about the model and the stream rather than about the method. See :func:`offsupport.adapt`."""

    logits: Callable[[Any], Tensor] | None = None
    head: str | None = None
    window: int = 0
    collapse: CollapseAction = "warn"
    seed: int = 0
    inplace: bool = False
    input_range: tuple[float, float] | None = PIXELS
    monitor: bool = False
    trusted: bool = True
    reset_every: int | None = None

    def __post_init__(self) -> None:
        require("window", self.window >= 0, "at least 0")
        require("reset_every", self.reset_every is None or self.reset_every >= 0, "at least 0")
        known = self.input_range is None or (len(self.input_range) == 2 and _ascending(*self.input_range))
        require("input_range", known, "None, or the least and the greatest value of a pixel, as (0, 1)")
        require("seed", -(2**63) <= self.seed < 2**64, "a number of 64 bits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Hyper-parameters of a method; subclasses add fields."""

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: a stream may be split, and its order does not matter."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether, by these values, a single image can change what follows by a small, known amount at most."""
        return False

    @property
    def wants_moments(self) -> bool:
        """Whether moments of clean images serve the statistics that batch norm uses."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig(MethodConfig):
    """Hyper-parameters of a method that uses the statistics of a batch."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with batch norm by batches, and 1 otherwise."""
    prior: float = 16.0
    """On such batches, with ``blend`` on all and with ``running`` at the start, the source counts as so many images."""
    statistics: StatisticsWord | None = None
    """What batch norm normalises by; None is what the method was published with, mostly ``batch``."""
    rate: float = 0.1
    """The share of a batch with ``alpha``, the momentum with ``ema``, and what it starts from with ``dua``."""

    def __post_init__(self) -> None:
        require("min_batch", self.min_batch is None or self.min_batch >= 1, "at least 1")
        require("prior", self.prior >= 0, "at least 0")
        require("rate", 0 <= self.rate <= 1, "in [0, 1]")

    @property
    def wants_moments(self) -> bool:
        """Whether moments of clean images serve the statistics that batch norm uses."""
        return self.statistics == "minimal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig(BatchConfig):
    """Hyper-parameters of a method that takes gradient steps."""

    lr: float = 1e-3
    """Step size."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Update rule, without weight decay."""
    momentum: float = 0.9
    """Momentum of SGD; first moment decay of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("lr", self.lr is None or 0 <= self.lr <= 1e6, "in [0, 1e6]")
        require("momentum", 0 <= self.momentum < 1, "in [0, 1)")

    def make_optimizer(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimiser of these hyper-parameters."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.lr, betas=(self.momentum, 0.999), foreach=True)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, foreach=True)


def _ascending(low: float, high: float) -> bool:
    numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in (low, high))
    return numbers and low < high


def require(name: str, condition: bool, allowed: str) -> None:
    """Refuse a hyper-parameter outside its range."""
    if not condition:
        raise ConfigError(f"Hyper-parameter {name!r} is out of range.", f"It must be {allowed}.")


def require_pattern(name: str, pattern: str | None) -> None:
    """Refuse a hyper-parameter that is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error:
        require(name, False, "a valid regular expression")
