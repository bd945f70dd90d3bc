"""A kind of cell whose workers are killed on the way."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from offsupport import evaluation
from offsupport.bench import KINDS, Cell, Kind, Outcome, Place
from offsupport.data import Batch, Stream
from offsupport.evaluation import Checkpoint
from offsupport.studies.adaptation import AdaptConfig, prepare_adapt, run_adapt


def run_killed(config: AdaptConfig, place: Place) -> Outcome:
    """An adaptation that writes checkpoints as often as it may; two workers are killed in their fourth batch."""
    evaluation.Checkpoint = functools.partial(Checkpoint, every=0.0)  # type: ignore[misc]
    starting_at = Stream.starting_at

    def cut_off(self: Stream, first: int) -> Iterator[Batch]:
        log = Path(place.folder) / "computed.log"
        begun = log.read_text().split() if log.exists() else []
        log.write_text("\n".join([*begun, str(first)]))
        for number, batch in enumerate(starting_at(self, first)):
            if number == 3 and len(begun) < 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    Stream.starting_at = cut_off  # type: ignore[method-assign]
    return run_adapt(config, place)


KINDS.register("test-killed")(Kind(AdaptConfig, run_killed, prepare_adapt))


def killed_cell(whole: Cell) -> Cell:
    """The same adaptation, but for the kills."""
    return Cell("test-killed", whole.config)
