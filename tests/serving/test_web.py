"""The service over HTTP: what is answered, what is refused, what strangers may see."""

import asyncio
import io
import json
import re
import socket
import threading
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from service_client import SIDE, Client, Held, form, images, listening, png, small_model
from starlette.formparsers import MultiPartParser

import offsupport
from offsupport.core.errors import ConfigError
from offsupport.serving import Limits, Service
from offsupport.serving.web import PATHS, Patient, is_loopback, json_lines, make_app, page, run

TOKEN = "a token of some length"


@pytest.fixture
def open_app():
    opened = []

    def open_(token=None, loopback=True, model=None, monitor=True, **options):
        adapted = offsupport.adapt(model or small_model(), "minimal", monitor=monitor, collapse="off")
        service = Service(adapted, size=SIDE, **options)
        opened.append(service)
        return Client(make_app(service, token=token, loopback=loopback))

    yield open_
    for service in opened:
        service.close()


@pytest.fixture
def client(open_app):
    return open_app(names=["ant", "bee", "cat", "<b>dog</b>"])


def test_one_or_many_images_get_an_entry_each(client):
    answer = client.post("/predict", files=form(png(1), png(2), png(3)))
    assert answer.status_code == 200
    found = answer.json()
    assert found["stream"] == "default"
    assert len(found["predictions"]) == 3
    for entry in found["predictions"]:
        assert set(entry) == {"class", "name", "confidence", "source", "events"}
        assert entry["name"] == ["ant", "bee", "cat", "<b>dog</b>"][entry["class"]]
        assert 0.25 <= entry["confidence"] <= 1
        assert set(entry["source"]) == {"class", "name", "confidence"}
    assert len(client.post("/predict", files=form(png())).json()["predictions"]) == 1


