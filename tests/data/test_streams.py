import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_layouts import cifar_pixels, write_cifar10

from offsupport.core.errors import ConfigError, DataMissingError, FileError, InputError
from offsupport.data import Arrays, Stream, corrupt, load, stream, stream_arrays


def gather(batches):
    return [torch.cat(parts) for parts in zip(*(batch[:3] for batch in batches), strict=True)]


def same(left, right):
    return len(left) == len(right) and all(
        a.domain == b.domain and all(torch.equal(u, v) for u, v in zip(a[:3], b[:3], strict=True))
        for a, b in zip(left, right, strict=True)
    )


def test_batches_hold_the_rows_they_name():
    digits = load("digits")
    batches = list(stream("digits", batch_size=64, seed=3))
    x, y, index = gather(batches)
    assert x.dtype == torch.float32
    assert y.dtype == index.dtype == torch.int64
    assert sorted(index.tolist()) == list(range(599))
    expected = digits.images(index.numpy()).transpose(0, 3, 1, 2).astype(np.float32) / 255
    assert np.array_equal(x.numpy(), expected)
    assert np.array_equal(y.numpy(), digits.labels[index.numpy()])
    assert {batch.domain for batch in batches} == {"clean"}


@pytest.mark.parametrize("batch_size", [1, 2, 100, 598, 599, 1000])
def test_batch_sizes_keep_the_odd_last_batch(batch_size):
    batches = stream("digits", batch_size=batch_size)
    sizes = [len(batch.y) for batch in batches]
    assert len(batches) == len(sizes) == -(-599 // batch_size)
    assert sum(sizes) == batches.num_images == 599
    assert set(sizes[:-1]) <= {batch_size}
    reference = gather(stream("digits", batch_size=50))
    assert all(torch.equal(a, b) for a, b in zip(gather(batches), reference, strict=True))


def test_iterating_again_gives_the_same_and_another_seed_another_order():
    batches = stream("digits-c", corruption="gaussian_noise", batch_size=100, seed=1)
    assert same(list(batches), list(batches))
    other = stream("digits-c", corruption="gaussian_noise", batch_size=100, seed=2)
    assert other.order_hash != batches.order_hash
    assert other.sha256 == batches.sha256  # the seed orders images, it does not draw other noise


def test_orders():
    by_label = gather(stream("digits", order="sorted"))[1]
    assert (by_label.diff() >= 0).all()
    bursty = gather(stream("digits", order="dirichlet", concentration=0.01))[1]
    mild = gather(stream("digits", order="dirichlet", concentration=100.0))[1]
    assert (bursty.diff() == 0).sum() > 2 * (mild.diff() == 0).sum()
    assert stream("digits", order="dirichlet").describe()["concentration"] == 0.1
    assert stream("digits").describe()["concentration"] is None


def test_sequence_shows_one_domain_after_the_other():
    names = ["contrast", "brightness"]
    both = stream("digits-c", corruption=names, severity=[1, 3], batch_size=300, limit=400)
    batches = list(both)
    domains = ["contrast/1", "contrast/3", "brightness/1", "brightness/3"]
    assert [batch.domain for batch in batches] == [name for name in domains for _ in range(2)]
    assert [len(batch.y) for batch in batches] == [300, 100] * 4
    alone = list(stream("digits-c", corruption="brightness", severity=3, batch_size=300, limit=400))
    assert same(batches[-2:], alone)


def test_mixed_draws_batches_from_all_domains():
    names = ["contrast", "brightness", "fog"]
    mixed = stream("digits-c", corruption=names, schedule="mixed", batch_size=60, limit=40)
    batches = list(mixed)
    assert [(len(batch.y), batch.domain) for batch in batches] == [(60, "mixed")] * 2
    rows = load("digits").images(batches[0].index.numpy())
    possible = [corrupt(rows, name, 5, index=batches[0].index.numpy()) for name in names]
    shown = (batches[0].x.numpy() * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    matches = np.array([(shown == candidate).all((1, 2, 3)) for candidate in possible])
    assert (matches.sum(0) == 1).all()
    assert (matches.sum(1) > 5).all()


def test_ramp_climbs_and_descends():
    ramp = stream("digits-c", corruption=["contrast", "fog"], schedule="ramp", batch_size=10, limit=10)
    up_down = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert [batch.domain for batch in ramp] == [f"{c}/{s}" for c in ("contrast", "fog") for s in up_down]
    assert ramp.num_images == 180
    low = stream("digits-c", corruption="fog", schedule="ramp", severity=2, limit=5)
    assert [batch.domain for batch in low] == ["fog/1", "fog/2", "fog/1"]


def test_describe_states_everything_as_json():
    told = stream("digits-c", corruption=["fog", "impulse_noise"], severity=[5], block=8, limit=30, seed=4).describe()
    assert json.loads(json.dumps(told)) == told
    expected = {
        "dataset": "digits-c", "corruptions": ["fog", "impulse_noise"], "severities": [5], "block": 8, "order": "iid",
        "schedule": "sequence", "seed": 4, "limit": 30, "batch_size": 128, "n": 60, "batches": 2,
        "source": "generated", "split": "test", "corruption_seed": None,
    }  # fmt: skip
    assert {key: told[key] for key in expected} == expected
    assert len(told["sha256"]) == len(told["order_hash"]) == 64
    assert [domain["name"] for domain in told["domains"]] == ["fog/5", "impulse_noise/5"]
    assert told["domains"][0]["recipe"]["base"]["sha256"] == load("digits").sha256


def test_saved_stream_replays_the_same_batches(tmp_path):
    for number, made in enumerate(
        [
            stream("digits", order="dirichlet", batch_size=33),
            stream("digits-c", corruption=["fog", "contrast"], schedule="mixed", limit=50, block=16, batch_size=9),
            stream("digits-c", corruption="impulse_noise", severity=7, schedule="ramp", limit=5, corruption_seed=3),
        ]
    ):
        path = tmp_path / f"{number}.json"
        made.save(path)
        back = Stream.load(path)
        assert same(list(back), list(made))
        assert back.describe() == made.describe()


def test_replay_refuses_other_data(tmp_path):
    write_cifar10(tmp_path / "a")
    stream("cifar10", tmp_path / "a", limit=10).save(tmp_path / "s.json")
    assert Stream.load(tmp_path / "s.json", tmp_path / "a").num_images == 10
    write_cifar10(tmp_path / "b", n=21)
    with pytest.raises(FileError, match="differs from what"):
        Stream.load(tmp_path / "s.json", tmp_path / "b")


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved["plan"]["rows"].reverse(),
        lambda saved: saved["plan"]["rows"].__setitem__(0, 10_000),
        lambda saved: saved["plan"]["bounds"].pop(1),
        lambda saved: saved["plan"].pop("domain"),
        lambda saved: saved.pop("recipe"),
        lambda saved: saved.update(format="other"),
        lambda saved: saved["recipe"].update(evil=1),
        lambda saved: saved["stages"].append(3),
        lambda saved: saved["plan"].update(rows="x"),
    ],
)
def test_damaged_save_is_refused(tmp_path, damage):
    stream("digits", limit=300).save(tmp_path / "s.json")
    saved = json.loads((tmp_path / "s.json").read_text())
    damage(saved)
    (tmp_path / "s.json").write_text(json.dumps(saved))
    with pytest.raises(FileError, match=r"s\.json"):
        Stream.load(tmp_path / "s.json")


