"""Runs an adapter over a stream under a stated protocol, and says how wrong it was."""

from __future__ import annotations

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
        path: The file; there while the evaluation is not at its end.
        every: Seconds between two versions of it.
        notes: Returns lines of the caller's own that are kept beside it.
        kept: Those lines, from the version that was gone on from.
    """

    path: Path
    every: float = 60.0
    notes: Callable[[], list[str]] = list
    kept: list[str] = dataclasses.field(default_factory=list)


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
        return run.result()
    return _kept(run, stream, checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(Path(checkpoint)))


def _kept(run: Pass, stream: Iterable[Any], checkpoint: Checkpoint) -> Result:
    """Go through a stream from where the checkpoint says, and let it say how far that got."""
    about = {"data": getattr(stream, "sha256", None), "order": getattr(stream, "order_hash", None)}
    if checkpoint.path.exists():
        checkpoint.kept = run.load(checkpoint.path, about)
    start = getattr(stream, "starting_at", lambda number: itertools.islice(stream, number, None))
    written = time.monotonic()
    for batch in start(run.batches):
        run.take(batch)
        due = HEARD or time.monotonic() - written >= checkpoint.every
        if due and run.sizes:
            run.save(checkpoint.path, {**about, "notes": list(dict.fromkeys([*checkpoint.kept, *checkpoint.notes()]))})
            written = time.monotonic()
        if HEARD:
            raise Stopped
    checkpoint.path.unlink(missing_ok=True)
    return run.result()
