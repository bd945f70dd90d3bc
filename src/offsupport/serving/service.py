"""A live stream of images in, predictions out: one adapter per stream, calls gathered into batches, state kept.

What a request goes through: it is let in or refused (:meth:`Service.admit`), its images are read and checked, it waits
in the line of its stream, whose only thread takes as many waiting images as a batch holds, and adapts to them. Nothing
here knows of HTTP: ``offsupport.serving.web`` and ``offsupport.serving.ray_serve`` carry it.

Everything that strangers can make larger has a limit (:class:`Limits`): requests in hand, images, bytes and pixels of
one, and streams. Nothing of a request becomes a path: files of state are called after hashes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from offsupport.core.config import build
from offsupport.core.errors import (
    ConfigError,
    FileError,
    InputError,
    ModelError,
    OffsupportError,
    Spelling,
    as_keyword,
)
from offsupport.core.files import folder_lock, read_json, require_folder, sha256_bytes, write_json
from offsupport.core.ownership import foreign, is_own_json
from offsupport.data.dataset import Images
from offsupport.data.pictures import decode_image, measure_image
from offsupport.engine.adapter import Adapter
from offsupport.engine.source_stats import SourceStats
from offsupport.methods import METHODS, adapt, source_stats
from offsupport.serving.folder import SOURCE_IMAGES, class_names, labelled_batches
from offsupport.serving.image_files import ImageFiles, as_tensor, shuffle_files, square, walk_images
from offsupport.serving.source_model import SourceModel, as_source_model, logits_of
from offsupport.serving.stream import Answer, Limits, RefusedError, Stream

DEFAULT_STREAM = "default"
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a stream may be called: nothing that acts in a log, a page or a label of a metric."""
CHANNELS = 3
INDEX = "streams.json"
"""In a folder of state: the streams in it, the one used last at the end."""
LOOK_EVERY = 5.0
"""Seconds after which a stream is estimated again, if images came."""


class Log(Protocol):
    """Takes what happened: a word, and what is known of it as plain values."""

    def __call__(self, event: str, **about: object) -> None:
        """Note it."""


def no_log(event: str, **about: object) -> None:
    """Forget it."""


class TooLargeError(OffsupportError):
    """A request beyond a limit: it will never be taken."""


class UnknownStreamError(OffsupportError):
    """Nothing was ever sent to a stream of this name."""


class ReadOnlyError(OffsupportError):
    """A service that is read-only is asked to change."""


class BrokenImagesError(InputError):
    """Some images of a request cannot be predicted, so none was.

    Args:
        broken: What is wrong, by the place of the image in the request, from 0.
    """

    def __init__(self, broken: Mapping[int, str]) -> None:
        first = next(iter(broken.values()))
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        super().__init__(f"{first}{more}", "Leave it out and send the others again: nothing was predicted.")
        self.broken = dict(broken)

    def __reduce__(self) -> Any:
        return type(self), (self.broken,)