def test_arrays_uint8_and_float(tmp_path):
    images, labels = cifar_pixels(30), np.arange(30) % 3
    whole = stream_arrays(images, labels, batch_size=8, classes=("a", "b", "c"))
    x, y, index = gather(whole)
    assert np.array_equal((x.numpy() * 255).round(), images[index.numpy()].transpose(0, 3, 1, 2))
    assert np.array_equal(y.numpy(), labels[index.numpy()])
    assert whole.classes == ("a", "b", "c")
    floats = torch.rand(30, 3, 32, 32)
    x, _, index = gather(stream_arrays(floats, torch.from_numpy(labels), batch_size=8))
    assert torch.equal(x, floats[index])
    noisy = stream_arrays(images, labels, corruption="gaussian_noise", severity=2, limit=4)
    noisy.save(tmp_path / "s.json")
    back = Stream.load(tmp_path / "s.json", arrays=Arrays(images, labels))
    assert same(list(back), list(noisy))
    with pytest.raises(DataMissingError, match="arrays"):
        Stream.load(tmp_path / "s.json")
    with pytest.raises(FileError, match="differs"):
        Stream.load(tmp_path / "s.json", arrays=Arrays(images[::-1], labels))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), [0], "1 labels"),
        (np.zeros((2, 3, 8, 8), np.uint8), [0, 0], "last axis"),
        (np.zeros((2, 8, 8, 3), np.int64), [0, 0], "int64"),
        (np.full((2, 3, 8, 8), 1.5), [0, 0], r"\[1.5, 1.5\].*Normalized"),
        (np.full((2, 3, 8, 8), np.nan), [0, 0], "nan"),
    ],
)
def test_wrong_arrays(images, labels, message):
    with pytest.raises(InputError, match=message):
        stream_arrays(images, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"order": "idd"}, "Did you mean 'iid'"),
        ({"corruption": "fog", "schedule": "mix"}, "Did you mean 'mixed'"),
        ({"order": "dirichlet", "concentration": 0.0}, "concentration is 0"),
        ({"block": 8}, "block needs a corruption"),
        ({"schedule": "ramp"}, "needs a corruption"),
        ({"corruption": []}, "at least one"),
        ({"corruption": ["fog", "fog"]}, "each once"),
        ({"corruption": "fog", "severity": []}, "at least one"),
        ({"corruption": "fog", "severity": [1, 2], "schedule": "ramp"}, "one peak"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        stream("digits-c", **options)


def test_order_hash_does_not_depend_on_the_process():
    code = (
        "from offsupport.data import stream;"
        "s = stream('digits-c', corruption=['fog', 'snow'], order='dirichlet', limit=50, seed=7);"
        "print(s.order_hash, s.sha256)"
    )
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=-1, text=True).stdout
    here = stream("digits-c", corruption=["fog", "snow"], order="dirichlet", limit=50, seed=7)
    assert printed.split() == [here.order_hash, here.sha256]


