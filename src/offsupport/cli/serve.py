"""``offsupport serve``: images in over HTTP, predictions out, by a model that adapts to each stream."""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from offsupport.cli.adapt import check_hyper, source_model
from offsupport.cli.output import JSON, as_option, emit_json, say
from offsupport.cli.settings import AllowCode, allowed, parse_settings
from offsupport.core.errors import ConfigError

if TYPE_CHECKING:
    from offsupport.serving.service import Log, Service

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
"""What the extra ``serve`` brings."""
SHORTEST_TOKEN = 16


def serve(
    model: str = typer.Option(
        ..., help="zoo:NAME, file:PATH, pip:NAME, timm:NAME, digits-small, or module:function with --allow-code."
    ),
    method: str | None = typer.Option(
        None, help="How to adapt: a name of `offsupport list methods`; by default what suits the model."
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen at; 127.0.0.1 is for this machine alone."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port; 0 takes a free one."),
    token: str | None = typer.Option(
        None, envvar="OFFSUPPORT_TOKEN", help="What requests must bring; better given in the environment."
    ),
    source: Path | None = typer.Option(
        None, help="Clean images (folder, best one per class) or a file of source statistics: for the estimate."
    ),
    size: int | None = typer.Option(None, min=1, help="Shorter side to this length, then the centred square."),
    resize: int | None = typer.Option(
        None, min=1, help="Shorter side before the square of --size is cut: 256 for 224."
    ),
    classes: Path | None = typer.Option(None, help="Text file with the names of the classes, one per line."),
    state: Path | None = typer.Option(None, help="Folder where streams are saved, and taken up from."),
    save_every: float = typer.Option(60.0, help="Seconds between two saves, beside the one at the end."),
    read_only: bool = typer.Option(False, "--read-only", help="Learn nothing and write nothing; images are answered."),
    untrusted: bool = typer.Option(
        False, "--untrusted", help="Strangers send images: only methods that bound what one image can do."
    ),
    monitor: bool = typer.Option(True, help="Ask the model as it came, too: one more pass, for the estimate."),
    batch_size: int = typer.Option(64, min=1, help="Images that are predicted together."),
    wait: float = typer.Option(5.0, min=0.0, help="Milliseconds that a batch waits for requests just being read."),
    queue: int = typer.Option(64, min=1, help="Requests in hand; beyond, 503."),
    streams: int = typer.Option(8, min=1, help="Streams (X-Stream) with an adapter; the least recently used goes."),
    most_images: int = typer.Option(64, min=1, help="Images of a request; beyond, 413."),
    most_megabytes: int = typer.Option(16, min=1, help="Size of a request; beyond, 413."),
    recent: int = typer.Option(24, min=0, help="Images of a stream that are kept for the page; 0 keeps none."),
    hyper: list[str] = typer.Option(
        [], help="Hyper-parameter as name=value; may be repeated. Also window, collapse, head."
    ),
    preset: str | None = typer.Option(None, help="Hyper-parameters: cifar10, cifar100, imagenet, cifar10-small."),
    network: str | None = typer.Option(None, help="For a file that does not say it: the architecture (resnet50)."),
    normalization: str | None = typer.Option(None, help="For such a file: the data it was trained on (cifar10)."),
    seed: int = typer.Option(0, help="Seed of the method's draws."),
    threads: int = typer.Option(1, min=1, help="Threads of a prediction."),
    allow_code: AllowCode = False,
    json: bool = JSON,
) -> None:
    """Serve a model over HTTP that adapts to what it is sent: POST /predict; a live page at /."""
    _require_extra()
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
        raise ConfigError("This token can be guessed or mistaken.", f"Use at least {SHORTEST_TOKEN} ASCII letters.")
    import torch

    from offsupport.serving.service import open_service
    from offsupport.serving.web import json_lines

    settings = parse_settings(hyper, "--hyper", "lr=1e-3")
    check_hyper(settings)
    torch.set_num_threads(threads)  # here, not in the library: it is a setting of the whole process
    log = json_lines()
    given = source_model(model, network, normalization, state or Path(), allowed([model], allow_code))
    limits = {
        "queue": queue, "batch_size": batch_size, "wait": wait / 1000, "streams": streams, "images": most_images,
        "size": most_megabytes << 20, "recent": recent, "save_every": save_every,
    }  # fmt: skip
    opened = open_service(
        given, method, source=source, size=size, resize=resize, classes=classes, preset=preset, monitor=monitor,
        state=state, read_only=read_only, limits=limits, log=log, spell=as_option, seed=seed,
        **({"trusted": False} if untrusted else {}), **settings,
    )  # fmt: skip
    with opened as service:
        _run(service, host, port, token, untrusted, log, json)


def _run(service: Service, host: str, port: int, token: str | None, untrusted: bool, log: Log, json: bool) -> None:
    from offsupport.serving.web import is_loopback, run

    if token is None and not is_loopback(host):
        say("Whoever reaches this address can send images, reset streams and see the latest images: set a token.")
    if not is_loopback(host) and not untrusted and not service.read_only:
        say("If strangers can send images, --untrusted bounds what one of them can do, and --read-only learns nothing.")
    if service.template.source is None and service.template.info.source == "optional":
        say(
            "No clean images were given: a few hundred of those the model was made for (--source DIR, best in a folder "
            "for each class) usually make it right more often, and let accuracy be estimated."
        )

    def ready(url: str) -> None:
        about = {"url": url, "model": service.model, "method": service.template.info.name, "classes": service.classes}
        if json:
            emit_json({**about, "size": service.size, "streams": [stream.key for stream in service.streams]})
        say(f"Serving {service.model} by {service.template.info.name} at {url} (Ctrl-C stops)")
        log("serving", **about)

    # Alarms of streams come as warnings; a log in which every line is JSON can be read by machines.
    warnings.showwarning = lambda message, *_, **__: log("warning", text=str(message))
    logging.getLogger().addHandler(_Told(log))
    run(service, host=host, port=port, token=token, ready=ready)


class _Told(logging.Handler):
    """Lets the log have what the packages under the service say of broken requests, as lines like all others."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the log."""
        self.log("warning", text=f"{record.name}: {record.getMessage()}")


def _require_extra() -> None:
    """Say what to install before anything is loaded."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"Serving needs {', '.join(missing)}.", "Install it: pip install 'offsupport[serve]'")
