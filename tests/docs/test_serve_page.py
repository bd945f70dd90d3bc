"""Every curl of docs/serve.md is sent, to a service in this process, and what the page shows is what comes back."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

from offsupport.serving import open_service
from offsupport.serving.web import make_app

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from service_client import Client

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
ALWAYS_OTHER = {"seconds", "version"}


def examples():
    """Return every curl of the page, as words, with what stands below it."""
    found = []
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.replace("\\\n", " ").partition("\n")
            if command.startswith("curl "):
                found.append((shlex.split(command), shown))
    return found


def send(client, words):
    """Send what curl would."""
    method, headers, files, path = "GET", {}, [], ""
    rest = iter(words[1:])
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word == "-F":
            name, _, file = next(rest).partition("=@")
            files.append((name, (file, Path(file).read_bytes())))
            method = "POST"
        elif word != "-s":
            path = word.removeprefix("http://127.0.0.1:8000")
    assert path.startswith("/"), words
    return client.request(method, path, headers=headers, files=files or None)


def same(shown, found):
    """Tell whether two JSON values agree, numbers up to the third digit."""
    if isinstance(shown, dict) and isinstance(found, dict):
        keys = set(shown) - ALWAYS_OTHER
        return set(shown) == set(found) and all(same(shown[key], found[key]) for key in keys)
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(same, shown, found))
    if isinstance(shown, float) or isinstance(found, float):
        return shown == pytest.approx(found, abs=2e-3)
    return shown == found


def test_what_the_page_shows_is_what_comes_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").convert("RGB").save("photo.png")
    Image.radial_gradient("L").convert("RGB").save("other.png")
    Path("notes.txt").write_text("no image")
    with open_service("zoo:cifar10-resnet18x0.25-supervised", size=32) as service:
        client = Client(make_app(service, loopback=True))
        assert len(examples()) >= 7
        for words, shown in examples():
            answer = send(client, words)
            if words[-1].endswith("/metrics"):
                for line in filter(None, shown.replace("...", "").splitlines()):
                    assert line in answer.text
            else:
                assert same(json.loads(shown), answer.json()), (words, answer.text)


def test_the_table_of_the_page_is_what_was_measured():
    stored = json.loads((PAGE.parents[1] / "results" / "serving.json").read_text(encoding="utf-8"))
    table = PAGE.read_text(encoding="utf-8").partition("<!-- serving -->")[2].partition("<!-- /serving -->")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    keys = ("side", "clients", "p50_ms", "p99_ms", "images_per_second", "ratio_p50", "ratio_throughput")
    assert shown == [[_written(row[key]) for key in keys] for row in stored["rows"]]


def _written(value):
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if value < 10 else str(round(value))
