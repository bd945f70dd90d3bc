"""docs/training.md says what is true: its recipe trains, its models load, its table is that of the cards."""

import json
import re
from pathlib import Path

import pytest
import torch

import offsupport
from offsupport import zoo
from offsupport.nn import build_network
from offsupport.training import list_recipes
from offsupport.training.objectives import OBJECTIVES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "training.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_recipe_of_the_page_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    exec(blocks("python")[1], {})
    assert re.fullmatch(r"[01]\.\d{3} on 599 test images after 2 epochs\n", capsys.readouterr().out)
    torch.save({"model": build_network("resnet50", 10, "cifar10").state_dict()}, tmp_path / "ckpt.pth")
    for line in blocks("python")[0].splitlines():
        if "file:" in line:
            scope = {"offsupport": offsupport}
            exec(line, scope)
            assert scope["model"](torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.skipif(not zoo.names(), reason="the zoo is empty")
def test_the_zoo_model_of_the_page_loads():
    names = re.findall(r"zoo:([\w.-]*\w)\"", TEXT)
    assert names
    for name in names:
        offsupport.load_model(f"zoo:{name}")


def zoo_rows():
    for name in zoo.names():
        card = zoo.card(name)
        low, high = card["test"]["ci95"]
        interval = f"{100 * card['test']['accuracy']:.2f} ({100 * low:.2f}-{100 * high:.2f})"
        kept = card["held_out_accuracy"]
        rest = ("none" if kept is None else f"{100 * kept:.2f}", card["epochs"], f"{card['seconds'] / 60:.0f}")
        yield f"| `{name}` | {interval} | {' | '.join(map(str, rest))} |"


def test_the_table_is_that_of_the_cards():
    inside = re.search(r"<!-- zoo table -->\n(.*?)<!-- /zoo table -->", TEXT, re.DOTALL).group(1)
    assert inside.splitlines()[2:] == list(zoo_rows())


def test_the_costs_of_the_page_are_the_stored_ones():
    stored = json.loads((ROOT / "results" / "training_speed.json").read_text())
    small, middle, full = stored["steps"]
    words = " ".join(TEXT.split())
    assert f"16 pixels takes {small['to_full_side']:.2f} and at 24 pixels {middle['to_full_side']:.2f}" in words
    assert f"channels last is {full['contiguous_to_channels_last']:.2f} times as fast" in words
    costs = {row["views"]: 100 * row["to_step"] for row in stored["views"]}
    assert f"{costs['crop-flip']:.1f} % (crop) to {costs['simclr']:.1f} % (SimCLR)" in words


def test_recipes_and_objectives_of_the_page_exist():
    for name in re.findall(r"offsupport train ([a-z0-9][\w.-]+)", TEXT):
        assert name in list_recipes()
    rows = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert [name for name in rows if name in OBJECTIVES] == ["supervised", "joint", "rotation", "moco", "probe"]
