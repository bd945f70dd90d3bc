"""What came out of a stream: predictions that were right, and all that follows from them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offsupport.functional import wilson

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
