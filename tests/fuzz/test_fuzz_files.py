"""Hostile files at every door that reads one: no traceback, no hang, no memory; a sentence, or it is accepted."""

import io
import json
import struct

import numpy as np
import pytest
from hostile import INPUTS, altered, as_json, attempt, edited, inputs
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def test_together_they_are_twenty_thousand():
    assert sum(INPUTS.values()) >= 20_000


# Recipes.


GRID = {
    "about": "two methods under two corruptions",
    "datasets": [
        {
            "dataset": "digits-c",
            "model": "digits-small",
            "corruptions": ["fog", "snow"],
            "severities": [1, 5],
            "limit": 20,
        },
        {"dataset": "digits", "source_images": 10, "blocks": [None, 8]},
    ],
    "methods": ["source", {"method": "tent", "hyper": {"lr": 0.001}, "preset": "cifar10", "batch_size": 16}],
    "seeds": 2,
    "protocol": "online",
    "batch_size": 32,
    "threads": 1,
    "device": "cpu",
}
GRID_TEXT = b"""about: words
datasets:
  - dataset: digits-c
    corruptions: all
    severities: &s [1, 5]
  - {dataset: digits, severities: *s, limit: 1e2}
methods: [source, {method: tent, hyper: {lr: 1e-3}}]
seeds: 2
"""
TRAINING = {"dataset": "digits", "network": "digits-small", "objective": "supervised", "epochs": 2, "lr": 0.1}


@inputs("grid recipes")
@given(data=st.one_of(altered(GRID).map(as_json), edited(GRID_TEXT)))
def test_grid_recipes(folder, data):
    from offsupport.studies.grids import read_recipe

    path = folder / "grid.yaml"
    path.write_bytes(data)
    attempt(lambda: [cell.key for cell in read_recipe(path)])


@inputs("training recipes")
@given(data=st.one_of(altered(TRAINING).map(as_json), edited(json.dumps(TRAINING, indent=1).encode())))
def test_training_recipes(folder, data):
    from offsupport.training.recipe import read_recipe

    path = folder / "training.yaml"
    path.write_bytes(data)
    attempt(lambda: read_recipe(str(path)).settings())


# Results and run folders.


def a_run(folder):
    from offsupport.bench.cell import Outcome
    from offsupport.bench.store import Store
    from offsupport.studies.grids import expand

    store = Store(folder)
    [cell] = expand({"method": ["source"]}, dataset="digits-c", corruption="fog", limit=20)
    domain = {"error": 0.25, "n": 20, "images": "x"}
    found = {
        "error": 0.25,
        "n": 20,
        "domains": {"fog/5": domain},
        "trace": [0.25],
        "passes": {"forward": 1},
        "events": {},
    }
    store.add_to_grid([cell], {"verb": "bench"})
    store.write(cell, Outcome(found | {"warnings": []}, {"weights_sha256": "0" * 64}, {"seconds": 1.0}))
    return store, cell


def sealed(body) -> bytes:
    """Seal whatever is given, as somebody who knows the checksum would."""
    from offsupport.core.files import sha256_bytes

    rest = json.dumps(body, indent=1, sort_keys=True) + "}\n"
    return f'{{"checksum": "{sha256_bytes(rest.encode())}",\n"record": {rest}'.encode()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run"))


@inputs("results")
@given(data=st.data())
def test_results(run, data):
    from offsupport.bench.runs import Run

    store, cell = run
    path = store.path(cell.key)
    if not hasattr(test_results, "whole"):
        test_results.whole = path.read_bytes()
    body = json.loads(test_results.whole)["record"]
    path.write_bytes(data.draw(st.one_of(altered(body).map(sealed), edited(test_results.whole))))

    def look():
        for record in Run(store.folder).status().done:
            record.fingerprint  # noqa: B018 - it walks through all of it

    attempt(look)


@inputs("run folders")
@given(data=st.data())
def test_run_folders(tmp_path_factory, data):
    import offsupport.studies  # noqa: F401 - it registers the kinds
    from offsupport.bench.cell import label
    from offsupport.bench.runs import Run

    if not hasattr(test_run_folders, "made"):
        store, cell = a_run(tmp_path_factory.mktemp("folder"))
        store.path(cell.key).unlink()
        store.write_failure(cell, "it broke")
        test_run_folders.made = store, cell, (store.folder / "grid.json").read_bytes()
    store, cell, grid = test_run_folders.made
    failure = {"cell": cell.to_dict(), "message": "it broke"}
    grid_file = data.draw(st.one_of(st.just(grid), altered(json.loads(grid)).map(as_json), edited(grid)))
    (store.folder / "grid.json").write_bytes(grid_file)
    store.failure_path(cell.key).write_bytes(data.draw(altered(failure).map(as_json)))

    def look():
        found = Run(store.folder).status()
        for cell in (*found.failed, *found.missing):
            label(cell)
        Run(store.folder).store.request()

    attempt(look)


