"""A stream of episodes may be split: the parts give the numbers of the whole, bit for bit."""

import dataclasses

import numpy as np
import pytest
import torch

import offsupport
from offsupport.bench import Place
from offsupport.bench.store import Store
from offsupport.core.errors import ConfigError
from offsupport.nn import build_network
from offsupport.results.correctness import unpack
from offsupport.studies import AdaptConfig
from offsupport.studies.adaptation import prepare_adapt, run_adapt
from offsupport.studies.errors import parts_of

HYPER = {"steps": 2, "masks": 3, "lr": 0.05}
WHOLE = AdaptConfig(
    dataset="digits-c", method="mae-ttt+em", corruption="fog", hyper=HYPER, model="test_shards:tiny",
    limit=12, batch_size=5,
)  # fmt: skip


def place(folder):
    return Place(folder, code=frozenset({WHOLE.model}))


def tiny():
    torch.manual_seed(0)
    return build_network("mae-digits/8", 10, "digits").eval()


@pytest.fixture(autouse=True)
def here(monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.path.parent))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def images(outcome):
    return unpack(outcome.deterministic["domains"]["fog/5"]["images"])


@pytest.mark.parametrize("count", [2, 5])
def test_any_split_gives_the_numbers_of_the_whole(count, tmp_path):
    rows, correct = images(run_adapt(WHOLE, place(tmp_path)))
    parts = [images(run_adapt(dataclasses.replace(WHOLE, shard=f"{i}/{count}"), place(tmp_path))) for i in range(count)]
    seen = np.concatenate([part[0] for part in parts])
    assert sorted(seen) == rows.tolist()
    together = np.concatenate([part[1] for part in parts])[np.argsort(seen)]
    assert np.array_equal(together, correct)


def test_logits_are_the_same_bits_in_any_split_and_order():
    stream = offsupport.data.stream("digits-c", corruption="fog", limit=9, batch_size=4)
    adapted = offsupport.adapt(tiny(), "mae-ttt+em", **HYPER)

    def logits(of):
        return {int(row): out for batch in of for row, out in zip(batch.index, adapted(batch.x), strict=True)}

    whole = logits(stream)
    for count in (2, 3):
        parts = {row: out for i in range(count) for row, out in logits(stream.shard(i, count)).items()}
        assert parts.keys() == whole.keys()
        assert all(torch.equal(parts[row], whole[row]) for row in whole)


def test_shards_are_one_result_in_a_table(tmp_path):
    store = Store(tmp_path)
    for i in range(2):
        config = dataclasses.replace(WHOLE, shard=f"{i}/2")
        store.write(config.cell(), run_adapt(config, place(tmp_path)))
    records = [store.read(dataclasses.replace(WHOLE, shard=f"{i}/2").cell().key) for i in range(2)]
    (part,) = parts_of(records)
    rows, correct = images(run_adapt(WHOLE, place(tmp_path)))
    assert np.array_equal(part.images[0], rows)
    assert np.array_equal(part.images[1], correct)
    assert "shard" not in part.method


def test_a_whole_stream_has_the_key_it_always_had():
    assert "shard" not in WHOLE.cell().config
    assert dataclasses.replace(WHOLE, shard="0/2").cell().key != WHOLE.cell().key


def test_shards_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="carries state from image to image"):
        prepare_adapt([dataclasses.replace(WHOLE, method="tent", hyper={}, shard="0/2")], place(tmp_path))
    with pytest.raises(ConfigError, match="carries state from image to image"):
        prepare_adapt([dataclasses.replace(WHOLE, hyper={"online": True}, shard="0/2")], place(tmp_path))
    for shard in ("2/2", "one", "0", "-1/2"):
        with pytest.raises(ConfigError, match="There is no shard"):
            prepare_adapt([dataclasses.replace(WHOLE, shard=shard)], place(tmp_path))
