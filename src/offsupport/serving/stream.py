"""One live stream: a line of requests, the one thread that adapts to them, and what is known of its last images.

Requests that wait are gathered into batches. A batch never waits for what may come, only for what is already being
read, and only a moment: one client alone loses no time by it, and many clients share passes.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offsupport.core.errors import OffsupportError, Spelling, as_keyword
from offsupport.data.dataset import Images
from offsupport.engine.adapter import Adapter
from offsupport.engine.config import require
from offsupport.monitor import Alarms, Estimate, LastAnswers

SET_APART = ("bad_input", "out_of_range")
"""Events of a batch of which some images were predicted by the source weights."""
WATCHED = (*Alarms.initial(), *LastAnswers.initial(), "unwatched")
"""What a frozen stream goes on remembering, whose turn it is to be watched included: it learns nothing else."""
HISTORY = 720
"""Points of the estimate that are kept."""
FRESH = 1.0
"""An estimate is not made again within so many seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a service takes on; beyond it a request is refused, and nothing else is affected."""

    queue: int = 64
    """Requests in hand at a time: being read, waiting, or predicted."""
    batch_size: int = 64
    """Images that are predicted together."""
    wait: float = 0.005
    """Seconds that a batch waits for requests that are just being read, to grow by them; without any it does not."""
    streams: int = 8
    """Streams with an adapter of their own; the one that was used least recently makes room for a new one."""
    images: int = 64
    """Images of a request."""
    size: int = 16 << 20
    """Bytes of a request."""
    pixels: int = 1 << 26
    """Pixels of all images of a request, before they are resized."""
    recent: int = 24
    """Images of a stream that are kept to be looked at."""
    save_every: float = 60.0
    """Seconds between two saves: what a process that is killed can lose."""

    def __post_init__(self) -> None:
        for name in ("queue", "batch_size", "streams", "images", "size", "pixels"):
            require(name, getattr(self, name) >= 1, "at least 1")
        require("wait", 0 <= self.wait <= 1, "in [0, 1] seconds")
        require("recent", 0 <= self.recent <= 1000, "in [0, 1000]")
        require("save_every", self.save_every > 0, "above 0")


class RefusedError(OffsupportError):
    """The service takes nothing more at the moment; the same request may be taken later."""


class Guess(NamedTuple):
    """A class, its name where names are known, and its probability."""

    label: int
    name: str
    confidence: float

    def values(self) -> dict[str, Any]:
        """Return it as plain values; ``label`` is called ``class``, as in files."""
        return {"class": self.label, "name": self.name, "confidence": round(self.confidence, 6)}


class Answer(NamedTuple):
    """What is said of one image.

    Args:
        adapted: By the adapted model.
        source: By the model as it came; None where it was not asked (``monitor=False``).
        events: Interventions of the guard and alarms in the batch of this image.
    """

    adapted: Guess
    source: Guess | None
    events: tuple[str, ...]

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        source = None if self.source is None else self.source.values()
        return {**self.adapted.values(), "source": source, "events": list(self.events)}


class Seen(NamedTuple):
    """An image that was answered.

    Args:
        number: Counts the images of its stream.
        pixels: (height, width, 3).
        answer: What was said of it.
    """

    number: int
    pixels: Images
    answer: Answer


class Point(NamedTuple):
    """An estimate, and when it was made: in seconds since 1970, and after how many images."""

    time: float
    images: int
    estimate: Estimate


class _Job(NamedTuple):
    images: Tensor
    future: Future[list[Answer]]


class Stream:
    """A line of requests, and the one thread that adapts to them.

    Args:
        key: What it is called.
        adapter: Serves this stream alone.
        names: Of the classes.
        limits: Of the service.
        coming: Tells how many requests for this stream are just being read.
        spell: How remedies write arguments.
    """

    def __init__(
        self,
        key: str,
        adapter: Adapter,
        names: Sequence[str],
        limits: Limits,
        coming: Callable[[], int] = lambda: 0,
        spell: Spelling = as_keyword,
    ) -> None:
        self.key = key
        self.adapter = adapter
        self.names = names
        self.limits = limits
        self.frozen = False
        self.being_saved = False
        self.unsaved = False
        """Whether anything happened since the last save."""
        self.images = self.batches = self.resets = 0
        self.seconds = 0.0
        self.events: collections.Counter[str] = collections.Counter()
        """All events since the process began; those of the adapter begin anew with each reset."""
        self.recent: collections.deque[Seen] = collections.deque(maxlen=limits.recent)
        self.history: collections.deque[Point] = collections.deque(maxlen=HISTORY)
        self._coming = coming
        self._spell = spell
        self._line: collections.deque[_Job] = collections.deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._gone = False
        """Whether its adapter may serve another stream by now."""
        self._estimating = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"stream {key}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is being predicted."""
        with self._changed:
            return not (self._line or self._busy)

    def submit(self, images: Tensor) -> Future[list[Answer]]:
        """Put images (N, 3, H, W) in line; the answers come in their order."""
        job = _Job(images, Future())
        with self._changed:
            if self._closed:
                raise RefusedError("The service is stopping.", "Send it again when it is back.")
            self._line.append(job)
            self._changed.notify()
        return job.future

    def nudge(self) -> None:
        """Look again at what is coming: a batch may wait for a request that was just refused."""
        with self._changed:
            self._changed.notify()

    def reset(self) -> None:
        """Forget what was learnt: the adapter goes back to its start, bit for bit."""
        with self.adapter.turn:
            if self._gone:
                return  # what it learnt is forgotten already
            self.adapter.reset()
        self.resets += 1
        self.unsaved = True

    def freeze(self, frozen: bool) -> None:
        """Learn nothing from now on, or learn again; either way all images are answered."""
        self.frozen = frozen
        self.unsaved = True

    def save(self, path: Path) -> None:
        """Write what the adapter has learnt."""
        self.unsaved = False  # before it is written: what comes meanwhile is news
        try:
            self.adapter.save(path)
        except BaseException:
            self.unsaved = True
            raise

    def estimate(self) -> Estimate | None:
        """Say what can be said of the last images without labels; None where the source model is not watched."""
        if not self.adapter.options.monitor:
            return None
        with self._estimating:
            last = self.history[-1] if self.history else None
            if last is not None and (last.images == self.images or time.time() - last.time < FRESH):
                return last.estimate
            images, found = self.images, self._advised(self.adapter.estimate())
            if self._gone:  # that may be of images of another stream
                return None if last is None else last.estimate
            self.history.append(Point(time.time(), images, found))
            return found

    def _advised(self, found: Estimate) -> Estimate:
        """Return an estimate that says what to do in the words of who runs the service, not of the library."""
        if self.adapter.answers.calibration is not None or found.agreement is None:
            return found
        remedy = f"Start the service with {self._spell('source', 'DIR')}, with a folder for each class."
        return dataclasses.replace(found, reason=f"no clean images are known, so accuracies are not. {remedy}")

    def close(self) -> None:
        """Answer what is in line, take nothing more, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def make_room(self) -> Adapter:
        """End, and return the adapter as it was at its start, for another stream."""
        self.close()
        self._gone = True
        self.adapter.reset()
        return self.adapter

    # The thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while jobs := self._next():
            # Whoever has hung up wants no answer, and nothing is learnt from it.
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs:
                self._serve(jobs)

    def _next(self) -> list[_Job]:
        """Wait for work; return as many requests as a batch holds, or none when the stream was closed."""
        with self._changed:
            self._busy = False
            while not (self._line or self._closed):
                self._changed.wait()
            until = time.monotonic() + self.limits.wait
            while self._waiting() < self.limits.batch_size and self._coming() and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            jobs: list[_Job] = []
            room = self.limits.batch_size
            while self._line and (not jobs or len(self._line[0].images) <= room):
                jobs.append(self._line.popleft())
                room -= len(jobs[-1].images)
            self._busy = bool(jobs)
            return jobs

    def _waiting(self) -> int:
        return sum(len(job.images) for job in self._line)

    def _serve(self, jobs: list[_Job]) -> None:
        try:
            answers = iter(self._answer(torch.cat([job.images for job in jobs])))
        except BaseException as error:  # whatever it is, those who wait must hear of it, and the next are served
            for job in jobs:
                job.future.set_exception(error)
            return
        for job in jobs:
            job.future.set_result([next(answers) for _ in range(len(job.images))])

    def _answer(self, x: Tensor) -> list[Answer]:
        began = time.perf_counter()
        with self.adapter.turn:
            before = collections.Counter(self.adapter.events)
            watched = self.adapter.watched  # of this batch: the next one's turn comes with the call
            kept = self.adapter.snapshot() if self.frozen else None
            try:
                logits = self.adapter(x)
                new = collections.Counter(self.adapter.events) - before
                source = self._source_logits(x, watched, new)
            finally:
                if kept is not None:
                    seen = {name: self.adapter.memory[name] for name in WATCHED if name in kept.memory}
                    self.adapter.restore(dataclasses.replace(kept, memory=kept.memory | seen))
        adapted = self._guesses(logits)
        beside: Sequence[Guess | None] = [None] * len(x) if source is None else self._guesses(source)
        answers = [Answer(*both, tuple(sorted(new))) for both in zip(adapted, beside, strict=True)]
        self._remember(x, answers)
        self.events.update(new)
        self.batches += 1
        self.seconds += time.perf_counter() - began
        self.unsaved = True
        return answers

    def _source_logits(self, x: Tensor, watched: bool, events: Mapping[str, int]) -> Tensor | None:
        if not self.adapter.options.monitor:
            return None
        last = self.adapter.memory["answers"][-len(x) :]
        # The monitor has asked the source model already, unless this is a batch that it does not look at, or some
        # images were set apart from the batch.
        if watched and len(last) == len(x) and not any(event in events for event in SET_APART):
            return last[:, 0]
        return self.adapter.source_view(x)[0]

    def _guesses(self, logits: Tensor) -> list[Guess]:
        confidence, label = logits.float().softmax(1).max(1)
        pairs = zip(label.tolist(), confidence.tolist(), strict=True)
        return [Guess(k, self.names[k], p) for k, p in pairs]

    def _remember(self, x: Tensor, answers: Sequence[Answer]) -> None:
        first = self.images
        self.images += len(x)
        skipped = max(0, len(x) - self.limits.recent)
        pixels = x[skipped:].mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        for place, image in enumerate(pixels, skipped):
            self.recent.append(Seen(first + place + 1, image, answers[place]))
