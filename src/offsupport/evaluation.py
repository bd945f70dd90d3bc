"""Runs an adapter over a stream under a stated protocol, and says how wrong it was."""

from __future__ import annotations

import collections
import dataclasses
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from offsupport.core.errors import ConfigError, InputError, ModelError, nearest
from offsupport.functional import wilson
from offsupport.methods.adapter import Adapter

Protocol = Literal["online", "continual", "episodic"]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a stream. Errors are fractions; intervals are 95 % Wilson intervals.

    Args:
        method: Name of the method.
        protocol: When the adapter was reset.
        correct: For each prediction, in the order of the stream, whether it was right.
        labels: The true classes, in the same order.
        index: The row of each sample in its data set, or its position where the stream does not tell.
        sizes: Number of predictions in each batch.
        domain_of: The domain of each batch.
        seconds: Time spent in the adapter, without loading data.
        passes: Forward and backward passes of the network, in batches.
        memory: Peak resident memory of the process so far, in bytes.
        events: Interventions of the guard.
    """

    method: str
    protocol: Protocol
    correct: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    sizes: list[int]
    domain_of: list[str]
    seconds: float
    passes: dict[str, int]
    memory: int
    events: dict[str, int]

    @property
    def n(self) -> int:
        """Number of predictions."""
        return len(self.correct)

    @property
    def error(self) -> float:
        """Share of wrong predictions."""
        return float(1 - self.correct.mean())

    @property
    def ci95(self) -> tuple[float, float]:
        """Interval of the error."""
        return wilson(int((~self.correct).sum()), self.n)

    @property
    def per_class(self) -> dict[int, float]:
        """Error of each class that occurs."""
        return {int(k): float(1 - self.correct[self.labels == k].mean()) for k in np.unique(self.labels)}

    @property
    def trace(self) -> list[float]:
        """Error of each batch, in the order of the stream."""
        ends = np.cumsum(self.sizes)[:-1]
        return [float(1 - part.mean()) for part in np.split(self.correct, ends)]

    @property
    def domains(self) -> dict[str, dict[str, Any]]:
        """Error, interval and number of predictions of each domain."""
        names = np.repeat(np.array(self.domain_of), self.sizes)
        found = {}
        for name in dict.fromkeys(self.domain_of):
            part = self.correct[names == name]
            wrong = int((~part).sum())
            found[name] = {"error": wrong / len(part), "ci95": wilson(wrong, len(part)), "n": len(part)}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values, without the single predictions."""
        plain = ("method", "protocol", "n", "error", "ci95", "per_class", "domains", "trace")
        costs = ("seconds", "passes", "memory", "events")
        return {name: getattr(self, name) for name in plain + costs}

    def plot(self, ax: Any = None) -> Any:
        """Draw the error over the stream: one dot per batch, and the running mean. Returns the axes."""
        from matplotlib.figure import Figure

        ax = Figure(figsize=(6, 3), layout="constrained").subplots() if ax is None else ax
        seen = np.cumsum(self.sizes)
        running = np.cumsum([t * n for t, n in zip(self.trace, self.sizes, strict=True)]) / seen
        ax.plot(seen, self.trace, ".", alpha=0.4)
        ax.plot(seen, running, label=f"{self.method} ({100 * self.error:.1f} %)")
        ax.set(xlabel="images seen", ylabel="error", ylim=(0, None))
        ax.legend()
        return ax

    def __str__(self) -> str:
        low, high = self.ci95
        return (
            f"{self.method}, {self.protocol}: error {100 * self.error:.1f} % "
            f"({100 * low:.1f} to {100 * high:.1f}) on {self.n} predictions in {self.seconds:.1f} s"
        )


def evaluate(adapted: Adapter, stream: Iterable[Any], protocol: Protocol = "online") -> Result:
    """Predict a stream and compare with its labels.

    Args:
        adapted: What :func:`offsupport.adapt` returned. It is reset at the start.
        stream: Batches ``(x, y)``, or of :func:`offsupport.data.stream`, which also tell row and domain.
        protocol: ``online`` resets at the start of each domain, ``continual`` never again, ``episodic`` before each
            batch.
    """
    if protocol not in get_args(Protocol):
        raise ConfigError(f"Unknown protocol {protocol!r}.", nearest(protocol, get_args(Protocol)))
    if not isinstance(adapted, Adapter):
        raise ModelError(
            f"evaluate() takes an adapted model, not {type(adapted).__name__}.", 'Wrap it: adapt(model, "source").'
        )
    run = _Run(adapted, protocol)
    for batch in stream:
        run.take(batch)
    return run.result()


class _Run:
    """One pass over a stream: what has been counted so far."""

    def __init__(self, adapted: Adapter, protocol: Protocol) -> None:
        self.adapted, self.protocol = adapted, protocol
        self.samples = 0
        self.correct: list[npt.NDArray[np.bool_]] = []
        self.labels: list[npt.NDArray[np.int64]] = []
        self.index: list[npt.NDArray[np.int64]] = []
        self.sizes: list[int] = []
        self.domain_of: list[str] = []
        self.seconds = 0.0
        self.events: collections.Counter[str] = collections.Counter()
        self.passes: collections.Counter[str] = collections.Counter()
        adapted.reset()

    def take(self, batch: Any) -> None:
        x, y = batch[0], batch[1]
        if not len(x):
            return
        domain = getattr(batch, "domain", "")
        starts_domain = bool(self.domain_of) and domain != self.domain_of[-1]
        if self.protocol == "episodic" or (self.protocol == "online" and starts_domain):
            self._reset()
        started = time.perf_counter()
        predicted = self.adapted(x).argmax(1)
        self.seconds += time.perf_counter() - started
        if predicted.shape != y.shape or bool((y < 0).any()):
            raise InputError(
                f"Labels of shape {tuple(y.shape)} do not score predictions of shape {tuple(predicted.shape)}.",
                "Give one class number, 0 or above, per sample (per position for dense outputs).",
            )
        # A plain tuple has a method called index; only a batch that knows its domain knows its rows.
        rows = np.asarray(batch.index) if hasattr(batch, "domain") else np.arange(len(x)) + self.samples
        self.samples += len(x)
        self.correct.append((predicted.cpu() == y.cpu()).flatten().numpy())
        self.labels.append(y.flatten().cpu().numpy())
        self.index.append(rows.repeat(y.numel() // max(len(x), 1)))
        self.sizes.append(y.numel())
        self.domain_of.append(domain)

    def _reset(self) -> None:
        """Reset the adapter without losing what it has counted."""
        self._count()
        self.adapted.reset()

    def _count(self) -> None:
        self.events.update(self.adapted.events)
        self.passes.update(self.adapted.passes)

    def result(self) -> Result:
        if not self.sizes:
            raise InputError("The stream has no batch.", "Check that the data set is not empty.")
        self._count()
        return Result(
            method=self.adapted.info.name,
            protocol=self.protocol,
            correct=np.concatenate(self.correct),
            labels=np.concatenate(self.labels),
            index=np.concatenate(self.index),
            sizes=self.sizes,
            domain_of=self.domain_of,
            seconds=self.seconds,
            passes=dict(self.passes),
            memory=_peak_memory(self.adapted),
            events=dict(self.events),
        )


def _peak_memory(adapted: Adapter) -> int:
    device = next(adapted.parameters(), torch.empty(0)).device
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
