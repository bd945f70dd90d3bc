"""A service over HTTP: what strangers send is held against limits, and every refusal is a sentence.

The way of a request: :class:`Gate` asks where it comes from and whether it has the token, the service lets it in before
anything of it is read, its body is read up to a limit and within a time, its images are decoded by a few threads, and
the answer is awaited. The event loop itself never computes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import hashlib
import hmac
import ipaddress
import json
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
import numpy.typing as npt
import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor
from uvicorn.protocols.http.h11_impl import H11Protocol

from offsupport.core.errors import ConfigError, InputError, OffsupportError
from offsupport.core.files import parse_json
from offsupport.core.version import __version__
from offsupport.data.pictures import encode_jpeg
from offsupport.monitor import Estimate, Interval
from offsupport.serving.service import (
    CHANNELS,
    DEFAULT_STREAM,
    BrokenImagesError,
    ReadOnlyError,
    Service,
    TooLargeError,
    UnknownStreamError,
)
from offsupport.serving.stream import RefusedError, Seen, Stream

FIELD = "images"
"""The field of a form, and the key of a JSON object, that images come in."""
PATIENCE = 30.0
"""Seconds in which the body of a request must have come: a slow sender holds a place that others wait for."""
DECODERS = 2
"""Threads that read images: as many pictures are in memory at full size."""
GRACE = 10
"""Seconds that requests in hand have to end when the service is asked to stop."""
LARGEST_SHOWN = 256
"""The page shows every second, third, ... pixel of images with longer sides."""
PATHS = ("/", "/predict", "/health", "/estimate", "/live", "/metrics", "/reset", "/freeze", "/thaw", "/openapi.json")
OPEN_PATHS = ("/", "/health")
"""Need no token: the page has no data in it and asks for the token itself, and who asks for health has none."""
_STATUS: dict[type[OffsupportError], int] = {
    RefusedError: 503,
    TooLargeError: 413,
    UnknownStreamError: 404,
    ReadOnlyError: 403,
}


def json_lines(stream: Any = None) -> Callable[..., None]:
    """Return a log that writes a line of JSON for everything that happens, in ASCII, whatever a stranger sent."""
    lock = threading.Lock()

    def write(event: str, **about: object) -> None:
        line = json.dumps(
            {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event, **about}
        )
        with lock:
            out = stream or sys.stderr
            out.write(line + "\n")
            out.flush()

    return write


def make_app(service: Service, *, token: str | None = None, loopback: bool = False, closes: bool = False) -> FastAPI:
    """Return the ASGI application of a service.

    Args:
        service: What answers.
        token: What a request must bring as ``Authorization: Bearer TOKEN``; None asks for nothing.
        loopback: Whether only this machine can connect; then names of other hosts are refused, which pages of
            strangers could make a browser here use.
        closes: Whether the service ends with the application; otherwise whoever opened it closes it.
    """

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None, None]:
        yield
        if closes:
            service.close()

    # Neither of the pages of FastAPI: they load scripts from elsewhere.
    app = FastAPI(title="offsupport", version=__version__, docs_url=None, redoc_url=None, lifespan=life)
    handlers = _Handlers(service)
    app.add_api_route("/", handlers.page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/predict", handlers.predict, methods=["POST"], openapi_extra=_PREDICT, responses=_REFUSALS)
    for path, get in (("/health", handlers.health), ("/estimate", handlers.estimate), ("/live", handlers.live)):
        app.add_api_route(path, get, methods=["GET"])
    app.add_api_route("/metrics", handlers.metrics, methods=["GET"])
    for path, post in (("/reset", handlers.reset), ("/freeze", handlers.freeze), ("/thaw", handlers.thaw)):
        app.add_api_route(path, post, methods=["POST"])
    app.add_exception_handler(OffsupportError, _refuse)
    app.add_exception_handler(HTTPException, _misled)
    app.add_middleware(Gate, handlers=handlers, token=token, loopback=loopback)
    return app


def run(service: Service, *, host: str, port: int, token: str | None = None, ready: Callable[[str], None]) -> None:
    """Serve until the process is asked to stop, by Ctrl-C or SIGTERM; requests in hand are answered first.

    Args:
        service: What answers. Whoever opened it closes it.
        host: The address to listen at.
        port: The port; 0 takes a free one.
        token: See :func:`make_app`.
        ready: Told the address once somebody can connect.
    """
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    app = make_app(service, token=token, loopback=is_loopback(host))
    with contextlib.closing(listening):
        ready(f"http://{shown}:{listening.getsockname()[1]}")
        # uvicorn answers what is in hand and then sends itself the signal again, which others may wait for.
        with contextlib.suppress(KeyboardInterrupt):
            make_server(app).run(sockets=[listening])


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return a server of an application, at a free port of this machine unless it is given a socket."""
    # The service has a log of its own, in which every line is JSON.
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "lifespan": "off"}
    return uvicorn.Server(
        uvicorn.Config(app, port=0, http=Patient, ws="none", timeout_graceful_shutdown=GRACE, **quiet)
    )


