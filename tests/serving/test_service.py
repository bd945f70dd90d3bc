"""The service without a web: batches, streams, limits, state, freezing."""

import json
import time

import numpy as np
import pytest
import torch
from service_client import SIDE, Held, encoded, images, png, small_model

import offsupport
from offsupport.cli.output import as_option
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import ConfigError, FileError, InputError
from offsupport.serving import Limits, Service, open_service
from offsupport.serving.service import BrokenImagesError, TooLargeError, UnknownStreamError, file_of
from offsupport.serving.source_model import SourceModel
from offsupport.serving.stream import FRESH, RefusedError


@pytest.fixture
def make(tmp_path):
    opened = []

    def open_(method="minimal", monitor=True, model=None, **options):
        adapted = offsupport.adapt(model or small_model(), method, monitor=monitor, collapse="off")
        opened.append(Service(adapted, size=SIDE, **options))
        return opened[-1]

    yield open_
    for service in opened:
        service.close()


@pytest.mark.parametrize("method", ["minimal", "auto"])  # auto looks at one batch of four only
def test_answers_are_those_of_the_adapter_alone(make, method):
    service, alone = make(method), offsupport.adapt(small_model(), method, monitor=True, collapse="off")
    source = small_model()
    for seed in range(6):
        x = images(5, seed)
        answers = service.predict(x)
        logits = alone(x)
        assert [answer.adapted.label for answer in answers] == logits.argmax(1).tolist()
        assert [a.adapted.confidence for a in answers] == pytest.approx(logits.softmax(1).amax(1).tolist(), abs=1e-6)
        truth = source(x)
        assert [answer.source.label for answer in answers] == truth.argmax(1).tolist()
        # The confidences differ from batch to batch, where the classes may not.
        assert [a.source.confidence for a in answers] == pytest.approx(truth.softmax(1).amax(1).tolist(), abs=1e-6)


def test_image_files_are_the_same_as_their_pixels(make):
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    assert make().predict([encoded(each) for each in pixels]) == make().predict(x)


def test_names_of_classes_stand_in_answers_and_there_is_one_for_each(make):
    service = make(names=["a", "b", "c", "d"])
    for answer in service.predict(images(3)):
        assert answer.adapted.name == "abcd"[answer.adapted.label]
        assert answer.values()["source"]["name"] == "abcd"[answer.source.label]
    with pytest.raises(ConfigError, match="2 names, and the model has 4 classes"):
        make(names=["a", "b"])


def test_without_the_monitor_the_source_model_is_not_asked(make):
    service = make(monitor=False)
    assert [answer.source for answer in service.predict(images(2))] == [None, None]
    assert service.find("default").estimate() is None


def test_images_that_the_guard_sets_apart_are_predicted_by_the_source_model(make):
    model = small_model()
    model[1].running_var.fill_(1e-9)  # to such statistics every image is absurd, but a batch is not refused for it
    service = make(model=model)
    service.predict(images(4))
    flat = torch.full((1, 3, SIDE, SIDE), 0.5)
    answers = service.predict(torch.cat([images(2), flat]))
    assert all(answer.source is not None for answer in answers)


def test_requests_that_wait_are_gathered_into_batches(make):
    held = Held(small_model())
    service = make(model=held, limits=Limits(batch_size=8))
    stream = service.find("default")
    held.gate.open.clear()
    held.gate.entered.clear()
    lines = [service.submit("default", images(1))]
    assert held.gate.entered.wait(60)  # the first is a batch of its own; the others have to wait for it
    lines += [service.submit("default", images(3, seed)) for seed in range(4)]
    held.gate.open.set()
    assert [len(line.result(60)) for line in lines] == [1, 3, 3, 3, 3]
    assert stream.batches == 3  # 1, then 3 + 3 within 8, then 3 + 3
    assert stream.images == 13


def test_a_batch_waits_for_what_is_being_read_and_for_nothing_else(make, monkeypatch):
    limits = Limits()
    object.__setattr__(limits, "wait", 60.0)  # more than is allowed, so that a busy machine makes no difference
    service = make(limits=limits)
    changed, waits = service.find("default")._changed, []
    wait = changed.wait
    monkeypatch.setattr(changed, "wait", lambda left=None: waits.append(left) or wait(left))
    service.predict(images(1))
    with service.admit("other"):  # is being read, for another stream
        service.predict(images(1))
    assert not any(waits), "it was for more than the next request"
    with service.admit("default") as slow:
        line = service.submit("default", images(1))
        until = time.monotonic() + 60
        while not any(waits) and time.monotonic() < until:
            time.sleep(0.01)
        fast = slow.submit(lambda: images(1))
        line.result(60), fast.result(60)
    assert service.find("default").batches == 3


