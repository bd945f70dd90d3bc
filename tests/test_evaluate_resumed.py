"""evaluate() that is killed in the middle of a stream and called again: the same bits as in one go."""

import itertools

import numpy as np
import pytest
import torch

import offsupport
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import CheckpointError
from offsupport.core.interrupts import STOP_REQUEST, Stopped
from offsupport.data import stream_arrays
from offsupport.evaluation import Checkpoint, evaluate
from offsupport.nn import WithProjection, resnet18
from offsupport.nn.projected import projection_head
from offsupport.testing import NETWORKS, toy_images
from offsupport.testing.case import changed, quiet, same_bits

BATCHES = 6
QUICK = {"steps": 1, "masks": 4}
CASES = {
    **{
        name: (name, {})
        for name in ("source", "bn", "tent", "shot", "eata", "sar", "ttac", "tttpp", "tesla", "tesla-s")
    },
    **{name: (name, {}) for name in ("tent+sc", "tesla-s+sc")},
    "memo": ("memo", {"copies": 2}),
    "tent, window": ("tent", {"window": 40}),
    "tttpp, queue": ("tttpp", {"queue": 48}),
    "mae-ttt": ("mae-ttt", QUICK),
    "mae-ttt, online": ("mae-ttt", {**QUICK, "online": True}),
    "mae-ttt+em, online": ("mae-ttt+em", {**QUICK, "online": True, "optimizers": "separate"}),
}


class KillError(Exception):
    pass