class Service:
    """Answers images of many streams, each with an adapter of its own.

    Args:
        adapted: What :func:`offsupport.adapt` returned; each stream gets a copy of it. It is not called itself.
        size: Side of the images; those of files are brought to it if ``resize``, else they must have it.
        names: Names of the classes; None for numbers alone.
        resize: Bring the shorter side of image files to ``size``, or to this length, and cut out the centred square.
        limits: How much it takes on.
        state: Folder in which streams are saved, and from which they are taken up; None keeps nothing.
        read_only: Every stream stays as it is, and nothing is written.
        log: Told what happens.
        model: What the model is called, for people.
        spell: How remedies write arguments; the command line writes its options.

    Example:
        >>> import offsupport
        >>> from offsupport.nn import resnet18
        >>> with Service(offsupport.adapt(resnet18(width=8), "minimal"), size=32) as service:
        ...     answers = service.predict(torch.rand(2, 3, 32, 32), stream="camera-1")
        >>> len(answers)
        2
    """

    def __init__(
        self,
        adapted: Adapter,
        *,
        size: int,
        names: Sequence[str] | None = None,
        resize: bool | int = False,
        limits: Limits | None = None,
        state: Path | str | None = None,
        read_only: bool = False,
        log: Log = no_log,
        model: str = "",
        spell: Spelling = as_keyword,
    ) -> None:
        self.template = adapted
        self.size = size
        self.resize: int | None = size if resize is True else resize or None
        """What the shorter side of image files is brought to; None takes files of the right size alone."""
        self.limits = limits or Limits()
        self.read_only = read_only
        self.log = log
        self.model = model
        self.began = time.time()
        self.refused = self.evicted = self.save_failures = 0
        self.saved: float | None = None
        """When state was last saved, in seconds since 1970."""
        self._spell = spell
        self.classes = _count_classes(adapted, size, spell)
        self.names = [""] * self.classes if names is None else list(names)
        if len(self.names) != self.classes:
            raise ConfigError(
                f"There are {len(self.names)} names, and the model has {self.classes} classes.", "Give one for each."
            )
        self._streams: collections.OrderedDict[str, Stream] = collections.OrderedDict()
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._in_hand = 0
        self._coming: collections.Counter[str] = collections.Counter()
        self._closing = threading.Event()
        self._held = contextlib.ExitStack()
        self._state = None if state is None else Path(state)
        try:
            self._take_up()
        except BaseException:
            self._held.close()
            raise
        if not self._streams:
            self.stream(DEFAULT_STREAM)
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Requests --------------------------------------------------------------------------------------------------------

    def predict(self, images: Tensor | Sequence[bytes], stream: str = DEFAULT_STREAM) -> list[Answer]:
        """Adapt to images and return an answer for each, in their order; waits for its turn.

        Args:
            images: (N, 3, size, size) in [0, 1], or the bytes of image files.
            stream: Which adapter answers; a name that is new gets one.
        """
        with self.admit(stream) as request:
            return request.submit(lambda: self.read(images)).result()

    @property
    def in_hand(self) -> int:
        """Requests that are being read, wait or are predicted."""
        return self._in_hand

    @property
    def stopping(self) -> bool:
        """Whether nothing more is taken."""
        return self._closing.is_set()

    @contextlib.contextmanager
    def admit(self, key: str) -> Iterator[Request]:
        """Let a request in, before anything of it is read, or refuse it because too many are in hand."""
        require_key(key)
        with self._lock:
            if self.stopping:
                raise RefusedError("The service is stopping.", "Send it again when it is back.")
            if self._in_hand >= self.limits.queue:
                self.refused += 1
                raise RefusedError(
                    f"{self._in_hand} requests are in hand, and more are not taken.", "Send it again later."
                )
            self._in_hand += 1
            self._coming[key] += 1
        request = Request(self, key)
        try:
            yield request
        finally:
            request.arrived()
            with self._lock:
                self._in_hand -= 1

    def arrive(self, key: str) -> None:
        """Note that a request is read, or will not be."""
        with self._lock:
            self._coming[key] -= 1
            if not self._coming[key]:
                del self._coming[key]
            waiting = self._streams.get(key)
        if waiting is not None:
            waiting.nudge()

    def read(self, images: Tensor | Sequence[bytes]) -> Tensor:
        """Return images (N, 3, size, size) in [0, 1]; bytes are those of image files. What cannot be is refused."""
        count = len(images)
        if not count:
            raise InputError("There is no image in the request.", "Send at least one.")
        if count > self.limits.images:
            raise TooLargeError(
                f"The request has {count} images, and at most {self.limits.images} are taken.", "Send several requests."
            )
        if isinstance(images, Tensor):
            return self._check(images)
        return as_tensor(self._decode(images))

    def _check(self, x: Tensor) -> Tensor:
        shape = (CHANNELS, self.size, self.size)
        if tuple(x.shape[1:]) != shape:
            raise InputError(
                f"The images have shape {tuple(x.shape[1:])}, and the model takes {shape}.",
                "Send each as channels, rows and columns.",
            )
        x = x.float()
        good = ((x >= 0) & (x <= 1)).flatten(1).all(1)  # NaN is neither
        if not bool(good.all()):
            broken = (~good).nonzero().flatten().tolist()
            raise BrokenImagesError({i: f"Image {i + 1} has values outside [0, 1]: divide by 255." for i in broken})
        return x

    def _decode(self, files: Sequence[bytes]) -> list[Images]:
        """Return the pixels of image files; all that are broken are named, and nothing large is decoded."""
        broken: dict[int, str] = {}
        pixels = 0
        for i, data in enumerate(files):
            try:
                width, height = measure_image(data, name=f"Image {i + 1}")
            except FileError as error:
                broken[i] = error.message
                continue
            pixels += width * height
            if self.resize is None and (width, height) != (self.size, self.size):
                broken[i] = (
                    f"Image {i + 1} is {width}x{height}, and the model takes {self.size}x{self.size}: send such, or "
                    f"start the service with {self._spell('size', str(self.size))}."
                )
        if pixels > self.limits.pixels:
            raise TooLargeError(
                f"The images have {pixels:,} pixels in all, and at most {self.limits.pixels:,} are taken.",
                "Send smaller images, or several requests.",
            )
        side = None if self.resize is None else self.size
        found = []
        for i, data in enumerate(files):
            if i in broken:
                continue
            try:
                found.append(decode_image(data, self.resize, side, name=f"Image {i + 1}"))
            except FileError as error:
                broken[i] = error.message
        if broken:
            raise BrokenImagesError(dict(sorted(broken.items())))
        return found

    # Streams ---------------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        """All streams, the one that was used last at the end."""
        with self._lock:
            return list(self._streams.values())

    def find(self, key: str) -> Stream:
        """Return a stream that is there; asking is not using."""
        require_key(key)
        with self._lock:
            if key not in self._streams:
                raise UnknownStreamError(f"There is no stream {key!r}.", "Send it an image first.")
            return self._streams[key]

    def stream(self, key: str) -> Stream:
        """Return a stream, made if need be; the least recently used one makes room for it."""
        require_key(key)
        with self._lock:
            if key in self._streams:
                self._streams.move_to_end(key)
                return self._streams[key]
            spare = self._evict() if len(self._streams) >= self.limits.streams else None
            return self._open(key, self.template.fork() if spare is None else spare)

    def submit(self, key: str, images: Tensor) -> Future[list[Answer]]:
        """Put images that were read in the line of their stream."""
        with self._lock:  # held over both: a stream must not be evicted in between
            return self.stream(key).submit(images)

    def _open(self, key: str, adapter: Adapter) -> Stream:
        stream = Stream(key, adapter, self.names, self.limits, lambda: self._coming[key], self._spell)
        stream.frozen = self.read_only
        self._streams[key] = stream
        self.log("stream", stream=key, streams=len(self._streams))
        return stream

    def _evict(self) -> Adapter:
        """Forget the stream that was used least recently, and return its adapter as it was at the start."""
        for key, stream in self._streams.items():
            if stream.idle and not stream.being_saved:
                del self._streams[key]
                spare = stream.make_room()
                self.evicted += 1
                self.log("evicted", stream=key, images=stream.images)
                return spare
        raise RefusedError(f"All {len(self._streams)} streams are busy.", "Send it again later, or use one of them.")

    def reset(self, key: str = DEFAULT_STREAM) -> None:
        """Let a stream forget what it learnt."""
        self._require_writable()
        self.find(key).reset()
        self.log("reset", stream=key)

    def freeze(self, key: str = DEFAULT_STREAM, frozen: bool = True) -> None:
        """Let a stream learn nothing from now on, or learn again."""
        self._require_writable()
        self.find(key).freeze(frozen)
        self.log("frozen" if frozen else "thawed", stream=key)

    def _require_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError("The service is read-only.", f"Start it without {self._spell('read_only', '')}.")

    # State -----------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what streams have learnt, each file whole or not at all; streams without news are not written again."""
        if self._state is None or self.read_only:
            return
        with self._saving:
            streams = self.streams
            before = {entry["key"] for entry in _read_index(self._state)}
            for stream in streams:
                if stream.unsaved or stream.key not in before:
                    self._save_stream(stream, self._state / file_of(stream.key))
            with self._lock:
                kept = [stream for stream in streams if self._is_there(stream)]
            entries = [{"key": stream.key, "frozen": stream.frozen} for stream in kept]
            write_json(self._state / INDEX, {"offsupport": "streams", "streams": entries})
            for key in (before | {stream.key for stream in streams}) - {stream.key for stream in kept}:
                (self._state / file_of(key)).unlink(missing_ok=True)
            self.saved = time.time()

    def _save_stream(self, stream: Stream, path: Path) -> None:
        """Write what a stream has learnt, unless it made room: its adapter may have learnt from another one since."""
        with self._lock:
            if not self._is_there(stream):
                return
            stream.being_saved = True  # so that it does not make room meanwhile; nobody else waits for the disk
        try:
            stream.save(path)
        finally:
            stream.being_saved = False

    def _is_there(self, stream: Stream) -> bool:
        return self._streams.get(stream.key) is stream

    def _take_up(self) -> None:
        """Hold the folder of state for this process, and go on with the streams in it."""
        if self._state is None:
            return
        if not self.read_only:
            require_folder(self._state)
            self._held.enter_context(folder_lock(self._state))
        entries = _read_index(self._state)
        for entry in entries[-self.limits.streams :]:
            adapter = self.template.fork()
            adapter.load(self._state / file_of(entry["key"]))
            self._open(entry["key"], adapter).frozen = self.read_only or entry["frozen"]
        self.log("taken up", streams=len(entries))

    def _keep(self) -> None:
        """Save now and then, and estimate; runs in a thread of its own."""
        saved = time.monotonic()
        while not self._closing.wait(min(LOOK_EVERY, self.limits.save_every)):
            for stream in self.streams:
                self._try_to_estimate(stream)
            if time.monotonic() - saved >= self.limits.save_every and any(stream.unsaved for stream in self.streams):
                self._try_to_save()
                saved = time.monotonic()

    def _try_to_estimate(self, stream: Stream) -> None:
        try:
            stream.estimate()
        except Exception as error:  # whatever it is, streams must be saved from here on, too
            self.log("not estimated", stream=stream.key, error=str(error))

    def _try_to_save(self) -> None:
        try:
            self.save()
        except Exception as error:  # a full disk, or a defect: those who are served need not suffer
            self.save_failures += 1
            self.log("not saved", error=str(error))

    def close(self) -> None:
        """Take nothing more, answer what is in hand, save, and end all threads."""
        if self.stopping:
            return
        self._closing.set()
        self._keeper.join()
        try:
            for stream in self.streams:
                stream.close()
            self.save()
            self.log("stopped", images=sum(stream.images for stream in self.streams), saved=self.saved is not None)
        finally:
            self._held.close()