def test_who_hangs_up_teaches_nothing(make):
    held = Held(small_model())
    service = make(model=held)
    held.gate.open.clear()
    first = service.submit("default", images(1))
    second = service.submit("default", images(2))
    assert second.cancel()
    held.gate.open.set()
    first.result(60)
    service.close()
    assert service.find("default").images == 1


def test_an_error_of_the_model_is_told_and_the_next_request_is_served(make):
    service = make()
    stream = service.find("default")
    forward, stream.adapter.model.forward = stream.adapter.model.forward, None
    with pytest.raises(TypeError):
        service.predict(images(1))
    stream.adapter.model.forward = forward
    assert len(service.predict(images(2))) == 2


# Limits.


def test_more_requests_than_the_queue_takes_are_refused_before_anything_is_read(make):
    service = make(limits=Limits(queue=2))
    with service.admit("default"), service.admit("default"):
        assert service.in_hand == 2
        with pytest.raises(RefusedError, match="2 requests are in hand"), service.admit("default"):
            pass
    assert (service.in_hand, service.refused) == (0, 1)
    assert len(service.predict(images(1))) == 1


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a" * 65, "\x1b[2J", "ä", ".hidden", "a b"])
def test_names_of_streams_that_act_somewhere_are_refused(make, key):
    with pytest.raises(InputError, match="name of the stream"):
        make().predict(images(1), stream=key)


def test_images_are_refused_with_a_sentence(make):
    service = make(limits=Limits(images=3, pixels=1000))
    for given, error, words in (
        ([], InputError, "no image"),
        (images(4), TooLargeError, "4 images, and at most 3"),
        (torch.rand(1, 1, SIDE, SIDE), InputError, r"shape \(1, 8, 8\)"),
        (torch.full((1, 3, SIDE, SIDE), 255.0), BrokenImagesError, "Image 1 has values outside"),
        (torch.full((1, 3, SIDE, SIDE), torch.nan), BrokenImagesError, "Image 1 has values outside"),
        ([png(), b"\x89PNG\r\n\x1a\n", png(side=9)], BrokenImagesError, r"Image 2 cannot be read .* \(and 1 more\)"),
        ([png(side=9)], BrokenImagesError, "is 9x9, and the model takes 8x8"),
        ([png(side=40)], TooLargeError, "1,600 pixels"),
    ):
        with pytest.raises(error, match=words):
            service.predict(given)
    assert service.find("default").images == 0


def test_a_bomb_is_refused_by_what_its_head_says():
    bomb = encoded(np.zeros((1, 60_000), dtype=np.uint8))  # 224 rows of it would be 13 million wide
    adapted = offsupport.adapt(small_model(), "source")
    with Service(adapted, size=224, resize=True) as service, pytest.raises(BrokenImagesError, match="more than"):
        service.predict([bomb])


def test_with_resize_any_size_is_taken(make):
    assert len(make(resize=True).predict([png(side=30), png(side=5)])) == 2


def test_the_shorter_side_may_become_longer_than_the_square(make):
    service = make(resize=2 * SIDE)
    pixels = np.zeros((2 * SIDE, 2 * SIDE, 3), dtype=np.uint8)
    middle = slice(SIDE // 2, SIDE // 2 + SIDE)
    pixels[middle, middle] = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3))
    assert service.predict([encoded(pixels)]) == make().predict([encoded(pixels[middle, middle])])


def test_a_model_of_imagenet_takes_photographs_of_any_size():
    given = SourceModel("photographs", small_model, "imagenet")
    names = [str(label) for label in range(4)]
    with open_service(given, classes=names) as service:
        assert (service.size, service.resize) == (224, 256)
        assert len(service.predict([png(side=300)])) == 1
    with open_service(given, classes=names, size=16, resize=20) as service:
        assert (service.size, service.resize) == (16, 20)


def test_without_clean_images_the_estimate_says_how_to_start_the_service():
    adapted = offsupport.adapt(small_model(), "minimal", monitor=True)
    with Service(adapted, size=SIDE, spell=as_option) as service:
        stream = service.find("default")
        assert stream.estimate().reason.startswith("an estimate needs 30 images")
        service.predict(images(40))
        time.sleep(FRESH)
        assert "Start the service with --source DIR" in stream.estimate().reason


