"""Hostile tensors: files with a valid checksum and a false content, and batches given to adapters."""

import json

import pytest
import safetensors.torch
import torch
from hostile import JUNK, altered, as_json, attempt, edited, inputs
from hypothesis import given
from hypothesis import strategies as st

import offsupport
from offsupport import zoo
from offsupport.core.checkpoints import _checksum, load_tensors, save_tensors
from offsupport.core.weights import read_weights
from offsupport.engine.source_stats import SourceStats
from offsupport.nn import build_network, load_model
from offsupport.testing import NETWORKS, Case, toy_images
from offsupport.testing.case import changed, run, stream

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def written(path, tensors, manifest):
    """Write tensors and any text as a manifest under a checksum that is right."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    text = text.encode(errors="replace").decode()  # half of a character cannot be in a file at all
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    header = {"manifest": text, "sha256": _checksum(tensors, text)}
    path.write_bytes(safetensors.torch.save(tensors, metadata=header))


TRICKS = {
    "scalar": lambda t: t.flatten()[:1].reshape(()).clone() if t.numel() else torch.zeros(()),
    "one": lambda t: torch.ones(1, dtype=t.dtype),
    "longer": lambda t: torch.cat([t.flatten(), t.flatten()]),
    "rank": lambda t: t[None].clone(),
    "empty": lambda t: t.new_empty(0),
    "wide": lambda t: t.new_empty(0, 2**40),
    "nan": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t.float() * float("nan"),
    "inf": lambda t: torch.full(t.shape, float("inf")),
    "bool": lambda t: t != 0,
    "int": lambda t: t.to(torch.int32),
    "double": lambda t: torch.full(t.shape, 1e300, dtype=torch.float64),
    "half": lambda t: t.half(),
    "eight": lambda t: t.float().to(torch.float8_e4m3fn),
    "complex": lambda t: t.to(torch.complex64),
}


def tampered(tensors):
    """Return a strategy of tensors of which one or two are missing, doubled under another name, or something else."""
    change = st.tuples(st.sampled_from(sorted(tensors)), st.sampled_from([*TRICKS, "drop", "add"]))

    def apply(changes):
        found = dict(tensors)
        for name, trick in changes:
            if trick == "add":
                found[f"{name}.more"] = tensors[name]
            elif trick == "drop":
                found.pop(name, None)
            else:
                found[name] = TRICKS[trick](tensors[name])
        return found

    return st.lists(change, min_size=1, max_size=2).map(apply)


TEXTS = st.sampled_from(["", "5", "[]", "{", "null", "[" * 5000, '{"schema": 1}', '{"schema": [1]}', "NaN", '"x"'])
SMALL = {"fc.weight": torch.arange(6.0).view(2, 3), "fc.bias": torch.ones(2)}


@inputs("safetensors")
@given(data=st.data())
def test_safetensors(folder, data):
    path = folder / "x.safetensors"
    path.unlink(missing_ok=True)  # what is no longer ours would not be replaced
    if data.draw(st.booleans()):
        save_tensors(path, SMALL, {"network": "resnet18"})
        path.write_bytes(data.draw(edited(path.read_bytes())))
    else:
        manifest = {"schema": 1, "strides": {"fc.weight": [1, 2]}, "network": "resnet18"}
        written(path, SMALL, data.draw(st.one_of(TEXTS, altered(manifest))))
    attempt(load_tensors, path)
    attempt(read_weights, path)


def saved(method):
    adapted = Case(method, NETWORKS["batch_norm"]).wrap(window=20)
    run(adapted, stream(2))
    return adapted


ADAPTERS = ("tent", "sar", "eata", "tesla", "minimal", "auto")
USED = ("tent", "minimal", "auto")
"""Of these all that is remembered is checked: what is loaded is used."""


@inputs("saved adapters")
@given(data=st.data())
def test_saved_adapters(folder, data):
    """All or nothing: what is refused leaves every bit as it was."""
    if not hasattr(test_saved_adapters, "cases"):
        test_saved_adapters.cases = {}
        for method in ADAPTERS:
            adapted = saved(method)
            adapted.save(folder / "whole.safetensors")
            test_saved_adapters.cases[method] = adapted, *load_tensors(folder / "whole.safetensors")
    method = data.draw(st.sampled_from(ADAPTERS))
    adapted, tensors, manifest = test_saved_adapters.cases[method]
    path = folder / "adapter.safetensors"
    if data.draw(st.booleans()):
        tensors = data.draw(tampered(tensors))
    else:
        manifest = data.draw(altered(manifest))
    manifest = {"schema": 1, **manifest} if isinstance(manifest, dict) else manifest
    written(path, tensors, manifest)
    before = adapted.snapshot(), dict(adapted.events), dict(adapted.passes)
    if not attempt(adapted.load, path):
        assert not changed(before[0], adapted.snapshot())
        assert before[1:] == (adapted.events, adapted.passes)
    elif method in USED:
        attempt(adapted.fork(), stream(1, seed=7)[0])
    attempt(offsupport.load_adapted, NETWORKS["batch_norm"](), path)


@inputs("saved statistics")
@given(data=st.data())
def test_saved_statistics(folder, data):
    path = folder / "stats.safetensors"
    if not hasattr(test_saved_statistics, "cases"):
        test_saved_statistics.cases = {}
        for method in ("ttac", "minimal", "auto"):
            model, (x, labels) = NETWORKS["batch_norm"](), toy_images(200, seed=1, shifted=False)
            offsupport.source_stats(model, [x], method, labels=labels, monitor=method != "ttac").save(path)
            test_saved_statistics.cases[method] = model, *load_tensors(path)
    method = data.draw(st.sampled_from(sorted(test_saved_statistics.cases)))
    model, tensors, manifest = test_saved_statistics.cases[method]
    chosen = data.draw(
        st.one_of(tampered(tensors).map(lambda t: (t, manifest)), altered(manifest).map(lambda m: (tensors, m)))
    )
    written(path, chosen[0], {"schema": 1, **chosen[1]} if isinstance(chosen[1], dict) else chosen[1])

    def use():
        adapted = offsupport.adapt(model, method, source=SourceStats.load(path))
        if method != "ttac":
            adapted(stream(1, seed=7)[0])
            adapted.estimate()

    attempt(use)


NETWORK = "resnet18x0.0625"


@inputs("models")
@given(data=st.data())
def test_models(folder, data):
    if not hasattr(test_models, "weights"):
        torch.manual_seed(0)
        test_models.weights = build_network(NETWORK, 3, "cifar10").state_dict()
    manifest = {"schema": 1, "network": NETWORK, "normalization": "cifar10"}
    names = st.sampled_from(
        ["resnet18x9999", "resnet50x64", "mae-vit-l/16", "mae-tiny/4", "digits-small", "resnet18x" + "9" * 400]
    )
    chosen = st.one_of(altered(manifest), names.map(lambda name: {**manifest, "network": name}), TEXTS)
    weights = data.draw(tampered(test_models.weights))
    written(folder / "model.safetensors", weights, data.draw(st.one_of(st.just(manifest), chosen)))
    if attempt(load_model, f"file:{folder / 'model.safetensors'}"):
        model = load_model(f"file:{folder / 'model.safetensors'}")
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@inputs("cards")
@given(data=st.data())
def test_cards(folder, data):
    """The card of a model, as listing, naming and adapting read it."""
    from offsupport.cli.listing import _zoo_row
    from offsupport.serving.source_model import trained_on

    name = zoo.names()[0]
    whole = zoo.card(name)
    whole["log"] = whole["log"][:1]
    text = json.dumps(whole, indent=1).encode()
    place = folder / "mine"
    place.mkdir(exist_ok=True)
    (place / "card.json").write_bytes(data.draw(st.one_of(altered(whole).map(as_json), edited(text))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "_ROOT", folder)
        attempt(lambda: _zoo_row(zoo.card("mine")))
        attempt(trained_on, "zoo:mine")


# Batches.


SHAPES = st.one_of(
    st.sampled_from([(), (0,), (1,), (3, 8, 8), (1, 3, 8, 8), (20, 3, 8, 8), (0, 3, 8, 8), (2, 1, 8, 8), (2, 3, 1, 1)]),
    st.lists(st.integers(0, 9), max_size=5).map(tuple),
)
FILLS = {
    "image": lambda shape: torch.rand(shape, generator=torch.Generator().manual_seed(0)),
    "far": lambda shape: torch.rand(shape) * 255,
    "nan": lambda shape: torch.full(shape, float("nan")),
    "some": lambda shape: torch.rand(shape).where(torch.rand(shape) > 0.3, float("inf")),
    "huge": lambda shape: torch.full(shape, 3e38),
    "tiny": lambda shape: torch.full(shape, 1e-45),
    "negative": lambda shape: -torch.rand(shape),
    "bytes": lambda shape: torch.zeros(shape, dtype=torch.uint8),
    "double": lambda shape: torch.zeros(shape, dtype=torch.float64),
    "complex": lambda shape: torch.zeros(shape, dtype=torch.complex64),
    "meta": lambda shape: torch.zeros(shape, device="meta"),
    "sparse": lambda shape: torch.zeros(shape).to_sparse(),
    "strided": lambda shape: torch.zeros(()).expand(shape),
}
THINGS = st.one_of(st.tuples(SHAPES, st.sampled_from(sorted(FILLS))).map(lambda pair: FILLS[pair[1]](pair[0])), JUNK)


@inputs("batches")
@given(method=st.sampled_from(["source", "bn", "tent", "eata", "sar", "shot", "memo", "tesla"]), x=THINGS)
def test_batches(method, x):
    """Whatever a batch is, the adapter answers or refuses, and goes on with finite parameters."""
    cases = vars(test_batches).setdefault("cases", {})
    if method not in cases:
        cases[method] = Case(method, NETWORKS["batch_norm"]).wrap()
    adapted = cases[method]
    attempt(adapted, x)
    assert all(bool(parameter.isfinite().all()) for parameter in adapted.parameters())