class Request:
    """A request that was let in.

    Args:
        service: Where.
        key: Its stream.
    """

    def __init__(self, service: Service, key: str) -> None:
        self.service = service
        self.key = key
        self._coming = True

    def submit(self, read: Callable[[], Tensor]) -> Future[list[Answer]]:
        """Read its images and put them in line."""
        try:
            return self.service.submit(self.key, read())
        finally:
            self.arrived()

    def arrived(self) -> None:
        """Let no batch wait for it any longer."""
        if self._coming:
            self._coming = False
            self.service.arrive(self.key)


def require_key(key: str) -> str:
    """Return the name of a stream if it is one."""
    if not KEY.fullmatch(key):
        raise InputError(
            "The name of the stream has other signs than letters, digits, '.', '_' and '-', or more than 64.",
            "Give X-Stream another value.",
        )
    return key


def file_of(key: str) -> str:
    """Return the name of the file of a stream's state: a hash, whatever a stranger calls it."""
    return f"{sha256_bytes(key.encode())[:32]}.safetensors"


def _read_index(folder: Path) -> list[dict[str, Any]]:
    """Return the streams that a folder of state lists; a file of somebody else's is refused."""
    path = folder / INDEX
    if not os.path.lexists(path):
        return []
    if not is_own_json(path, lambda found: found.get("offsupport") == "streams"):
        raise foreign(path, "Give the service a folder of its own.")
    entries = read_json(path).get("streams")
    good = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("key"), str)
        and KEY.fullmatch(entry["key"])
        and isinstance(entry.get("frozen"), bool)
        for entry in entries
    )
    good = good and len({entry["key"] for entry in entries}) == len(entries)
    if not good:
        raise FileError(f"{path} lists no streams.", "Delete it: the service then begins anew.")
    return list(entries)


