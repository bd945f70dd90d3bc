"""What adapting costs in a service: throughput and latency, over the plain model served the same way.

Each side is a server process of its own: the same queue, the same batches, the same HTTP. ``plain`` runs the bare model
in place of an adapter, ``source`` the adapter that changes nothing, and the others adapt; ``monitor`` also asks the
source model for every image. Clients are threads of this process that send one image, wait for the answer, and send the
next. The sides take turns, round by round, so that other load on the machine falls on all of them alike: ``ratio_p50``
is the median over the rounds of the ratio to ``plain`` in the same round, ``ratio_throughput`` likewise.

Run: ``python benchmarks/serving.py [--json] [--model NAME] [--clients 1 16] [--requests 50] [--rounds 7]``
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from PIL import Image

import offsupport
from offsupport.core.progress import progress
from offsupport.serving import Answer, Service
from offsupport.serving.source_model import as_source_model
from offsupport.serving.stream import Stream
from offsupport.serving.web import make_app, make_server

SIDES = {
    "plain": ("source", False),
    "source": ("source", False),
    "minimal": ("minimal", False),
    "minimal, monitor": ("minimal", True),
    "tent, window=64": ("tent", False),
}
"""By name: the method, and whether the source model is asked, too."""


def bare(stream: Stream, model: torch.nn.Module) -> None:
    """Let a stream answer by the model alone."""

    @torch.inference_mode()
    def answer(x: torch.Tensor) -> list[Answer]:
        return [Answer(guess, None, ()) for guess in stream._guesses(model(x))]

    stream._answer = answer  # type: ignore[method-assign]


def serve(name: str, model_name: str, threads: int, told: Connection) -> None:
    """Serve one side until the process is ended; runs in a process of its own."""
    torch.set_num_threads(threads)
    given = as_source_model(model_name)
    model, (method, monitor) = given.load(), SIDES[name]
    options = {"window": 64} if "window" in name else {}
    adapted = offsupport.adapt(model, method, monitor=monitor, collapse="off", **options)
    with Service(adapted, size=given.side or 224) as service:
        if name == "plain":
            bare(service.find("default"), model)
        server = make_server(make_app(service))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        told.send((server.servers[0].sockets[0].getsockname()[1], given.side or 224))
        told.recv()


def pictures(side: int, count: int = 32) -> list[bytes]:
    """Return smooth pictures, as cameras give them, as PNG files."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
        found.append(buffer.getvalue())
    return found


def client(port: int, bodies: Sequence[bytes]) -> list[float]:
    """Send images one after the other over one connection; return the seconds that each took."""
    link, taken = http.client.HTTPConnection("127.0.0.1", port), []
    for body in bodies:
        began = time.perf_counter()
        link.request("POST", "/predict", body, {"Content-Type": "image/png"})
        answer = link.getresponse()
        answer.read()
        taken.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"a server answered {answer.status}")
    link.close()
    return taken


def one_round(port: int, bodies: Sequence[bytes], clients: int, requests: int) -> tuple[list[float], float]:
    """Return the latencies of all requests of a round, and requests per second."""
    each = max(1, requests // clients)
    plans = [[bodies[(c + i) % len(bodies)] for i in range(each)] for c in range(clients)]
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = [second for taken in pool.map(lambda plan: client(port, plan), plans) for second in taken]
    return found, len(found) / (time.perf_counter() - began)


def measure(ports: dict[str, int], bodies: Sequence[bytes], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per number of clients and side."""
    rows = []
    with progress("Serving", len(given.clients) * given.rounds * len(ports)) as advance:
        for clients in given.clients:
            latency: dict[str, list[list[float]]] = {name: [] for name in ports}
            rate: dict[str, list[float]] = {name: [] for name in ports}
            requests = max(given.requests, 8 * clients)
            for turn in range(given.rounds):
                names = list(ports)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    found, per_second = one_round(ports[name], bodies, clients, requests)
                    latency[name].append(found)
                    rate[name].append(per_second)
                    advance(1)
            rows += [_row(name, clients, latency, rate) for name in ports]
    return rows


def _row(
    name: str, clients: int, latency: dict[str, list[list[float]]], rate: dict[str, list[float]]
) -> dict[str, Any]:
    every = [second for found in latency[name] for second in found]
    medians = {side: [statistics.median(found) for found in latency[side]] for side in (name, "plain")}
    pairs = [mine / plain for mine, plain in zip(medians[name], medians["plain"], strict=True)]
    rates = [mine / plain for mine, plain in zip(rate[name], rate["plain"], strict=True)]
    return {
        "side": name,
        "clients": clients,
        "requests": len(every),
        "p50_ms": round(1e3 * statistics.median(every), 3),
        "p99_ms": round(1e3 * float(np.quantile(every, 0.99)), 3),
        "images_per_second": round(statistics.median(rate[name]), 2),
        "ratio_p50": round(statistics.median(pairs), 3),
        "ratio_throughput": round(statistics.median(rates), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="zoo:cifar10-resnet18x0.25-supervised")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, default=50, help="of a side in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    given = parser.parse_args()
    context, ports, links, side = multiprocessing.get_context("spawn"), {}, [], 0
    for name in dict.fromkeys(["plain", *given.sides]):
        mine, theirs = context.Pipe()
        context.Process(target=serve, args=(name, given.model, given.threads, theirs), daemon=True).start()
        ports[name], side = mine.recv()
        links.append(mine)
    bodies = pictures(side)
    for port in ports.values():
        one_round(port, bodies, 1, 10)  # the first passes take longer
    found = {
        "model": given.model,
        "threads": given.threads,
        "rounds": given.rounds,
        "rows": measure(ports, bodies, given),
    }
    for link in links:
        link.send("stop")
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for row in found["rows"]:
        print("  ".join(f"{key} {value}" for key, value in row.items()), file=sys.stdout)


if __name__ == "__main__":
    main()
