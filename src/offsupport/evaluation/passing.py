"""One pass over a stream: what has been counted so far, and how it goes on after a kill."""

from __future__ import annotations

import collections
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import CheckpointError, FileError, InputError
from offsupport.evaluation.result import Protocol, Result
from offsupport.methods.adapter import Adapter

_PER_PREDICTION = ("correct", "labels", "index")
_COUNTS = ("samples", "batches", "sizes", "domain_of", "seconds", "events", "passes")


class Pass:
    """What has been counted so far.

    Args:
        adapted: The adapter; it is reset.
        protocol: When it is reset again.
    """

    def __init__(self, adapted: Adapter, protocol: Protocol) -> None:
        self.adapted, self.protocol = adapted, protocol
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
        x, y = self.adapted.brought(batch[0]), batch[1]
        self.batches += 1
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


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