def _count_classes(adapted: Adapter, size: int, spell: Spelling) -> int:
    """Return how many classes a model knows, by asking it; a size that it does not take is refused here."""
    probe = torch.full((1, CHANNELS, size, size), 0.5)
    logits = logits_of(lambda x: adapted.source_view(x)[0], probe, spell)
    if logits.dim() != 2:
        raise ModelError(
            f"The model predicts every position: its logits have shape {tuple(logits.shape)}.",
            "A service answers one class per image; use offsupport.adapt in Python.",
        )
    return int(logits.shape[1])


# From names to a service: what the command line and Ray do.


def open_service(
    model: nn.Module | str | SourceModel,
    method: str | None = None,
    *,
    source: Path | str | None = None,
    size: int | None = None,
    resize: int | None = None,
    classes: Sequence[str] | Path | str | None = None,
    preset: str | None = None,
    monitor: bool = True,
    state: Path | str | None = None,
    read_only: bool = False,
    limits: Limits | Mapping[str, Any] | None = None,
    log: Log = no_log,
    spell: Spelling = as_keyword,
    **hyper: Any,
) -> Service:
    """Load a model, wrap it and open a service over it.

    Args:
        model: A classifier of images in [0, 1], or a name that :func:`offsupport.load_model` knows.
        method: How to adapt, as in :func:`offsupport.adapt`; by default the one that needs to know least.
        source: Clean images like those the model was trained on: a folder, or a file of source statistics. In a folder
            with a sub-folder per class these are the labels, by which accuracies can be estimated.
        size: Bring the shorter side of every image to this length and cut out the centred square. A model of ImageNet
            takes photographs of any size: 256 and 224 unless told otherwise.
        resize: Bring the shorter side to this length instead, before the square of ``size`` is cut out.
        classes: Names of the classes, or a text file with one per line.
        preset: Hyper-parameters, as in :func:`offsupport.adapt`.
        monitor: Ask the source model, too: one more pass per batch, for its prediction beside the adapted one, for the
            estimate and for the shift score.
        state: Folder in which streams are saved, and from which they are taken up.
        read_only: Every stream stays as it is, and nothing is written.
        limits: How much it takes on; :class:`Limits`, or some of its fields by name.
        log: Told what happens.
        spell: How remedies write arguments.
        **hyper: Hyper-parameters of the method and options of :func:`offsupport.adapt`.
    """
    bounds = limits if isinstance(limits, Limits) else build(Limits, limits or {}, "the limits of a service")
    given = as_source_model(model)
    cut, before = square(size, resize, given.cut, spell)
    side = cut or given.side
    if side is None:
        raise ConfigError("The size of the model's images is not known.", f"Give it: {spell('size', 'N')}.")
    if method is not None:
        METHODS[method]  # a name that nobody knows is said before a model is loaded, or even trained
    folder = None if source is None or Path(source).is_file() else Path(source)
    names = class_names(classes, folder, given)
    network = given.load()
    chosen = method or "auto"
    if METHODS[chosen].info.source == "required" and source is None:
        raise ConfigError(
            f"The method {chosen!r} needs to know the source data.",
            f"Give a folder of images the model was trained on: {spell('source', 'DIR')}.",
        )
    count = _count_classes(adapt(network, "source"), side, spell)
    known = names.fit(count)
    stats = None
    if source is not None:
        wanted = {"preset": preset, "monitor": True, **hyper}
        clean = None if folder is None else _clean_images(folder, side, before, spell)
        stats = (
            SourceStats.load(source)
            if clean is None
            else source_stats(network, labelled_batches(clean, names, count, bounds.batch_size), chosen, **wanted)
        )
    adapted = adapt(network, chosen, preset=preset, source=stats, monitor=monitor, **hyper)
    return Service(
        adapted, size=side, names=known, resize=before or cut is not None, limits=bounds, state=state,
        read_only=read_only, log=log, model=given.name, spell=spell,
    )  # fmt: skip


def _clean_images(folder: Path, side: int, resize: int | None, spell: Spelling) -> ImageFiles:
    some = shuffle_files(walk_images(folder), 0, "source")[:SOURCE_IMAGES]
    return ImageFiles(folder, some, side, side, spell, resize)