class Patient(H11Protocol):
    """A connection that is given up where a request does not begin, or an answer is not taken: uvicorn would wait.

    It is the protocol of h11 whatever is installed, since that bounds the head of a request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look."""
        super().connection_made(transport)
        self._wait((None, True))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        self._looking.cancel()
        super().connection_lost(exc)

    def _wait(self, seen: tuple[object, bool]) -> None:
        self._looking = self.loop.call_later(PATIENCE, self._look, seen)

    def _look(self, before: tuple[object, bool]) -> None:
        """Hang up if all this time the sender was to act: to send a head, or to take an answer that had begun."""
        cycle = self.cycle
        now = cycle, cycle is None or cycle.response_started
        if now == before and now[1]:
            self.transport.abort()
        else:
            self._wait(now)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"Nothing can listen at {host}, port {port} ({error.strerror or error}).",
            "Give another port (0 takes a free one), or another address.",
        ) from error


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# What a request is asked before anything is done for it.


class Gate:
    """Asks every request for its origin and the token; measures, logs, and answers what nobody foresaw.

    Args:
        app: What is behind it.
        handlers: Of the service.
        token: See :func:`make_app`.
        loopback: See :func:`make_app`.
    """

    def __init__(self, app: ASGIApp, handlers: _Handlers, token: str | None, loopback: bool) -> None:
        self.app = app
        self.handlers = handlers
        self.token = None if token is None else token.encode()
        self.loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)  # the beginning and the end; nothing here speaks websocket
            return
        began, answered = time.perf_counter(), 0

        async def send_on(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        request = Request(scope, receive)
        failure: str | None = None
        try:
            refusal = self._refusal(request)
            await (refusal or self.app)(scope, receive, send_on)
        except ClientDisconnect:
            answered = answered or 499
        except Exception as error:  # a defect, of ours or of the model: the log has it, a stranger does not
            failure = f"{type(error).__name__}: {error}"
            if not answered:
                await _sentence(500, "The service failed on this request.", "Its log says why.")(
                    scope, receive, send_on
                )
        finally:
            self._note(scope, answered, time.perf_counter() - began, failure)

    def _refusal(self, request: Request) -> Response | None:
        path, headers = request.url.path, request.headers
        host = headers.get("host", "")
        if self.loopback and not _names_this_machine(host):
            return _sentence(403, "This service is for this machine alone.", "Ask it as localhost.")
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc != host:
            return _sentence(403, "Pages of other sites cannot use this service.", "Use its own page.")
        if self.token is not None and path not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token):
                answer = _sentence(401, "The token is missing or wrong.", "Send it: Authorization: Bearer TOKEN.")
                answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
        return None

    def _note(self, scope: Scope, status: int, seconds: float, failure: str | None) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.handlers.requests.labels(path, status).inc()
        about: dict[str, object] = {"method": scope["method"], "path": scope["path"][:100], "status": status}
        client = scope.get("client")
        about |= {"seconds": round(seconds, 6), "client": client[0] if client else None}
        about |= {} if failure is None else {"error": failure}
        self.handlers.service.log("request", **about, **scope.get("offsupport", {}))


def _names_this_machine(host: str) -> bool:
    name = _split(f"//{host}").hostname or ""
    return name == "localhost" or is_loopback(name)


def _split(address: str) -> SplitResult:
    """Return the parts of an address; what is none, such as half of a bracket, has no parts."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def _sentence(status: int, error: str, remedy: str, **more: Any) -> JSONResponse:
    return JSONResponse({"error": error, "remedy": remedy, **more}, status)


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an error of ours with its sentence."""
    assert isinstance(error, OffsupportError)  # noqa: S101 (registered for these)
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 422)
    more = {}
    if isinstance(error, BrokenImagesError):
        more["broken"] = [{"image": i + 1, "error": why} for i, why in error.broken.items()]
    answer = _sentence(status, error.message, error.remedy, **more)
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


