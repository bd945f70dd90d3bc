"""A client of an ASGI application in this process, without a server, a port or a thread; and images to send."""

import asyncio
import contextlib
import io
import threading
import time

import httpx
import numpy as np
import torch
from PIL import Image
from torch import nn

from offsupport.serving.web import make_server

SIDE = 8


def small_model(classes=4):
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, classes),
    )
    return nn.Sequential(*layers).eval()


def images(count, seed=0):
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def png(seed=0, side=SIDE):
    return encoded(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def form(*files):
    return [("images", (f"{i}.png", data)) for i, data in enumerate(files)]


class Client:
    """Each call is a request; several at the same time are a list of them."""

    def __init__(self, app):
        self.app = app

    def request(self, method, path, **more):
        return self.together([(method, path, more)])[0]

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, **more):
        return self.request("POST", path, **more)

    def together(self, requests):
        async def run():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                return await asyncio.gather(*(http.request(m, p, **more) for m, p, more in requests))

        return asyncio.run(run())


@contextlib.contextmanager
def listening(app):
    """Let a real server carry an application, in a thread of this process; yield its address."""
    server = make_server(app)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Held(nn.Module):
    """A model that waits until it is let go, once it was told to wait."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.gate = _Gate()

    def forward(self, x):
        self.gate.entered.set()
        assert self.gate.open.wait(60)
        return self.inner(x)


class _Gate:
    """Shared by all copies of the model: copying an adapter must not copy it."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def __deepcopy__(self, memo):
        return self
