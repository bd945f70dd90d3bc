"""Runs an adapter over a stream under a stated protocol, and says how wrong it was."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from offsupport.core.errors import ConfigError, ModelError, nearest
from offsupport.core.interrupts import HEARD, Stopped
from offsupport.evaluation.passing import Pass
from offsupport.evaluation.result import Protocol, Result
from offsupport.methods.adapter import Adapter


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
    run = Pass(adapted, protocol)
    if checkpoint is None:
        for batch in stream:
            run.take(batch)
    elif isinstance(checkpoint, Checkpoint):
        _keeping(run, stream, checkpoint)
    else:
        _keeping(run, stream, Checkpoint(Path(checkpoint)))
        Path(checkpoint).unlink(missing_ok=True)
    return run.result()


def _keeping(run: Pass, stream: Iterable[Any], checkpoint: Checkpoint) -> None:
    """Go through a stream from where the checkpoint says, and let it say how far that got."""
    about = {"data": getattr(stream, "sha256", None), "order": getattr(stream, "order_hash", None), **checkpoint.about}
    if checkpoint.path.exists():
        checkpoint.kept = run.load(checkpoint.path, about)
    start = getattr(stream, "starting_at", lambda number: itertools.islice(stream, number, None))
    due = time.monotonic() + checkpoint.every
    for batch in start(run.batches):
        run.take(batch)
        stop = HEARD.asked
        if run.sizes and (stop or time.monotonic() >= due):
            began = time.monotonic()
            notes = list(dict.fromkeys([*checkpoint.kept, *checkpoint.notes()]))
            with contextlib.nullcontext() if stop else contextlib.suppress(OSError):  # a full disk may have room later
                run.save(checkpoint.path, {**about, "notes": notes})
            due = time.monotonic() + max(checkpoint.every, 20 * (time.monotonic() - began))
        if stop:
            raise Stopped