async def _misled(request: Request, error: Exception) -> Response:
    """Answer a request for what is not there, or in a way that is not taken, with the way that is."""
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for these)
    taken = (error.headers or {}).get("Allow")
    if taken is not None:
        answer = _sentence(error.status_code, f"This path does not take {request.method}.", f"Use {taken}.")
        answer.headers["Allow"] = taken
        return answer
    what = "There is nothing here." if error.status_code == 404 else str(error.detail)
    return _sentence(error.status_code, what, "Images go to POST /predict; / is a page to look at.")


# What is answered.


class _Handlers:
    """One function per path, over a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoder")
        self.watchers = ThreadPoolExecutor(1, thread_name_prefix="watcher")
        self.registry = CollectorRegistry()
        self.registry.register(StreamMetrics(service))
        self.latency = Histogram(
            "offsupport_latency_seconds",
            "Seconds from the first byte of a request for predictions to its answer.",
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self.requests = Counter(
            "offsupport_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )

    async def page(self) -> Response:
        """Return the live page."""
        text, policy = page()
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    async def predict(self, request: Request) -> Response:
        """Adapt to one or many images, and say what is on each."""
        began, key = time.perf_counter(), _key(request)
        with self.service.admit(key) as let_in:
            # Nobody holds the body once its images are read: those that wait for their turn are many.
            read = _images_of(request, await _read_body(request, self.service.limits.size), self.service)
            line = await _in(self.decoders, let_in.submit, read)
            del read
            answers = await asyncio.wrap_future(line)
        self.latency.observe(time.perf_counter() - began)
        request.scope["offsupport"] = {"stream": key, "images": len(answers)}
        return JSONResponse({"stream": key, "predictions": [answer.values() for answer in answers]})

    async def health(self) -> Response:
        """Say that the service is there, and how busy it is."""
        service = self.service
        about = {
            "status": "stopping" if service.stopping else "ok",
            "version": __version__,
            "model": service.model,
            "method": service.template.info.name,
            "classes": service.classes,
            "size": service.size,
            "read_only": service.read_only,
            "streams": len(service.streams),
            "in_hand": service.in_hand,
            "queue": service.limits.queue,
            "seconds": round(time.time() - service.began, 3),
        }
        return JSONResponse(about, 503 if service.stopping else 200)

    async def estimate(self, request: Request) -> Response:
        """Say what can be said of the last images of a stream without labels."""
        stream = self.service.find(_key(request))
        found = await _in(self.watchers, stream.estimate)
        return JSONResponse({"stream": stream.key, "images": stream.images, "estimate": _as_values(found)})

    async def live(self, request: Request) -> Response:
        """Return what the page shows; of images, those after the one with the number ``after``."""
        after = request.query_params.get("after", "0")
        number = int(after) if re.fullmatch(r"\d{1,15}", after) else 0
        return JSONResponse(await _in(self.watchers, _live, self.service, self.service.find(_key(request)), number))

    async def metrics(self) -> Response:
        """Return what Prometheus collects."""
        text = await _in(self.watchers, generate_latest, self.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def reset(self, request: Request) -> Response:
        """Let a stream forget what it learnt."""
        key = _key(request)
        await _in(self.watchers, self.service.reset, key)
        return JSONResponse({"stream": key, "reset": True})

    async def freeze(self, request: Request) -> Response:
        """Let a stream learn nothing more; its images are answered as before."""
        return self._set_frozen(_key(request), True)

    async def thaw(self, request: Request) -> Response:
        """Let a frozen stream learn again."""
        return self._set_frozen(_key(request), False)

    def _set_frozen(self, key: str, frozen: bool) -> Response:
        self.service.freeze(key, frozen)
        return JSONResponse({"stream": key, "frozen": frozen})


async def _in(pool: ThreadPoolExecutor, function: Callable[..., Any], *given: Any) -> Any:
    """Run what takes time away from the event loop; who watches never waits in line with images."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *given)


def _key(request: Request) -> str:
    return request.headers.get("x-stream", DEFAULT_STREAM)


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body of a request; more than it may have is refused as soon as that is known."""
    declared = request.headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,15}", declared) or int(declared) > most:
        raise _too_long(most)
    body = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > most:
                raise _too_long(most)

    try:
        await asyncio.wait_for(read(), PATIENCE)
    except asyncio.TimeoutError:
        raise InputError(f"The request did not come within {PATIENCE:.0f} seconds.", "Send it at once.") from None
    return bytes(body)


def _too_long(most: int) -> TooLargeError:
    return TooLargeError(f"A request may have {most:,} bytes.", "Send smaller images, or several requests.")


def _images_of(request: Request, body: bytes, service: Service) -> Callable[[], Tensor]:
    """Return what reads the images of a body, for another thread."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return lambda: service.read(asyncio.run(_files_of(request, body, service.limits.images)))
    if kind == "application/json":
        return lambda: service.read(_arrays(body, service))
    if kind.startswith("image/"):
        return lambda: service.read([body])
    raise InputError(
        f"Images come as multipart/form-data with the field '{FIELD}', as JSON, or as one image/*.",
        f"With curl: -F {FIELD}=@photo.png",
    )