def network():
    """As the zoo gives them: channels last, where 1x1 kernels have strides that say so."""
    torch.manual_seed(0)
    model = WithProjection(resnet18(4, width=8), projection_head(64, 16)).eval()
    return model.to(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def images():
    x, y = zip(*(toy_images(16, seed=i) for i in range(BATCHES)), strict=True)
    return torch.cat(x), torch.cat(y)


def stream_of(images, seed=0):
    return stream_arrays(images[0].numpy(), images[1].numpy(), batch_size=16, seed=seed)


def adapted(case):
    method, hyper = CASES[case]
    model = NETWORKS["mae"]() if method.startswith("mae") else network()
    stats = None
    if offsupport.methods.METHODS[method].info.source != "none":
        source = [toy_images(24, seed=100 + i, shifted=False)[0] for i in range(3)]
        stats = offsupport.source_stats(model, source, method)
    with quiet():
        return offsupport.adapt(model, method, source=stats, seed=3, **hyper)


class Killed:
    """A stream that is cut off after so many batches."""

    def __init__(self, stream, after):
        self.stream, self.after = stream, after
        self.sha256, self.order_hash = stream.sha256, stream.order_hash

    def starting_at(self, number):
        yield from itertools.islice(self.stream.starting_at(number), self.after - number)
        raise KillError


def kill(method, stream, path, after, protocol="online"):
    with quiet(), pytest.raises(KillError):
        evaluate(adapted(method), Killed(stream, after), protocol, checkpoint=Checkpoint(path, every=0.0))


def require_same(a, b):
    for name in ("correct", "labels", "index"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for name in ("sizes", "domain_of", "passes", "events", "protocol", "method"):
        assert getattr(a, name) == getattr(b, name), name


@pytest.mark.parametrize("method", CASES)
def test_killed_again_and_again_it_ends_with_the_bits_of_one_go(images, method, tmp_path):
    stream, whole = stream_of(images), adapted(method)
    with quiet():
        expected = evaluate(whole, stream)
        for after in range(1, BATCHES, 2 + 2 * method.startswith("m")):
            kill(method, stream, tmp_path / "c", after)
        again = adapted(method)
        result = evaluate(again, stream, checkpoint=tmp_path / "c")
    require_same(result, expected)
    assert not changed(whole.snapshot(), again.snapshot())
    assert not list(tmp_path.iterdir()), "a checkpoint is gone with its evaluation"


@pytest.mark.parametrize("protocol", ["online", "continual", "episodic"])
def test_every_protocol_goes_on(images, protocol, tmp_path):
    stream = stream_of(images)
    expected = evaluate(adapted("tent"), stream, protocol)
    kill("tent", stream, tmp_path / "c", 4, protocol)
    require_same(evaluate(adapted("tent"), stream, protocol, checkpoint=tmp_path / "c"), expected)


def test_batches_of_ones_own_are_counted_through(images, tmp_path):
    batches = [(x, y) for x, y, *_ in stream_of(images)]

    def cut_off():
        yield from batches[:3]
        raise KillError

    with pytest.raises(KillError):
        evaluate(adapted("tent"), cut_off(), checkpoint=Checkpoint(tmp_path / "c", every=0.0))
    result = evaluate(adapted("tent"), batches, checkpoint=tmp_path / "c")
    require_same(result, evaluate(adapted("tent"), batches))


def test_a_stream_starts_anywhere(images):
    stream = stream_of(images)
    for number in (0, 1, 4, BATCHES):
        rest = list(itertools.islice(stream, number, None))
        found = list(stream.starting_at(number))
        assert len(found) == len(rest) == BATCHES - number
        for a, b in zip(found, rest, strict=True):
            assert same_bits(a.x, b.x)
            assert a.index.tolist() == b.index.tolist()
            assert a.domain == b.domain


def test_asked_to_stop_it_finishes_its_batch_and_says_how_far_it_is(images, tmp_path, monkeypatch):
    stream = stream_of(images)
    monkeypatch.setattr(STOP_REQUEST, "asked", True)
    for done in (1, 2):
        with pytest.raises(Stopped):
            evaluate(adapted("tent"), stream, checkpoint=tmp_path / "c")
        assert load_tensors(tmp_path / "c")[1]["batches"] == done
    monkeypatch.setattr(STOP_REQUEST, "asked", False)
    require_same(evaluate(adapted("tent"), stream, checkpoint=tmp_path / "c"), evaluate(adapted("tent"), stream))


def test_notes_are_kept_in_order(images, tmp_path):
    stream, said = stream_of(images), ["first"]
    with pytest.raises(KillError):
        evaluate(adapted("bn"), Killed(stream, 2), checkpoint=Checkpoint(tmp_path / "c", 0.0, notes=lambda: said))
    later = Checkpoint(tmp_path / "c", 0.0, notes=lambda: ["first", "second"])
    with pytest.raises(KillError):
        evaluate(adapted("bn"), Killed(stream, 4), checkpoint=later)
    assert later.kept == ["first"]
    last = Checkpoint(tmp_path / "c")
    evaluate(adapted("bn"), stream, checkpoint=last)
    assert last.kept == ["first", "second"]


def test_a_checkpoint_of_something_else_is_refused(images, tmp_path):
    stream, path = stream_of(images), tmp_path / "c"
    kill("tent", stream, path, 2)
    other_version = Checkpoint(path, about={"torch": "1.0"})
    with pytest.raises(CheckpointError, match="KeyError 'torch'"):
        evaluate(adapted("tent"), stream, checkpoint=other_version)
    for method, other, protocol in (
        ("bn", stream, "online"),
        ("tent", stream_of(images, seed=1), "online"),
        ("tent", stream_of((1 - images[0], images[1])), "online"),
        ("tent", stream, "episodic"),
    ):
        with pytest.raises(CheckpointError, match="no checkpoint of this evaluation") as error:
            evaluate(adapted(method), other, protocol, checkpoint=path)
        assert "Remove it" in error.value.remedy
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        evaluate(adapted("tent"), stream, checkpoint=path)


def test_tensors_come_back_in_their_memory_layout(tmp_path):
    tensors = {
        "rows": torch.rand(3, 4),
        "last": torch.rand(2, 3, 5, 5).to(memory_format=torch.channels_last),
        "turned": torch.rand(3, 2).T,
        "one": torch.empty_strided((6, 4, 1, 1), (4, 1, 4, 4)).fill_(0.5),
        "spread": torch.rand(8, 2)[::2],
        "wide": torch.rand(1, 3).expand(4, 3),
    }
    save_tensors(tmp_path / "t", tensors, {"a": 1})
    found, manifest = load_tensors(tmp_path / "t")
    assert manifest == {"a": 1}
    assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())
    assert all(found[name].stride() == tensors[name].stride() for name in ("rows", "last", "turned", "one"))
    assert found["spread"].is_contiguous()
    assert found["wide"].is_contiguous()


@pytest.mark.parametrize("strides", [[5, 0], [1], [-3, 1], [2, 2], [10**12, 1]])
def test_a_layout_that_cannot_be_is_not_taken(tmp_path, strides):
    save_tensors(tmp_path / "t", {"a": torch.rand(2, 3)}, {"strides": {"a": strides, "absent": [1]}})
    assert load_tensors(tmp_path / "t")[0]["a"].is_contiguous()


def test_a_disk_that_is_full_for_a_while_costs_nothing_but_the_checkpoint(images, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("offsupport.evaluation.save_tensors", refuse)
    result = evaluate(adapted("tent"), stream_of(images), checkpoint=Checkpoint(tmp_path / "c", every=0.0))
    require_same(result, evaluate(adapted("tent"), stream_of(images)))
    monkeypatch.setattr(STOP_REQUEST, "asked", True)
    with pytest.raises(OSError, match="No space"):
        evaluate(adapted("tent"), stream_of(images), checkpoint=tmp_path / "c")


def test_state_from_a_file_follows_the_device_of_the_model(images, monkeypatch):
    x = next(iter(stream_of(images))).x
    given, other = adapted("tesla"), adapted("tesla")
    with quiet():
        given(x)
    extra, taken = given.get_extra_state(), []
    other.model.to("meta")  # stands for a GPU: what stays behind on the CPU is seen
    monkeypatch.setattr(other, "restore", taken.append)
    other.adopt(extra["state"], extra, "This state")
    (snapshot,) = taken
    at_home = {name for name, t in snapshot.flat().items() if t.device.type == "cpu"}
    assert at_home == {"generator", *(f"optimizer/{name}" for name in snapshot.optimizer if name.endswith("/step"))}
    assert other.events == given.events


def test_images_are_brought_to_the_model(images, monkeypatch):
    """Streams give images of the CPU; a model on another device need not be told."""
    seen, asked = [], []
    given = adapted("bn")
    monkeypatch.setattr(type(given), "device", property(lambda self: torch.device("meta")))
    monkeypatch.setattr(given, "forward", lambda x: seen.append(x.device.type) or torch.zeros(len(x), 4))
    evaluate(given, [(images[0][:16], images[1][:16])])
    assert seen == ["meta"]
    monkeypatch.setattr("offsupport.engine.registry.check_input", lambda x, model: asked.append(x.device.type) or x)
    monkeypatch.setattr(
        "offsupport.methods.eata.Eata.collect", lambda self, batches: {"n": torch.tensor(len(list(batches)))}
    )
    monkeypatch.setattr("offsupport.methods.eata.Eata.device", property(lambda self: torch.device("meta")))
    offsupport.source_stats(network(), [images[0][:16]], "eata")
    assert asked == ["meta"]
