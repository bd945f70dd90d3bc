"""Every Python block of the docs and the README runs; every command in them names verbs and options that exist."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main

from offsupport.cli.main import app
from offsupport.data.catalog import DATASETS
from offsupport.data.corruptions import CORRUPTIONS
from offsupport.methods import METHODS
from offsupport.studies import TABLES
from offsupport.studies.models import MODELS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {"training.md", "index.md", "tour.md", "tutorial.md"}
"""Run by tests/training/test_training_docs.py, which makes the files they need, and by tests/docs/test_cells.py."""
REGISTRIES = (METHODS, CORRUPTIONS, DATASETS, MODELS, TABLES)
"""What a page adds to them it must not leave behind for other tests."""
SLOW = {"extrapolate.md", "theory.md", "data.md", "mae.md"}


def blocks(page, *languages):
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def prepared():
    """What pages take for granted: a table with targets, and some images."""
    X = np.random.default_rng(0).normal(size=(400, 6))
    x_tgt = X[:3].copy()
    x_tgt[:, 5] += 9
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    return {"X": X, "y": (X[:, 0] > 0).astype(int), "x_tgt": x_tgt, "images": images}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in PAGES
        if blocks(page, "python") and page.name not in ELSEWHERE
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope, before = prepared(), [dict(registry._items) for registry in REGISTRIES]
    try:
        for block in blocks(page, "python"):
            if "predict_interval" in block:  # the page shows the calls for labels and for numbers in one block
                block = "\n".join(line for line in block.splitlines() if "predict_interval" not in line)
            exec(compile(block, str(page), "exec"), scope)
    finally:
        for registry, items in zip(REGISTRIES, before, strict=True):
            registry._items = items


def test_each_part_of_your_own_takes_less_than_25_lines():
    found = blocks(ROOT / "docs" / "extend.md", "python", "toml")
    assert len(found) == 8
    assert all(len([line for line in block.splitlines() if line.strip()]) < 25 for block in found)


def commands(page):
    """Yield every offsupport command of a page as words, continued lines joined and comments cut."""
    for block in blocks(page, "console", ""):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("offsupport "):
                yield shlex.split(line.replace("[", "").replace("]", ""), comments=True)


def problem(words):
    """Return what is wrong with a command, or None."""
    command, rest = typer.main.get_command(app), words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"no verb {rest[:1]}"
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{words[1]} has no {unknown}" if unknown else None


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_exist_with_their_options(page):
    for words in commands(page):
        assert problem(words) is None, " ".join(words)


def test_a_wrong_command_is_noticed():
    assert problem(["offsupport", "adpt"])
    assert problem(["offsupport", "bench", "run", "--methodz", "bn"])
    assert problem(["offsupport", "bench", "run", "--methods", "bn"]) is None


def test_commands_are_found():
    assert len(list(commands(ROOT / "docs" / "tutorial.md"))) >= 4


def test_every_page_stands_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    missing = [page.name for page in PAGES if f": {page.name}" not in nav]
    assert not missing