def test_a_model_that_does_not_take_such_images_is_said_at_the_start():
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 4))
    with pytest.raises(InputError, match="does not take colour images of 9x9"):
        Service(offsupport.adapt(flat, "source"), size=9)
    dense = torch.nn.Conv2d(3, 4, 1)
    with pytest.raises(offsupport.OffsupportError, match="predicts every position"):
        Service(offsupport.adapt(dense, "source"), size=9)


# Streams.


def test_each_stream_has_an_adapter_of_its_own(make):
    service, fresh = make(), make()
    for seed in range(4):
        service.predict(images(16, seed) * 0.3, stream="dark")
    assert service.predict(images(4), stream="light") == fresh.predict(images(4))
    assert service.predict(images(4), stream="dark") != fresh.predict(images(4), stream="another")


def test_the_least_recently_used_stream_makes_room_and_begins_anew(make):
    service = make(limits=Limits(streams=2))
    service.predict(images(16) * 0.3)
    service.predict(images(1), stream="b")
    service.predict(images(1))  # now b is the one to go
    service.predict(images(1), stream="c")
    assert [stream.key for stream in service.streams] == ["default", "c"]
    assert service.evicted == 1
    with pytest.raises(UnknownStreamError):
        service.find("b")
    # b comes back in the place and with the adapter of the one that learnt most, and knows nothing of it.
    assert service.predict(images(4), stream="b") == make().predict(images(4))


def test_who_still_holds_a_stream_that_made_room_does_nothing_to_the_next_one(make):
    """Its adapter serves another one: a reset or a look that was asked for before finds nothing there."""
    service = make(limits=Limits(streams=1))
    old = service.find("default")
    service.predict(images(40) * 0.3, stream="b")
    learnt = service.find("b").adapter.memory["shift"]
    assert service.find("b").adapter is old.adapter
    old.reset()
    assert torch.equal(service.find("b").adapter.memory["shift"], learnt)
    assert old.estimate() is None
    assert service.find("b").estimate().n == 40


def test_a_busy_stream_is_not_evicted(make):
    held = Held(small_model())
    service = make(model=held, limits=Limits(streams=1))
    held.gate.open.clear()
    line = service.submit("default", images(1))
    with pytest.raises(RefusedError, match="streams are busy"):
        service.submit("other", images(1))
    held.gate.open.set()
    assert len(line.result(60)) == 1


def test_reset_forgets_and_freeze_learns_nothing(make):
    service, fresh = make(), make()
    for seed in range(3):
        service.predict(images(16, seed) * 0.3)
    service.reset()
    assert service.predict(images(4)) == fresh.predict(images(4))
    service.freeze()
    memory = service.find("default").adapter.memory["shift"]
    frozen = service.predict(images(4))
    for seed in range(3):
        service.predict(images(16, seed) * 0.3)
    assert service.predict(images(4)) == frozen
    assert torch.equal(service.find("default").adapter.memory["shift"], memory)
    assert service.find("default").estimate().n > 0  # it is watched all the same
    service.freeze(frozen=False)
    service.predict(images(16) * 0.3)
    assert not torch.equal(service.find("default").adapter.memory["shift"], memory)


@pytest.mark.parametrize("before", range(5))
def test_a_frozen_stream_of_auto_is_watched_as_often_as_a_live_one(make, before):
    frozen, live = make("auto"), make("auto")
    for seed in range(before):
        frozen.predict(images(16, seed))
        live.predict(images(16, seed))
    frozen.freeze()
    for seed in range(before, before + 8):
        x = images(16, seed)
        frozen.predict(x)
        live.predict(x)
        watched = [service.find("default").adapter.memory["answers"] for service in (frozen, live)]
        assert watched[0].shape == watched[1].shape
    assert torch.equal(watched[0][-1, 0], watched[1][-1, 0])  # the source model of the same image
    assert frozen.find("default").estimate().n == live.find("default").estimate().n > 0


@pytest.mark.parametrize("method", ["auto", "source", "bn", "tent"])
def test_a_frozen_stream_answers_the_same_again_whatever_the_method(make, method):
    service = make(method)
    service.predict(images(16, 1))
    service.freeze()
    assert service.predict(images(16)) == service.predict(images(16))


