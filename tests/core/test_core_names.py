"""Configurations, registries, seeds, progress."""

import dataclasses
import io
import os
import subprocess
import sys
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsupport.core import progress as progress_module
from offsupport.core.config import build, to_dict
from offsupport.core.errors import ConfigError, DataMissingError, GridIncompleteError, nearest
from offsupport.core.progress import progress, steps
from offsupport.core.registry import Registry
from offsupport.core.seeds import derive_seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    rate: float = 0.5
    count: int = 3
    kind: Literal["a", "b"] = "a"
    limit: float | None = None
    either: int | float = 1
    name: str | None = None
    on: bool = False


def test_values_are_kept_and_integers_widen_to_floats():
    recipe = build(Recipe, {"rate": 1, "count": 4, "kind": "b", "limit": 2, "either": 2, "on": True}, "it")
    assert recipe == Recipe(rate=1.0, count=4, kind="b", limit=2.0, either=2, on=True)
    assert [type(value) for value in (recipe.rate, recipe.limit, recipe.either)] == [float, float, int]
    assert to_dict(build(Recipe, {}, "it"))["kind"] == "a"
    assert build(Recipe, to_dict(recipe), "it") == recipe


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rat": 1}, ["'rat'", "the cake", "Did you mean 'rate'?"]),
        ({"zzzzz": 1}, ["Known: count, either, kind"]),
        ({"rate": "1"}, ["'1'", "a number"]),
        ({"rate": None}, ["None", "a number"]),
        ({"rate": True}, ["True"]),
        ({"count": 1.0}, ["1.0", "an integer"]),
        ({"count": False}, ["False", "an integer"]),
        ({"kind": "c"}, ["'a' or 'b'"]),
        ({"limit": "x"}, ["a number or None"]),
        ({"name": 3}, ["None"]),
        ({"on": 1}, ["1"]),
    ],
)
def test_wrong_values_are_refused_in_words(values, words):
    with pytest.raises(ConfigError) as error:
        build(Recipe, values, "the cake")
    assert all(word in str(error.value) for word in words)


def test_a_registry_keeps_order_and_refuses_seconds():
    things = Registry("thing")
    assert things.register("b")(2) == 2
    things.register("a")(1)
    assert list(things) == ["b", "a"]
    assert (things["a"], len(things), "a" in things, "c" in things) == (1, 2, True, False)
    with pytest.raises(ConfigError, match="registered already"):
        things.register("a")(3)
    with pytest.raises(ConfigError, match=r"Unknown thing 'c'\. Known: a, b\."):
        things["c"]


def test_nearest_names_the_closest():
    assert nearest("gausian_noise", ["gaussian_noise", "shot_noise"]) == "Did you mean 'gaussian_noise'?"
    assert nearest("q", ["x", "a"]) == "Known: a, x."


def test_exit_codes():
    assert (ConfigError.exit_code, DataMissingError.exit_code, GridIncompleteError.exit_code) == (2, 3, 4)
    assert str(ConfigError("Only this.")) == "Only this."


def test_seeds_are_pinned_and_do_not_depend_on_the_process():
    expected = derive_seed("stream", 0, "fog")
    code = "from offsupport.core.seeds import derive_seed; print(derive_seed('stream', 0, 'fog'))"
    for hash_seed in ("0", "1", "31337"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert int(out.stdout) == expected
    assert expected == 4731808582663893418


@given(
    st.lists(st.one_of(st.integers(), st.text()), max_size=4), st.lists(st.one_of(st.integers(), st.text()), max_size=4)
)
def test_seeds_differ_where_the_parts_differ(a, b):
    assert 0 <= derive_seed(*a) < 2**63
    assert (derive_seed(*a) == derive_seed(*b)) == (a == b)


def test_seeds_keep_parts_apart():
    assert (
        len({derive_seed("ab", "c"), derive_seed("a", "bc"), derive_seed("abc"), derive_seed(1), derive_seed("1")}) == 5
    )


def test_progress_is_silent_for_short_work_and_plain_lines_off_a_terminal(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("Baking", 4) as advance:
        for _ in range(4):
            advance()
    assert sys.stderr.getvalue() == ""
    with progress("Baking", 4) as advance:
        for _ in range(4):
            now[0] += 30
            advance(note="hot")
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) >= 3
    assert all("Baking" in line for line in lines)
    assert "4" in lines[-1]


def test_steps_are_the_items_and_say_how_far_they_are(monkeypatch, capsys):
    monkeypatch.setattr("offsupport.core.progress.SHOW_AFTER", -1.0)
    monkeypatch.setattr("offsupport.core.progress.LINE_EVERY", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert list(steps("Calibrating", "abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err.count("Calibrating: ") == 3
