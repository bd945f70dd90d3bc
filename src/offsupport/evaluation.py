"""An adapter over a labelled stream: how it is run, how it goes on after a kill, and how wrong it was."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, runtime_checkable
from typing import Protocol as Interface

import numpy as np
import numpy.typing as npt
import torch

from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import CheckpointError, ConfigError, FileError, InputError, ModelError, nearest
from offsupport.core.interrupts import STOP_REQUEST, Stopped
from offsupport.core.processes import peak_memory
from offsupport.engine.adapter import Adapter
from offsupport.functional import wilson

Protocol = Literal["online", "continual", "episodic"]


@runtime_checkable
class KnownBatch(Interface):
    """A batch that says where its images come from, as those of :func:`offsupport.data.stream` do."""

    index: Any
    """The row of each image in its data set."""
    domain: str
    """What the batch is drawn from: a corruption and a severity, say."""


@runtime_checkable
class KnownStream(Interface):
    """A stream that says what it holds, and can start in the middle, as those of :func:`offsupport.data.stream` do."""

    @property
    def sha256(self) -> str:
        """The identity of its images and labels."""

    @property
    def order_hash(self) -> str:
        """The identity of their order."""

    def starting_at(self, first: int) -> Iterable[Any]:
        """Return its batches from this one on, without reading those before."""


@runtime_checkable
class NamedClasses(Interface):
    """A stream that says which classes its labels count, as those of :func:`offsupport.data.stream` do."""

    @property
    def classes(self) -> Sequence[str]:
        """Their names, in the order of their numbers; none where they are not known."""


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
        memory: Peak resident memory of the process so far, in bytes; 0 where the system does not tell.
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


# One pass over a stream: what has been counted so far, and how that is written and read again.


_PER_PREDICTION = ("correct", "labels", "index")
_COUNTS = ("samples", "batches", "sizes", "domain_of", "seconds", "events", "passes")


class Pass:
    """What has been counted so far.

    Args:
        adapted: The adapter; it is reset.
        protocol: When it is reset again.
        classes: How many classes the labels count; None where that is not known.
    """

    def __init__(self, adapted: Adapter, protocol: Protocol, classes: int | None = None) -> None:
        self.adapted, self.protocol, self.classes = adapted, protocol, classes
        self.samples = self.batches = 0
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
        """Predict a batch and note which predictions were right."""
        images, y = _pair(batch)
        x = self.adapted.to_device(images)
        self.batches += 1
        if not len(x):
            return
        # A plain tuple has a method called index, but no domain: it is no such batch.
        known = batch if isinstance(batch, KnownBatch) else None
        domain = known.domain if known is not None else ""
        starts_domain = bool(self.domain_of) and domain != self.domain_of[-1]
        if self.protocol == "episodic" or (self.protocol == "online" and starts_domain):
            self._reset()
        started = time.perf_counter()
        logits = self.adapted(x)
        predicted = logits.argmax(1)
        self.seconds += time.perf_counter() - started
        # Ten folders against a thousand logits would be wrong nearly everywhere, without a word.
        if self.classes is not None and self.classes != logits.shape[1]:
            raise InputError(
                f"The data counts {self.classes:,} classes and the model {logits.shape[1]:,}: the labels are not "
                "numbered as its classes are.",
                'Photographs of ImageNet classes: stream("imagenet-folder", DIR). Others: give batches (x, y) with the '
                "numbers of the model.",
            )
        _check_labels(y, predicted, logits.shape[1])
        rows = np.asarray(known.index) if known is not None else np.arange(len(x)) + self.samples
        self.samples += len(x)
        self.correct.append((predicted.cpu() == y.cpu()).flatten().numpy())
        self.labels.append(y.flatten().cpu().numpy())
        self.index.append(rows.repeat(y.numel() // max(len(x), 1)))
        self.sizes.append(y.numel())
        self.domain_of.append(domain)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write all that the rest of the stream needs."""
        extra = self.adapted.get_extra_state()
        tensors = {f"state/{name}": tensor for name, tensor in extra.pop("state").items()}
        for name in _PER_PREDICTION:
            tensors[name] = torch.from_numpy(np.concatenate(getattr(self, name)))
        counts = {name: getattr(self, name) for name in _COUNTS}
        save_tensors(path, tensors, {**about, "adapter": extra, "protocol": self.protocol, **counts})

    def load(self, path: Path, about: dict[str, Any]) -> list[str]:
        """Go on from what :meth:`save` wrote, and return its notes; what belongs to something else is refused."""
        try:
            tensors, saved = load_tensors(path)
            for name, value in {**about, "protocol": self.protocol}.items():
                if saved[name] != value:
                    raise FileError(f"{name} was {saved[name]}, is {value}.")
            state = {name.removeprefix("state/"): t for name, t in tensors.items() if name.startswith("state/")}
            counts = {name: type(getattr(self, name))(saved[name]) for name in _COUNTS}
            arrays = {name: [tensors[name].numpy()] for name in _PER_PREDICTION}
            notes = list(saved["notes"])
            if {len(found[0]) for found in arrays.values()} != {sum(counts["sizes"])}:
                raise FileError("it does not hold one answer per prediction.")
            self.adapted.set_extra_state({**saved["adapter"], "state": state})
        except (FileError, KeyError, TypeError, ValueError) as error:
            said = error.message if isinstance(error, FileError) else f"{type(error).__name__} {error}"
            raise CheckpointError(
                f"{path} is no checkpoint of this evaluation: {said}", "Remove it to start at the beginning."
            ) from error
        vars(self).update(counts, **arrays)
        return notes

    def _reset(self) -> None:
        """Reset the adapter without losing what it has counted."""
        self._count()
        self.adapted.reset()

    def _count(self) -> None:
        self.events.update(self.adapted.events)
        self.passes.update(self.adapted.passes)

    def result(self) -> Result:
        """Return what came out."""
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
            memory=_peak_memory(self.adapted.device),
            events=dict(self.events),
        )