def test_a_frozen_stream_learns_nothing_from_a_batch_that_fails_on_its_way(make, monkeypatch):
    service = make("tent")
    service.predict(images(16, 1))
    service.freeze()
    stream, first = service.find("default"), service.predict(images(16))
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_source_logits", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            service.predict(images(16, 2))
    assert service.predict(images(16)) == first


def test_recent_images_are_those_that_were_sent(make):
    service = make(limits=Limits(recent=3))
    x = (images(5) * 255).round() / 255
    service.predict(x)
    recent = service.find("default").recent
    assert [seen.number for seen in recent] == [3, 4, 5]
    assert torch.equal(torch.from_numpy(recent[-1].pixels), (x[4] * 255).round().byte().permute(1, 2, 0))
    nothing = make(limits=Limits(recent=0))
    nothing.predict(x)
    assert not nothing.find("default").recent


# State.


def test_state_is_saved_at_the_end_and_taken_up(make, tmp_path):
    alone, service = make(), make(state=tmp_path / "state")
    for seed in range(3):
        assert service.predict(images(8, seed) * 0.4, stream="a") == alone.predict(images(8, seed) * 0.4)
    service.predict(images(1), stream="b")
    service.freeze("b")
    with pytest.raises(FileError, match="Another process"):
        make(state=tmp_path / "state")
    service.close()
    again = make(state=tmp_path / "state")
    assert {stream.key: stream.frozen for stream in again.streams} == {"default": False, "a": False, "b": True}
    assert again.predict(images(8, 9), stream="a") == alone.predict(images(8, 9))


def test_a_stream_that_made_room_leaves_no_file_behind(make, tmp_path):
    service = make(state=tmp_path, limits=Limits(streams=1))
    service.save()
    assert (tmp_path / file_of("default")).exists()
    service.predict(images(1), stream="b")
    service.close()
    files = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert files == {"streams.json", file_of("b")}


def test_a_stream_that_makes_room_while_it_is_saved_leaves_nothing_of_another(make, tmp_path, monkeypatch):
    """Its adapter goes to the next stream: what that learns must not be written under the old name."""
    service = make(state=tmp_path, limits=Limits(streams=2))
    service.predict(images(8) * 0.4)
    service.predict(images(8) * 0.4, stream="b")
    first, last = service.streams
    written, save = [], first.adapter.save

    def interrupted(path):
        with monkeypatch.context() as patch:
            patch.setattr(type(last), "idle", property(lambda stream: stream is first))  # and that is being saved
            with pytest.raises(RefusedError, match="busy"):
                service.submit("c", images(1))
        save(path)
        last.unsaved = True
        service.predict(images(8), stream=first.key)  # so that "b" is the one to go
        written.append(service.predict(images(8), stream="c"))

    monkeypatch.setattr(first.adapter, "save", interrupted)
    service.save()
    assert written
    listed = json.loads((tmp_path / "streams.json").read_text())["streams"]
    assert [entry["key"] for entry in listed] == ["default"]
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {file_of("default")}
    monkeypatch.undo()
    service.close()
    again = make(state=tmp_path)
    assert {stream.key for stream in again.streams} == {"default", "c"}


def test_a_state_by_which_nothing_could_be_answered_is_refused_at_the_start(make, tmp_path):
    make("auto", state=tmp_path).close()
    tensors, manifest = load_tensors(tmp_path / file_of("default"))
    save_tensors(tmp_path / file_of("default"), tensors | {"memory/weights": torch.zeros(9)}, manifest)
    with pytest.raises(FileError, match="memory/weights of shape"):
        make("auto", state=tmp_path)


def test_nothing_of_a_request_becomes_a_path(make, tmp_path):
    service = make(state=tmp_path)
    service.predict(images(1), stream="evil..name")
    service.close()
    assert not [path for path in tmp_path.iterdir() if "evil" in path.name]


def test_what_is_saved_now_and_then_survives_a_kill(make, tmp_path):
    service = make(state=tmp_path, limits=Limits(save_every=0.05))
    service.predict(images(8) * 0.4)
    until = time.monotonic() + 120
    while service.saved is None and time.monotonic() < until:
        time.sleep(0.02)
    assert service.saved is not None
    service._held.close()  # as if the process were gone, and its lock with it
    assert make(state=tmp_path).predict(images(4)) == service.predict(images(4))


