"""Hostile requests to a service: an answer with a sentence, whatever is sent, and the next image is answered."""

import io
import json

import pytest
import torch
from hostile import JUNK, TOKENS, altered, as_json, bounded, edited, inputs
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import offsupport
from offsupport.serving import Limits, Service

pytestmark = pytest.mark.fault
httpx = pytest.importorskip("httpx")
SIDE = 8
PICTURE = io.BytesIO()
Image.new("RGB", (SIDE, SIDE), (9, 99, 199)).save(PICTURE, "PNG")
PNG = PICTURE.getvalue()
FORM = (
    b'--B\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    + PNG
    + b"\r\n--B--\r\n"
)
ARRAYS = {"images": [[[[0.5] * SIDE] * SIDE] * 3]}
KINDS = ["multipart/form-data; boundary=B", "application/json", "image/png", "", "multipart/form-data", "text/plain"]
HEADERS = ["content-type", "x-stream", "host", "origin", "content-length", "authorization"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.fixture(scope="module")
def client():
    import asyncio

    from offsupport.serving.web import make_app

    limits = Limits(images=4, size=200_000, streams=4)
    with Service(offsupport.adapt(model(), "minimal", collapse="off"), size=SIDE, limits=limits) as service:
        app = make_app(service, loopback=True)

        def send(method, path, **more):
            async def run():
                transport = httpx.ASGITransport(app, raise_app_exceptions=False)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                    return await http.request(method, path, **more)

            return asyncio.run(run())

        yield send


BODIES = st.one_of(
    st.tuples(st.just(KINDS[0]), edited(FORM)),
    st.tuples(st.just(KINDS[1]), st.one_of(altered(ARRAYS).map(as_json), edited(json.dumps(ARRAYS).encode()))),
    st.tuples(st.just(KINDS[1]), JUNK.map(lambda junk: as_json({"images": junk}))),
    st.tuples(st.just(KINDS[2]), edited(PNG)),
    st.tuples(st.sampled_from(KINDS), st.sampled_from([b"", PNG, FORM, *TOKENS])),
)
VALUES = st.one_of(st.binary(max_size=12), st.sampled_from([b"[", b"http://[", b"../x", b"a" * 70, b"Bearer ", b"-1"]))


@inputs("requests")
@given(body=BODIES, header=st.one_of(st.none(), st.tuples(st.sampled_from(HEADERS), VALUES)))
def test_requests(client, body, header):
    headers = {"content-type": body[0].encode()}
    if header is not None and not any(byte in header[1] for byte in b"\r\n\0"):  # these no server lets through
        headers[header[0]] = header[1]
    with bounded():
        answer = client("POST", "/predict", content=body[1], headers=headers)
        assert answer.status_code in (200, 403, 413, 422), answer.text
        assert answer.status_code == 200 or answer.json()["remedy"]
        assert client("POST", "/predict", content=PNG, headers={"content-type": "image/png"}).status_code == 200