class _InMemory(MultiPartParser):
    """Keeps files in memory, which the size of a request bounds: none is ever written to disk."""

    spool_max_size = 1 << 40
    inside = False
    """Whether a part has begun and not ended."""

    def on_part_begin(self) -> None:
        """Note that a part begins."""
        super().on_part_begin()
        self.inside = True

    def on_part_end(self) -> None:
        """Note that it is whole."""
        super().on_part_end()
        self.inside = False


async def _files_of(request: Request, body: bytes, most: int) -> list[bytes]:
    """Return the files of a form in their order; their names are not looked at."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body
        if parser.inside:  # it would be left out, and the answers be fewer than the images
            raise MultiPartException("The last part is not whole.")

    parser = _InMemory(request.headers, chunks(), max_files=most, max_fields=0)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        if isinstance(error, MultiPartException) and "Too many files" in error.message:
            raise TooLargeError(f"A request may have {most} images.", "Send several requests.") from None
        raise InputError(
            "The form cannot be read, or has other fields than files.", f"Send files in the field '{FIELD}'."
        ) from None
    try:
        files = form.multi_items()
        if any(name != FIELD for name, _ in files):
            raise InputError(f"Images come in the field '{FIELD}'.", f"With curl: -F {FIELD}=@photo.png")
        return [await file.read() for _, file in files if isinstance(file, UploadFile)]
    finally:
        await form.close()


def _arrays(body: bytes, service: Service) -> Tensor:
    """Return the images of a JSON object: numbers in [0, 1], (N, channels, rows, columns)."""
    most = service.limits.images
    # What has fewer commas has fewer values of any kind: small bodies can hold lists that take gigabytes.
    if body.count(b",") > most * CHANNELS * service.size**2:
        raise TooLargeError(
            f"The body has more numbers than {most} images of {service.size}x{service.size}, which are the most.",
            "Send smaller images, or several requests.",
        )
    try:
        value = parse_json(body)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"The body is not JSON ({str(error)[:200]}).", "Send application/json.") from None
    try:
        return torch.from_numpy(_numbers(value))
    except ValueError:
        raise InputError(
            f"JSON must be an object with '{FIELD}': a list of images, each as channels, rows and columns of numbers.",
            'For example {"images": [[[[0.5, ...], ...], ...]]}, which x.tolist() of a tensor gives.',
        ) from None


def _numbers(value: Any) -> npt.NDArray[np.float64]:
    """Return the images of a JSON value, or raise a ValueError; NumPy is shown nothing but numbers.

    Of texts it would make an array in which each takes as much as the longest.
    """
    if not isinstance(value, dict) or set(value) != {FIELD}:
        raise ValueError
    level = [value[FIELD]]
    for _ in range(4):
        if not all(isinstance(each, list) for each in level):
            raise ValueError
        level = [one for each in level for one in each]
    if not level or any(type(each) not in (int, float) for each in level):
        raise ValueError
    return np.array(value[FIELD], dtype=np.float64)  # a ValueError where rows have several lengths


# What the page and the metrics are made of.


def _as_values(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else dataclasses.asdict(found)


def _live(service: Service, stream: Stream, after: int) -> dict[str, Any]:
    found = stream.estimate()
    return {
        "stream": stream.key,
        "streams": [each.key for each in service.streams],
        "model": service.model,
        "method": service.template.info.name,
        "version": __version__,
        "images": stream.images,
        "frozen": stream.frozen,
        "read_only": service.read_only,
        "resets": stream.resets,
        "events": dict(sorted(stream.events.items())),
        "estimate": _as_values(found),
        "history": [_point(point.time, point.images, point.estimate) for point in list(stream.history)],
        "recent": [_shown(seen) for seen in list(stream.recent) if seen.number > after],
    }


def _point(when: float, images: int, found: Estimate) -> dict[str, Any]:
    source, adapted = (
        None if each is None else [each.value, each.low, each.high] for each in (found.source, found.adapted)
    )
    return {"time": when, "images": images, "source": source, "adapted": adapted, "shift": found.shift}


def _shown(seen: Seen) -> dict[str, Any]:
    step = -(-max(seen.pixels.shape[:2]) // LARGEST_SHOWN)
    picture = base64.b64encode(encode_jpeg(np.ascontiguousarray(seen.pixels[::step, ::step]), 90)).decode()
    return {"number": seen.number, "picture": f"data:image/jpeg;base64,{picture}", **seen.answer.values()}


@functools.cache
def page() -> tuple[str, str]:
    """Return the live page, and the policy under which nothing but its own script and style runs."""
    text = Path(__file__).with_name("live.html").read_text(encoding="utf-8")
    hashes = {
        tag: base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
        for tag in ("script", "style")
        for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


class StreamMetrics(Collector):
    """What Prometheus is told of streams that are there; those that made room for others are gone.

    Args:
        service: Whose streams.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterable[Metric]:
        """Yield all numbers as they are now."""
        service = self.service
        for name, about, value in (
            ("offsupport_requests_in_hand", "Requests that are read, wait or are predicted.", service.in_hand),
            ("offsupport_queue_limit", "Requests in hand from which on more are refused.", service.limits.queue),
            ("offsupport_streams", "Streams with an adapter.", len(service.streams)),
            ("offsupport_last_save_timestamp_seconds", "When state was saved; 0 for never.", service.saved or 0.0),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        for name, about, count in (
            ("offsupport_refused", "Requests that were refused because too many were in hand.", service.refused),
            ("offsupport_streams_evicted", "Streams that made room for others.", service.evicted),
            ("offsupport_save_failures", "Saves that failed.", service.save_failures),
        ):
            yield CounterMetricFamily(name, about, value=count)
        yield from self._of_streams()

    def _of_streams(self) -> Iterator[Metric]:
        streams = self.service.streams
        for name, about, get in _COUNTS:
            counts = CounterMetricFamily(name, about, labels=["stream"])
            for stream in streams:
                counts.add_metric([stream.key], get(stream))
            yield counts
        events = CounterMetricFamily("offsupport_events", "Events of adapters.", labels=["stream", "event"])
        for stream in streams:
            for event in stream.adapter.events:
                events.add_metric([stream.key, event], stream.events[event])
        yield events
        yield from self._estimates(streams)

    def _estimates(self, streams: list[Stream]) -> Iterator[Metric]:
        frozen = GaugeMetricFamily("offsupport_frozen", "1 where a stream learns nothing.", labels=["stream"])
        shift = GaugeMetricFamily("offsupport_shift_score", "1 on clean images, more further off.", labels=["stream"])
        about = "Accuracy of the last images, estimated without labels"
        labels = ["stream", "model"]
        accuracy = {
            "value": GaugeMetricFamily("offsupport_estimated_accuracy", f"{about}.", labels=labels),
            "low": GaugeMetricFamily("offsupport_estimated_accuracy_low", f"{about}: where 95 % begin.", labels=labels),
            "high": GaugeMetricFamily("offsupport_estimated_accuracy_high", f"{about}: where they end.", labels=labels),
        }
        for stream in streams:
            frozen.add_metric([stream.key], float(stream.frozen))
            found = stream.estimate()
            if found is None:
                continue
            if found.shift is not None:
                shift.add_metric([stream.key], found.shift)
            both: dict[str, Interval | None] = {"source": found.source, "adapted": found.adapted}
            for model, interval in both.items():
                for part, value in ({} if interval is None else dataclasses.asdict(interval)).items():
                    accuracy[part].add_metric([stream.key, model], value)
        yield from (frozen, shift, *accuracy.values())


_COUNTS: tuple[tuple[str, str, Callable[[Stream], float]], ...] = (
    ("offsupport_images", "Images that were answered.", lambda stream: stream.images),
    ("offsupport_batches", "Batches they came in.", lambda stream: stream.batches),
    ("offsupport_resets", "Times that a stream was told to forget.", lambda stream: stream.resets),
    ("offsupport_model_seconds", "Seconds that adapting and predicting took.", lambda stream: stream.seconds),
)


# What /openapi.json says of images.

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_PREDICT: dict[str, Any] = {
    "parameters": [
        {"name": "X-Stream", "in": "header", "schema": {"type": "string", "default": DEFAULT_STREAM}},
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "properties": {FIELD: _FILES}}},
            "application/json": {"schema": {"type": "object", "properties": {FIELD: {"type": "array", "items": {}}}}},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"description": "Beyond a limit."},
    422: {"description": "An image that cannot be predicted; nothing was."},
    503: {"description": "Too many requests in hand; send it again later."},
}