def test_a_disk_that_is_full_is_counted_and_nobody_suffers(make, tmp_path, monkeypatch):
    service = make(state=tmp_path)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.find("default").adapter, "save", full)
    service.predict(images(1))
    service._try_to_save()
    assert service.save_failures == 1
    assert service.find("default").unsaved
    assert len(service.predict(images(1))) == 1
    monkeypatch.undo()


def test_saving_goes_on_whatever_else_fails(make, tmp_path, monkeypatch):
    told = []
    service = make(state=tmp_path, limits=Limits(save_every=0.05), log=lambda event, **about: told.append(event))
    stream = service.find("default")
    monkeypatch.setattr(stream, "estimate", lambda: 1 / 0)
    save = stream.adapter.save
    monkeypatch.setattr(stream.adapter, "save", lambda path: 1 / 0)
    service.predict(images(8))
    until = time.monotonic() + 60
    while not service.save_failures and time.monotonic() < until:
        time.sleep(0.02)
    assert "not estimated" in told
    assert "not saved" in told
    monkeypatch.setattr(stream.adapter, "save", save)
    while service.saved is None and time.monotonic() < until:
        time.sleep(0.02)
    assert service.saved is not None


def test_read_only_learns_and_writes_nothing(make, tmp_path):
    make(state=tmp_path).close()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    service = make(state=tmp_path, read_only=True)
    first = service.predict(images(4))
    service.predict(images(16) * 0.3)
    assert service.predict(images(4)) == first
    for change in (service.reset, service.freeze):
        with pytest.raises(offsupport.OffsupportError, match="read-only"):
            change()
    service.close()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"mine": 1}', "offsupport did not write it"),
        ('{"offsupport": "streams", "streams": [{"key": "../../etc/passwd", "frozen": false}]}', "lists no streams"),
        ('{"offsupport": "streams", "streams": 5}', "lists no streams"),
        (
            '{"offsupport": "streams", "streams": [{"key": "a", "frozen": false}, {"key": "a", "frozen": true}]}',
            "lists no streams",
        ),
        ('{"offsupport": "streams", "streams": [{"key": "a", "frozen": false}]}', "There is no file"),
    ],
)
def test_a_folder_of_state_that_is_damaged_or_of_somebody_else_is_refused(make, tmp_path, text, words):
    (tmp_path / "streams.json").write_text(text)
    with pytest.raises(FileError, match=words):
        make(state=tmp_path)
    (tmp_path / "streams.json").unlink()
    make(state=tmp_path)  # the folder is free again


def test_state_of_other_weights_is_refused(make, tmp_path):
    make(state=tmp_path).close()
    other = small_model()
    torch.nn.init.ones_(other[0].weight)
    with pytest.raises(FileError, match="other weights"):
        make(model=other, state=tmp_path)


# From names to a service.


def test_clean_images_in_class_folders_calibrate_the_estimate(tmp_path):
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / f"class-{label}").mkdir()
        for i in range(30):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            (tmp_path / f"class-{label}" / f"{i}.png").write_bytes(encoded(pixels))
    with open_service(small_model(), "bn", source=tmp_path, size=SIDE, limits={"batch_size": 32}) as service:
        assert service.names == ["class-0", "class-1", "class-2", "class-3"]
        service.predict(images(40, 5))
        found = service.find("default").estimate()
        assert found.n == 40
        assert found.shift is not None
        known = service.template.answers.calibration
        assert known.source is not None  # which needs labels
        assert known.law.tolist() == [0.25] * 4


def test_a_service_that_cannot_be_is_refused_before_a_model_is_loaded():
    for given, words in (
        ({"model": small_model()}, "size of the model's images is not known"),
        ({"model": "zoo:cifar10-resnet18x0.25-supervised", "method": "tnet", "size": 8}, "tent"),
        ({"model": small_model(), "method": "tttpp", "size": 8}, "needs to know the source data"),
        ({"model": small_model(), "size": 8, "limits": {"queeu": 3}}, "queue"),
        ({"model": small_model(), "size": 8, "limits": {"queue": 0}}, "at least 1"),
    ):
        with pytest.raises(offsupport.OffsupportError, match=words):
            open_service(**given)


def test_the_log_is_told_what_happens(make, tmp_path):
    told = []
    service = make(state=tmp_path, log=lambda event, **about: told.append((event, about)))
    service.predict(images(1), stream="a")
    service.reset("a")
    service.close()
    assert [event for event, _ in told] == ["taken up", "stream", "stream", "reset", "stopped"]
    assert json.dumps(told)