def _pair(batch: Any) -> tuple[Any, torch.Tensor]:
    """Return images and labels of a batch; refuse one that has none, or hides them behind names."""
    if isinstance(batch, Mapping):
        names = list(batch)
        pair = ", ".join(f"batch[{name!r}]" for name in [*names, "x", "y"][:2])
        raise InputError(
            f"A batch is a pair of images and labels, and this one is a dict of {', '.join(map(str, names))}.",
            f"Make pairs of it: (({pair}) for batch in loader).",
        )
    if isinstance(batch, torch.Tensor) or len(batch) < 2:
        raise InputError(
            "The batches have no labels, so there is nothing to compare predictions with.",
            "Give pairs (x, y). Without labels: adapt(..., monitor=True) and adapted.estimate().",
        )
    return batch[0], torch.as_tensor(batch[1])


def _check_labels(y: torch.Tensor, predicted: torch.Tensor, classes: int) -> None:
    if predicted.shape != y.shape or y.is_floating_point() or bool((y < 0).any()):
        raise InputError(
            f"Labels of shape {tuple(y.shape)} and type {y.dtype} do not score predictions of shape "
            f"{tuple(predicted.shape)}.",
            "Give one class number, 0 or above, per sample (per position for dense outputs).",
        )
    if bool((y >= classes).any()):
        raise InputError(
            f"There is a label {int(y.max())}, and the model has {classes} classes, 0 to {classes - 1}.",
            "Number the labels as the model counts its classes.",
        )


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_memory()


# The call that users make, and its file.


@dataclasses.dataclass
class Checkpoint:
    """Where an evaluation keeps how far it is, so that one that was killed goes on from there to the same result.

    Args:
        path: The file; whoever gives one of these removes it.
        every: Seconds between two versions of it, or more where writing takes more than a twentieth of that.
        about: What else must be the same when it goes on, as plain JSON values.
        notes: Returns lines of the caller's own to keep beside it.
    """

    path: Path
    every: float = 60.0
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: Callable[[], list[str]] = list
    kept: list[str] = dataclasses.field(default_factory=list, init=False)
    """Those lines, as of the version it went on from."""


def evaluate(
    adapted: Adapter,
    stream: Iterable[Any],
    protocol: Protocol = "online",
    *,
    checkpoint: Checkpoint | Path | str | None = None,
) -> Result:
    """Predict a stream and compare with its labels.

    Args:
        adapted: What :func:`offsupport.adapt` returned. It is reset at the start.
        stream: Batches ``(x, y)``, or of :func:`offsupport.data.stream`, which also tell row and domain.
        protocol: ``online`` resets at the start of each domain, ``continual`` never again, ``episodic`` before each
            batch.
        checkpoint: A file that is written once a minute, and removed at the end. The same call finds it after a kill
            and goes on from there, bit for bit; a stream of your own must give the same batches again.

    Raises:
        CheckpointError: There is such a file, and it is damaged or of another evaluation.
    """
    if protocol not in get_args(Protocol):
        raise ConfigError(f"Unknown protocol {protocol!r}.", nearest(protocol, get_args(Protocol)))
    if not isinstance(adapted, Adapter):
        raise ModelError(
            f"evaluate() takes an adapted model, not {type(adapted).__name__}.", 'Wrap it: adapt(model, "source").'
        )
    run = Pass(adapted, protocol, (len(stream.classes) or None) if isinstance(stream, NamedClasses) else None)
    if checkpoint is None:
        for batch in stream:
            run.take(batch)
    elif isinstance(checkpoint, (str, os.PathLike)):
        _keeping(run, stream, Checkpoint(Path(checkpoint)))
        Path(checkpoint).unlink(missing_ok=True)
    else:
        _keeping(run, stream, checkpoint)
    return run.result()


def _keeping(run: Pass, stream: Iterable[Any], checkpoint: Checkpoint) -> None:
    """Go through a stream from where the checkpoint says, and let it say how far that got."""
    known = stream if isinstance(stream, KnownStream) else None
    identity = {"data": known.sha256, "order": known.order_hash} if known else {"data": None, "order": None}
    about = {**identity, **checkpoint.about}
    if checkpoint.path.exists():
        checkpoint.kept = run.load(checkpoint.path, about)
    # A stream of the user's own is read again from its first batch: nothing is known of it but that it repeats.
    rest = known.starting_at(run.batches) if known else itertools.islice(stream, run.batches, None)
    due = time.monotonic() + checkpoint.every
    for batch in rest:
        run.take(batch)
        stop = STOP_REQUEST.asked
        if run.sizes and (stop or time.monotonic() >= due):
            began = time.monotonic()
            notes = list(dict.fromkeys([*checkpoint.kept, *checkpoint.notes()]))
            with contextlib.nullcontext() if stop else contextlib.suppress(OSError):  # a full disk may have room later
                run.save(checkpoint.path, {**about, "notes": notes})
            # Writing must never take more than a twentieth of the time, however large the state and slow the disk.
            due = time.monotonic() + max(checkpoint.every, 20 * (time.monotonic() - began))
        if stop:
            raise Stopped
