import itertools
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsupport.bench import Cell, Place
from offsupport.bench.cell import compute
from offsupport.core.errors import ConfigError
from offsupport.studies import AdaptConfig, expand

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def shuffled(value, rng):
    if isinstance(value, dict):
        items = [(name, shuffled(item, rng)) for name, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(), json_values, max_size=6), st.randoms(use_true_random=False))
def test_key_ignores_the_order_of_settings(config, rng):
    assert Cell("adapt", config).key == Cell("adapt", shuffled(config, rng)).key


@given(st.dictionaries(st.text(), json_values, max_size=6))
def test_key_survives_the_file_format(config):
    cell = Cell("adapt", config)
    back = cell.to_dict()
    assert Cell(back["kind"], back["config"]) == cell


def test_key_is_the_same_in_every_process():
    """The order of sets and hashes differs between processes; that of a key must not, and needs no torch."""
    whole = AdaptConfig(dataset="d", method="bn", hyper={"b": 2, "a": 1}).cell()
    program = f"from offsupport.bench.cell import Cell; print(Cell({whole.kind!r}, {whole.to_dict()['config']!r}).key)"
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4711")
    }
    assert keys == {whole.key}


def test_the_key_of_a_known_cell_never_changes():
    cell = Cell("adapt", {"method": "bn", "lr": 0.5, "seeds": [1, 2]})
    assert cell.text == '{"config":{"lr":0.5,"method":"bn","seeds":[1,2]},"kind":"adapt"}'
    assert cell.key == "67257310841d7189a77cdabf6e59289cc53c3015c325223d57e41d7bc73132fc"


def test_twenty_thousand_random_cells_do_not_collide():
    rng = random.Random(0)
    words = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]
    word = lambda: rng.choice(words)  # noqa: E731
    cells = [
        Cell("adapt", {
            "dataset": word(), "method": word(), "corruption": word(), "severity": rng.randint(1, 5),
            "hyper": {word(): rng.choice([rng.random(), rng.randint(0, 9), word(), None])}, "seed": rng.randint(0, 99),
        })
        for _ in range(20_000)
    ]  # fmt: skip
    assert len({cell.key for cell in cells}) == len({cell.text for cell in cells}) > 19_990


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [12]}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        ({"a": 0.3}, {"a": 0.1 + 0.2}),
    ],
)
def test_cells_that_say_something_else_have_another_key(one, other):
    assert Cell("adapt", one).key != Cell("adapt", other).key


def test_kind_is_part_of_the_key():
    assert Cell("adapt", {}).key != Cell("latent", {}).key


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), ((1, 2), [1, 2]), (0, -0.0)])
def test_equal_settings_have_equal_keys(one, other):
    assert Cell("adapt", {"hyper": {"a": one}}).key == Cell("adapt", {"hyper": {"a": other}}).key


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}, b"bytes"])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match="not a JSON value"):
        _ = Cell("adapt", {"a": value}).key


def test_every_field_of_a_configuration_reaches_the_key():
    base = {"dataset": "d", "method": "m"}
    changes = {
        "dataset": "e", "method": "n", "corruption": "fog", "severity": 4, "block": 8, "hyper": {"lr": 0.1},
        "preset": "cifar10", "model": "x", "seed": 1, "protocol": "continual", "order": "sorted", "batch_size": 1,
        "limit": 10, "threads": 2, "source_images": 0, "source_split": "test", "shard": "1/2",
        "device": "cuda", "afterwards": 10,
    }  # fmt: skip
    assert set(changes) == set(AdaptConfig.__dataclass_fields__)
    keys = [AdaptConfig(**base).cell().key] + [AdaptConfig(**{**base, n: v}).cell().key for n, v in changes.items()]
    assert len(set(keys)) == len(changes) + 1


def test_expand_is_the_product_without_repeats():
    cells = expand({"method": ["bn", "tent", "bn"], "seed": [0, 1]}, dataset="d")
    assert [(cell.config["method"], cell.config["seed"]) for cell in cells] == [
        ("bn", 0),
        ("bn", 1),
        ("tent", 0),
        ("tent", 1),
    ]


def test_expand_refuses_unknown_fields_and_wrong_types():
    with pytest.raises(ConfigError, match=r"'methd'.*Did you mean 'method'"):
        expand({"methd": ["bn"]}, dataset="d")
    with pytest.raises(ConfigError, match="severity"):
        expand({"severity": ["5"]}, dataset="d", method="bn")


@pytest.mark.parametrize(
    ("kind", "words"), [("adpt", "Did you mean 'adapt'"), ("json:loads", "Unknown kind of cell 'json:loads'")]
)
def test_unknown_kinds_are_explained(kind, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        compute(Cell(kind, {}), Place(tmp_path))
