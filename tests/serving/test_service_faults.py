"""A server that is killed, asked to stop under load, or asked by a thousand at once."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
from service_client import SIDE, listening, png, small_model

import offsupport
from offsupport.serving import Limits, Service
from offsupport.serving.web import make_app

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX: sends signals to one process alone")
pytestmark = [pytest.mark.fault, posix]
MODEL = "zoo:cifar10-resnet18x0.25-supervised"
# The estimate is of images that were watched. By default only one batch of four is; with this method, every one.
METHOD = "minimal"


@contextlib.contextmanager
def server(folder, *options):
    """Start a server at a free port, and yield its process and address."""
    words = [sys.executable, "-m", "offsupport", "serve", "--model", MODEL, "--method", METHOD, "--port", "0", "--json"]
    words += map(str, options)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
    patience = threading.Timer(300, process.kill)  # a server that never says where it is ends the wait
    patience.start()
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            text += line
        patience.cancel()
        yield process, json.loads(text)["url"]
    finally:
        patience.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def ask(url, body=None, **headers):
    kind = {} if body is None else {"Content-Type": "image/png"}
    with urllib.request.urlopen(urllib.request.Request(url, body, {**kind, **headers}), timeout=120) as answer:
        return json.load(answer)


class Load(threading.Thread):
    """Sends images one after the other until the server is gone; counts those that were answered."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.answered = 0
        self.codes = Counter()

    def run(self):
        seed = 0
        while self.sent(png(seed, 32)):
            seed += 1

    def sent(self, image):
        """Send an image; tell whether anybody was there."""
        try:
            self.answered += len(ask(f"{self.url}/predict", image)["predictions"])
        except urllib.error.HTTPError as error:
            self.codes[error.code] += 1
        except (OSError, ConnectionError):
            return False
        return True


def test_asked_to_stop_under_load_it_answers_saves_and_goes_on_where_it_was(tmp_path):
    with server(tmp_path, "--state", tmp_path / "state") as (process, url):
        load = [Load(url) for _ in range(3)]
        for each in load:
            each.start()
        while sum(each.answered for each in load) < 20:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
        for each in load:
            each.join()
    answered = sum(each.answered for each in load)
    assert not any(each.codes for each in load)
    with server(tmp_path, "--state", tmp_path / "state") as (process, url):
        # Whatever was answered was learnt and saved; an answer that was lost on its way may have been, too.
        assert answered <= ask(f"{url}/estimate")["estimate"]["n"] <= answered + 3
        assert len(ask(f"{url}/predict", png(1, 32))["predictions"]) == 1


def test_killed_it_loses_no_more_than_what_came_since_the_last_save(tmp_path):
    with server(tmp_path, "--state", tmp_path / "state", "--save-every", 1) as (process, url):
        load = Load(url)
        load.start()
        while load.answered < 10:
            time.sleep(0.05)
        before, saved = load.answered, time.time()
        while not (tmp_path / "state" / "streams.json").exists() or (
            (tmp_path / "state" / "streams.json").stat().st_mtime < saved + 0.5
        ):
            time.sleep(0.05)
        process.kill()
        load.join()
    with server(tmp_path, "--state", tmp_path / "state") as (process, url):
        assert ask(f"{url}/estimate")["estimate"]["n"] >= before
        assert len(ask(f"{url}/predict", png(1, 32))["predictions"]) == 1


async def _one(port, body, limit):
    async with limit:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), 300)
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def _many(port, count):
    limit = asyncio.Semaphore(100)  # that connect at the same moment; all are open and answered at the same time
    return await asyncio.gather(*(_one(port, png(i % 50), limit) for i in range(count)))


def test_a_thousand_at_once_against_a_queue_of_eight_get_200_or_503():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))  # both ends of each connection are here
    adapted = offsupport.adapt(small_model(), "minimal", monitor=True, collapse="off")
    with Service(adapted, size=SIDE, limits=Limits(queue=8)) as service, listening(make_app(service)) as url:
        codes = Counter(asyncio.run(_many(int(url.rpartition(":")[2]), 1000)))
        assert set(codes) == {200, 503}
        assert codes[200] >= 8
        assert sum(codes.values()) == 1000
        assert ask(f"{url}/health")["in_hand"] == 0
        assert service.find("default").images == codes[200]
        assert len(ask(f"{url}/predict", png(1))["predictions"]) == 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