def test_streams_that_0_2_0_saved_are_read_and_made_the_same(tmp_path):
    path = Path(__file__).parent / "stream_0_2.json"
    saved = Stream.load(path)
    options = {"severity": [2], "batch_size": 8, "seed": 3, "order": "dirichlet", "concentration": 0.3, "limit": 20}
    made = stream("digits-c", corruption=["fog", "frost"], block=9, **options)
    assert same(list(saved), list(made))
    made.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_spec_is_the_stream():
    made = stream("digits-c", corruption="fog", severity=2, limit=20, batch_size=8)
    assert same(list(Stream.of(made.spec)), list(made))
    with pytest.warns(DeprecationWarning, match="called spec"):
        assert made.recipe is made.spec


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("recipe", "dataset"), 0),
        (("recipe", "corruptions"), [5]),
        (("recipe", "seed"), "x"),
        (("recipe", "more"), 1),
        (("stages",), [[1, 2, 3]]),
        (("stages",), 5),
        (("plan", "rows"), [[0]]),
        (("plan", "rows"), ["x"]),
    ],
)
def test_a_crafted_stream_is_refused_with_a_sentence(tmp_path, part, value):
    images, labels = np.zeros((4, 4, 4, 3), np.uint8), np.zeros(4, int)
    stream_arrays(images, labels, batch_size=2).save(tmp_path / "s.json")
    saved = json.loads((tmp_path / "s.json").read_text())
    inside = saved
    for name in part[:-1]:
        inside = inside[name]
    inside[part[-1]] = value
    (tmp_path / "s.json").write_text(json.dumps(saved))
    with pytest.raises(FileError, match=r"s\.json") as error:
        Stream.load(tmp_path / "s.json", arrays=Arrays(images, labels))
    assert error.value.remedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "ramp", "severity": 10**9}, "2,000,000,000 domains"),
        ({"schedule": "pairs", "severity": 10**9, "corruption": ["fog", "snow"]}, "4,000,000,000 domains"),
        ({"visits": 10**12}, "1,000,000,000,000 domains"),
        ({"corruption": [["fog"]]}, "Name at least one"),
        ({"corruption": [1]}, "Name at least one"),
        ({"severity": ["5"]}, "Give at least one"),
    ],
)
def test_a_stream_that_no_memory_holds_or_of_no_names_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        stream("digits-c", **{"corruption": "fog", **options})