# Data: manifests, saved streams, arrays, tables of numbers, pictures.


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from offsupport.data.stored import MANIFEST_FORMAT, describe_file

    folder = tmp_path_factory.mktemp("data") / "mine-c"
    folder.mkdir()
    np.save(folder / "labels.npy", np.zeros(10, np.uint8))
    np.save(folder / "fog.npy", np.zeros((10, 4, 4, 3), np.uint8))
    files = {name: describe_file(folder / name) for name in ("labels.npy", "fog.npy")}
    recipe = {"dataset": "mine-c", "seed": 0, "frost": "synthetic", "offsupport": "0.3"}
    return folder, {"format": MANIFEST_FORMAT, "recipe": recipe, "files": files, "made_with": {}, "skipped": []}


@inputs("manifests")
@given(data=st.data())
def test_manifests(made, data):
    from offsupport.data.checking import check
    from offsupport.data.cifar import StoredCorruption

    folder, manifest = made
    text = json.dumps(manifest, indent=1).encode()
    (folder / "manifest.json").write_bytes(data.draw(st.one_of(altered(manifest).map(as_json), edited(text))))

    def look():
        [finding] = check(folder)
        json.dumps(finding.to_json())
        StoredCorruption(folder, "fog", 1, rows=10, name="mine-c", image_size=(4, 4)).images([0])

    attempt(look)


@inputs("saved streams")
@given(data=st.data())
def test_saved_streams(folder, data):
    from offsupport.data import Arrays, Stream, stream_arrays

    images, labels = np.zeros((12, 4, 4, 3), np.uint8), np.zeros(12, int)
    path = folder / "stream.json"
    if not hasattr(test_saved_streams, "whole"):
        stream_arrays(images, labels, batch_size=5).save(path)
        test_saved_streams.whole = path.read_bytes()
    whole = test_saved_streams.whole
    path.write_bytes(data.draw(st.one_of(altered(json.loads(whole)).map(as_json), edited(whole))))
    attempt(lambda: [batch.x.sum() for batch in Stream.load(path, arrays=Arrays(images, labels))])


def npy(array, version=(1, 0)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=version)
    return buffer.getvalue()


def with_header(fields) -> bytes:
    text = repr(fields).encode("latin1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) % 65536) + text + bytes(64)


ARRAYS = [npy(np.arange(12.0).reshape(3, 4)), npy(np.array(["a", "bc"]), (2, 0)), npy(np.zeros((0, 3), np.uint8))]
SIDES = st.sampled_from([0, 1, 3, -1, 2**31, 2**62, 2**64, 10**30, True, None, 1.5, "3"])
DTYPES = st.sampled_from(
    ["<f8", "|u1", "|O", "<U3", "<U99999999", "|V8", "<M8[s]", "|S0", "<f16", [("a", "<f8")], "x", 3]
)
HEADERS = st.fixed_dictionaries(
    {
        "descr": DTYPES,
        "fortran_order": st.sampled_from([True, False, 2]),
        "shape": st.lists(SIDES, max_size=4).map(tuple),
    }
).map(with_header)


@inputs("npy")
@given(data=st.one_of(*map(edited, ARRAYS), HEADERS))
def test_npy(folder, data):
    from offsupport.cli.diagnose import read_array
    from offsupport.data.stored import open_npy

    path = folder / "x.npy"
    path.write_bytes(data)
    attempt(lambda: np.asarray(open_npy(path)).sum(initial=0) if open_npy(path).dtype.kind in "biuf" else None)
    attempt(read_array, path)


TABLE = b"a,b,label\n1.5,2,yes\n-3e4,4,no\n5,6,maybe\n"
CELLS = st.one_of(
    st.sampled_from(["1", "-2.5", "nan", "inf", "1_0", "", "x", "é", '"', "a" * 200, "\x00"]), st.text(max_size=5)
)
ROWS = st.lists(st.lists(CELLS, max_size=3).map(",".join), max_size=6).map(
    lambda r: "\n".join(r).encode("utf-8", "replace")
)


@inputs("csv")
@given(data=st.one_of(edited(TABLE), ROWS))
def test_csv(folder, data):
    from offsupport.cli.diagnose import read_array

    path = folder / "x.csv"
    path.write_bytes(data)
    attempt(read_array, path)


def picture(kind, mode="RGB", **options) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


PICTURES = [
    *(picture("PNG", mode) for mode in ("RGB", "P", "RGBA", "L", "LA", "1")),
    *(picture("TIFF", mode) for mode in ("RGB", "F", "I", "CMYK")),
    *(picture("JPEG", mode) for mode in ("RGB", "CMYK", "L")),
    *(picture(kind) for kind in ("BMP", "GIF", "WEBP", "PPM")),
]


@inputs("pictures")
@given(data=st.one_of(*map(edited, PICTURES)))
def test_pictures(folder, data):
    from offsupport.data.pictures import read_picture

    path = folder / "x.png"
    path.write_bytes(data)
    attempt(read_picture, path)
    attempt(read_picture, path, 16, 8)