def test_json_arrays_a_form_and_a_bare_image_are_the_same(open_app):
    pixels = np.asarray(Image.open(io.BytesIO(png())))
    array = (pixels.transpose(2, 0, 1) / 255).tolist()
    answers = [
        open_app().post("/predict", json={"images": [array]}),
        open_app().post("/predict", files=form(png())),
        open_app().post("/predict", content=png(), headers={"content-type": "image/png"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json() == answers[1].json() == answers[2].json()


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"files": form(b"no image")}, 422, "Image 1 cannot be read as an image"),
        ({"files": form(png(side=9))}, 422, "is 9x9, and the model takes 8x8"),
        ({"files": [("photo", ("a.png", b"x"))]}, 422, "field 'images'"),
        ({"data": {"images": "x"}, "files": form(png())}, 422, "other fields than files"),
        ({"files": form(*[b"x"] * 5)}, 413, "may have 4 images"),
        ({"content": b"x" * 200_001, "headers": {"content-type": "image/png"}}, 413, "may have 200,000 bytes"),
        ({"content": b"", "headers": {"content-type": "image/png"}}, 422, "cannot be read"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 422, "multipart/form-data"),
        ({"content": b"x"}, 422, "multipart/form-data"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 422, "form cannot be read"),
        (
            {
                "content": b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + png(),
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            422,
            "form cannot be read",
        ),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 422, "not JSON"),
        ({"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 422, "not JSON"),
        ({"content": b'{"images": [NaN]}', "headers": {"content-type": "application/json"}}, 422, "not JSON"),
        ({"json": []}, 422, "must be an object with 'images'"),
        ({"json": {"images": []}}, 422, "must be an object with 'images'"),
        ({"json": {"images": [[[1, 2], [3]]]}}, 422, "must be an object with 'images'"),
        ({"json": {"images": ["/etc/passwd"]}}, 422, "must be an object with 'images'"),
        ({"json": {"images": [[[["0.5"]]]]}}, 422, "must be an object with 'images'"),
        ({"json": {"images": [[[[True]]]]}}, 422, "must be an object with 'images'"),
        ({"json": {"images": [[[[0.5, 0.5], [0.5]]]]}}, 422, "must be an object with 'images'"),
        ({"json": {"images": [[[[10**39] * SIDE] * SIDE] * 3]}}, 422, "outside \\[0, 1\\]"),
        ({"json": {"images": [[[[1e300] * SIDE] * SIDE] * 3]}}, 422, "outside \\[0, 1\\]"),
        ({"json": {"images": [0] * (4 * 3 * SIDE * SIDE + 2)}}, 413, "more numbers than 4 images of 8x8"),
        ({"json": {"images": [[[[0.5]]]]}}, 422, r"shape \(1, 1, 1\)"),
        ({"json": {"images": [[[[7.0] * SIDE] * SIDE] * 3]}}, 422, "outside \\[0, 1\\]"),
        ({"files": form(png()), "headers": {"x-stream": "../a"}}, 422, "name of the stream"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_a_sentence(open_app, request_, status, words):
    client = open_app(limits=Limits(images=4, size=200_000))
    answer = client.post("/predict", **request_)
    assert answer.status_code == status
    said = answer.json()
    assert re.search(words, said["error"])
    assert said["remedy"]
    assert client.get("/health").json()["in_hand"] == 0


def test_one_broken_image_holds_the_others_back_and_all_broken_ones_are_named(client):
    answer = client.post("/predict", files=form(png(), b"x", png(), b"y"))
    assert answer.status_code == 422
    assert [entry["image"] for entry in answer.json()["broken"]] == [2, 4]
    assert client.get("/live").json()["images"] == 0


def test_texts_in_a_small_body_do_not_become_a_large_array(open_app, monkeypatch):
    """NumPy would give each of the texts as much as the longest takes: sixteen gigabytes for this body."""
    shown = []
    monkeypatch.setattr("offsupport.serving.web.np.array", lambda value, **_: shown.append(value))
    for inside in ('["{}"{}]', '[[[["{}"{}]]]]', '[[[[1, "{}"{}]]]]'):
        body = '{"images": ' + inside.format("x" * 50_000, ', ""' * 80_000) + "}"
        client = open_app(limits=Limits(images=1000))
        answer = client.post("/predict", content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 422
    assert not shown


@pytest.mark.parametrize("data", [b"\r" * 10, b"\r\n--" * 10, b"\r\n--BB" * 3])
@pytest.mark.parametrize(
    "more", ["", "; charset=punycode", "; charset=undefined", "; charset=a\x00b", "; charset=zlib"]
)
def test_forms_of_any_making_are_answered_with_a_sentence(open_app, data, more):
    names = (b'name="images"; filename="a"', b'name="\\"; filename="a"', b"name*=utf-8''images; filename=a", b"name")
    client = open_app()
    for name in names:
        body = b"--B\r\nContent-Disposition: form-data; " + name + b"\r\n\r\n" + data + b"\r\n--B--\r\n"
        kind = f"multipart/form-data; boundary=B{more}".encode("latin-1")
        answer = client.post("/predict", content=body, headers={"content-type": kind})
        assert answer.status_code == 422
        assert answer.json()["remedy"]


def test_a_form_is_read_where_images_are_and_not_where_everyone_waits(open_app, monkeypatch):
    seen = []
    parse = MultiPartParser.parse

    async def watched(self):
        seen.append(threading.current_thread().name)
        return await parse(self)

    monkeypatch.setattr(MultiPartParser, "parse", watched)
    assert open_app().post("/predict", files=form(png())).status_code == 200
    assert [name.partition("_")[0] for name in seen] == ["decoder"]


def test_a_body_without_a_length_is_counted_as_it_comes(open_app):
    client = open_app(limits=Limits(size=1000))

    async def endless():
        for _ in range(100):
            yield b"x" * 100

    answer = client.post("/predict", content=endless(), headers={"content-type": "image/png"})
    assert answer.status_code == 413


def test_a_sender_that_takes_too_long_is_cut_off(open_app, monkeypatch):
    monkeypatch.setattr("offsupport.serving.web.PATIENCE", 0.05)
    client = open_app()

    async def slow():
        yield b"x"
        await asyncio.sleep(5)

    answer = client.post("/predict", content=slow(), headers={"content-type": "image/png"})
    assert answer.status_code == 422
    assert "did not come within" in answer.json()["error"]


def test_a_full_queue_is_503_and_everyone_else_is_answered(open_app):
    held = Held(small_model())
    client = open_app(model=held, limits=Limits(queue=8))
    held.gate.open.clear()

    threading.Timer(0.5, held.gate.open.set).start()
    answers = client.together([("POST", "/predict", {"files": form(png(i))}) for i in range(40)])
    codes = [answer.status_code for answer in answers]
    assert sorted(set(codes)) == [200, 503]
    assert codes.count(200) == 8
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.headers["retry-after"] == "1"
    assert "requests are in hand" in refused.json()["error"]
    assert "offsupport_refused_total 32.0" in client.get("/metrics").text


def test_streams_are_told_apart_by_a_header(client):
    client.post("/predict", files=form(png()), headers={"X-Stream": "camera-2"})
    assert client.get("/estimate", headers={"X-Stream": "camera-2"}).json()["images"] == 1
    assert client.get("/estimate").json()["images"] == 0
    missing = client.get("/estimate", headers={"X-Stream": "camera-3"})
    assert missing.status_code == 404
    assert "no stream" in missing.json()["error"]
    assert client.get("/health").json()["streams"] == 2


def test_reset_freeze_and_thaw(client):
    first = client.post("/predict", files=form(png())).json()
    client.post("/predict", files=form(*[png(i) for i in range(32)]))
    assert client.post("/freeze").json() == {"stream": "default", "frozen": True}
    assert client.get("/live").json()["frozen"]
    assert client.post("/thaw").json() == {"stream": "default", "frozen": False}
    assert client.post("/reset").json() == {"stream": "default", "reset": True}
    assert client.post("/predict", files=form(png())).json() == first
    refused = client.get("/reset")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert refused.json() == {"error": "This path does not take GET.", "remedy": "Use POST."}


def test_read_only_refuses_every_change(open_app):
    client = open_app(read_only=True)
    assert client.post("/predict", files=form(png())).status_code == 200
    for path in ("/reset", "/freeze", "/thaw"):
        assert client.post(path).status_code == 403
    assert client.get("/health").json()["read_only"]


# Who may ask.


@pytest.mark.parametrize("path", [path for path in PATHS if path not in ("/", "/health")])
def test_without_the_token_nothing_is_answered(open_app, path):
    client = open_app(token=TOKEN)
    method = "POST" if path in ("/predict", "/reset", "/freeze", "/thaw") else "GET"
    wrong = [{}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"}]
    for headers in wrong:
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]
    answer = client.request(method, path, headers={"authorization": f"Bearer {TOKEN}"}, files=form(png()))
    assert answer.status_code == 200


def test_health_and_the_empty_page_need_no_token(open_app):
    client = open_app(token=TOKEN)
    assert client.get("/health").status_code == client.get("/").status_code == 200
    assert TOKEN not in client.get("/").text


def test_pages_of_other_sites_cannot_use_it(client):
    own = client.post("/reset", headers={"origin": "http://127.0.0.1"})
    other = client.post("/reset", headers={"origin": "http://evil.example"})
    assert (own.status_code, other.status_code) == (200, 403)
    # A name that a stranger points to this machine (DNS rebinding) is no name of it.
    assert client.get("/live", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/live", headers={"host": "localhost:8000"}).status_code == 200
    assert client.get("/live", headers={"host": "[::1]:8000"}).status_code == 200
    for broken in ("[", "[::1", "[x]", "a\u2100"):
        assert client.get("/live", headers={"host": broken.encode()}).status_code == 403
        assert client.post("/reset", headers={"origin": f"http://{broken}".encode()}).status_code == 403


def test_any_name_of_a_machine_that_others_reach_is_right(open_app):
    client = open_app(loopback=False)
    assert client.get("/live", headers={"host": "camera-server:8000"}).status_code == 200


def test_which_addresses_are_of_this_machine():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "x.y")] == [
        *(True, True, True, False, False, False)
    ]


# What can be seen.


def test_health_and_openapi(client):
    found = client.get("/health").json()
    assert (found["status"], found["method"], found["classes"], found["size"]) == ("ok", "minimal", 4, SIDE)
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/health", "/estimate", "/metrics", "/reset"} <= set(paths)
    assert "multipart/form-data" in paths["/predict"]["post"]["requestBody"]["content"]
    missing = client.get("/docs")  # it would load scripts from elsewhere
    assert missing.status_code == 404
    assert "POST /predict" in missing.json()["remedy"]


def test_estimate_says_what_can_be_said(client):
    client.post("/predict", json={"images": images(40).tolist()})
    found = client.get("/estimate").json()
    assert found["images"] == 40
    assert found["estimate"]["n"] == 40
    assert found["estimate"]["verdict"] == "unknown"
    assert found["estimate"]["agreement"] is not None


def test_metrics_start_with_offsupport(client):
    client.post("/predict", files=form(png(), png(1)))
    client.post("/reset")
    text = client.get("/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert all(name.startswith("offsupport_") for name in names)
    for line in (
        'offsupport_images_total{stream="default"} 2.0',
        'offsupport_resets_total{stream="default"} 1.0',
        'offsupport_events_total{event="collapse",stream="default"} 0.0',
        "offsupport_latency_seconds_count 1.0",
        'offsupport_requests_total{path="/predict",status="200"} 1.0',
        'offsupport_frozen{stream="default"} 0.0',
    ):
        assert line in text


def test_metrics_have_estimates_where_there_are_any(client):
    from offsupport.monitor import Estimate, Interval

    known = Estimate(Interval(0.5, 0.4, 0.6), Interval(0.7, 0.6, 0.8), None, 99, 0.8, 3.5, "iid", "helps", "")
    (stream,) = client.app.user_middleware[0].kwargs["handlers"].service.streams
    stream.estimate = lambda: known
    text = client.get("/metrics").text
    assert 'offsupport_estimated_accuracy{model="source",stream="default"} 0.5' in text
    assert 'offsupport_estimated_accuracy{model="adapted",stream="default"} 0.7' in text
    assert 'offsupport_estimated_accuracy_low{model="adapted",stream="default"} 0.6' in text
    assert 'offsupport_shift_score{stream="default"} 3.5' in text


def test_live_shows_each_image_once(client):
    client.post("/predict", files=form(png(1), png(2)))
    found = client.get("/live").json()
    assert [seen["number"] for seen in found["recent"]] == [1, 2]
    assert found["recent"][0]["picture"].startswith("data:image/jpeg;base64,")
    assert client.get("/live?after=1").json()["recent"] == found["recent"][1:]
    assert len(client.get("/live?after=-x%00").json()["recent"]) == 2


def test_the_page_is_whole_and_runs_nothing_else(client):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = answer.text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "innerHTML" not in text
    assert not re.search(r"\son\w+=|style=", text)  # neither would run under this policy
    assert page()[0] == text
    assert client.get("/").headers["x-content-type-options"] == "nosniff"


def test_an_error_of_the_model_is_500_for_a_stranger_and_a_line_in_the_log(open_app):
    lines = io.StringIO()
    client = open_app(log=json_lines(lines))
    (stream,) = client.app.user_middleware[0].kwargs["handlers"].service.streams
    stream.adapter.model.forward = lambda x: 1 / 0
    answer = client.post("/predict", files=form(png()))
    assert answer.status_code == 500
    assert "division" not in answer.text
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["event"], last["status"]) == ("request", 500)
    assert "ZeroDivisionError" in last["error"]


def test_every_line_of_the_log_is_json_in_ascii_whatever_a_stranger_sends(open_app):
    lines = io.StringIO()
    client = open_app(log=json_lines(lines), token=TOKEN)
    client.get("/%1b[2J%0a{日本" + "x" * 500)
    client.post("/predict", files=form(png()), headers={"authorization": f"Bearer {TOKEN}"})
    text = lines.getvalue()
    assert text.isascii()
    assert TOKEN not in text
    found = [json.loads(line) for line in text.splitlines()]
    assert {"time", "event"} <= set(found[0])
    requests = [line for line in found if line["event"] == "request"]
    assert [line["status"] for line in requests] == [401, 200]
    assert len(requests[0]["path"]) == 100
    assert requests[0]["path"].startswith("/\x1b[2J\n")
    assert requests[1]["images"] == 1


# The command.


def test_a_port_that_is_taken_is_said_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="Nothing can listen"):
        run(None, host="127.0.0.1", port=taken.getsockname()[1], ready=print)


def test_a_real_server_on_loopback(open_app):
    with listening(open_app().app) as url:
        sent = urllib.request.Request(f"{url}/predict", png(), {"Content-Type": "image/png", "X-Stream": "real"})
        with urllib.request.urlopen(sent, timeout=60) as answer:
            assert json.load(answer)["stream"] == "real"
        with urllib.request.urlopen(f"{url}/", timeout=60) as answer:
            assert "server" not in answer.headers
            assert answer.read().decode() == page()[0]


def ends_within(connection, seconds):
    """Wait until the other side hangs up; return what it said until then."""
    connection.settimeout(seconds)
    said = b""
    try:
        while part := connection.recv(1 << 16):
            said += part
    except ConnectionError:
        pass
    return said


def test_who_sends_no_request_or_takes_no_answer_is_hung_up_on(open_app, monkeypatch):
    monkeypatch.setattr("offsupport.serving.web.PATIENCE", 0.3)
    app = open_app().app
    with listening(app) as url:
        port = int(url.rpartition(":")[2])
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        slow = (b"", whole[:20], whole + whole[:20], whole[:-2] + b"Content-Length: 9\r\n\r\n")
        for begun in slow:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(begun)
                said = ends_within(connection, 20)  # a socket that stays open would time out
            assert said.count(b"HTTP/1.1 200") == (whole in begun or b"Length" in begun)


def test_only_who_is_to_act_and_does_not_is_hung_up_on():
    """A look before, and a look now: by the request in hand, and whether its answer has begun."""
    done, waits, new = (
        SimpleNamespace(response_started=begun, number=i) for i, begun in enumerate((True, False, True))
    )
    for before, cycle, hangs_up in (
        ((None, True), None, True),  # nothing was asked
        ((None, True), new, False),
        ((waits, False), waits, False),  # the model takes its time
        ((waits, False), SimpleNamespace(response_started=True), False),
        ((done, True), done, True),  # nothing was asked since, or the answer is not taken
        ((done, True), new, False),
    ):
        told = []
        transport = SimpleNamespace(abort=lambda told=told: told.append("abort"))
        Patient._look(SimpleNamespace(cycle=cycle, transport=transport, _wait=told.append), before)
        assert (told == ["abort"]) == hangs_up
        assert hangs_up or told == [(cycle, cycle.response_started)]


def test_an_answer_that_takes_long_is_waited_for(open_app, monkeypatch):
    monkeypatch.setattr("offsupport.serving.web.PATIENCE", 0.2)
    held = Held(small_model())
    app = open_app(model=held).app
    held.gate.open.clear()
    threading.Timer(1.0, held.gate.open.set).start()
    with listening(app) as url:
        sent = urllib.request.Request(f"{url}/predict", png(), {"Content-Type": "image/png"})
        with urllib.request.urlopen(sent, timeout=60) as answer:
            assert len(json.load(answer)["predictions"]) == 1


def test_an_answer_that_nobody_takes_ends_too(open_app, monkeypatch):
    monkeypatch.setattr("offsupport.serving.web.PATIENCE", 0.3)
    monkeypatch.setattr("offsupport.serving.web.page", lambda: ("x" * (64 << 20), "default-src 'none'"))
    ended, lost = threading.Event(), Patient.connection_lost
    monkeypatch.setattr(Patient, "connection_lost", lambda self, error: (ended.set(), lost(self, error)))
    with (
        listening(open_app().app) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as taker,
    ):
        taker.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ended.wait(60)
        assert len(ends_within(taker, 60)) < 64 << 20


def test_the_head_of_a_request_is_bounded_whatever_reads_it(open_app):
    with (
        listening(open_app().app) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as sender,
    ):
        sender.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert ends_within(sender, 20).startswith(b"HTTP/1.1 400")
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            assert answer.status == 200
