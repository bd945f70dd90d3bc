"""What there is to choose from, and whether the installation works."""

import json
import platform
import re

import pytest

import offsupport
from offsupport import zoo
from offsupport.cli.doctor import _allocator, examine
from offsupport.cli.listing import list_
from offsupport.core.errors import ConfigError
from offsupport.core.processes import WORKER_VARIABLES
from offsupport.data.corruptions import CORRUPTIONS
from offsupport.methods import METHODS
from offsupport.studies import TABLES
from offsupport.studies.models import MODELS
from offsupport.training import list_recipes


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", set(METHODS)),
        ("corruptions", set(CORRUPTIONS)),
        ("tables", set(TABLES)),
        ("models", set(MODELS) | {f"zoo:{name}" for name in zoo.names()}),
        ("recipes", set(list_recipes())),
    ],
)
def test_lists_every_name(what, names, capsys):
    list_(what, json=True)
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == names
    list_(what, json=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_an_unknown_list_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'methods'"):
        list_("method", json=False)


def test_doctor_takes_a_step_and_comes_back():
    assert examine()["adaptation"].startswith("works")


def test_doctor_says_how_freed_memory_is_kept(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    said = _allocator({})
    settings = dict(re.findall(r"(MALLOC_\w+)=(\d+)", said))
    assert len(settings) == 2
    assert settings.items() <= WORKER_VARIABLES.items()
    assert _allocator(settings) == "keeps freed memory"
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert _allocator({}) == "that of the system"


def test_the_list_of_methods_says_how_to_constrain_them(capsys):
    list_("methods", json=False)
    assert "tent+sc" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 80, 120, None])  # None: into a pipe, where nobody says how wide it is
def test_methods_fit_any_terminal_and_no_word_is_broken(columns, monkeypatch, capsys):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    list_("methods", json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(columns or 80, 100)
    text = " ".join(" ".join(lines).split())
    for info in offsupport.list_methods(True):
        assert f"{info.name} {info.summary}" in text
        assert info.passes in text
    assert "needs source statistics, a projection head; passes: 3F 1B" in text
    assert "needs batch norm; better with source statistics; passes: 1F" in text


def test_models_fit_a_narrow_terminal(monkeypatch, capsys):
    from offsupport.cli.listing import list_

    monkeypatch.setenv("COLUMNS", "80")
    list_("models", json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "zoo:cifar10-resnet18x0.25-supervised  89.63 % of clean images right" in lines
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) < 60
