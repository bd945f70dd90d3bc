"""The published set-up: whole grids where the weights are, and a sentence with a remedy where they are not."""

from pathlib import Path

import pytest

from offsupport import zoo
from offsupport.core.errors import DataMissingError
from offsupport.data import STANDARD
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.published import SETTINGS

RECIPES = [setting.recipe for setting in SETTINGS.values() if setting.recipe]
BROUGHT = (
    *("imagenet-resnet50-supervised", "imagenet-resnet50-moco", "imagenet100-mae-large-probe"),
    *(f"imagenet-mae-large-{regime}" for regime in ("probe", "joint", "finetune")),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with files where weights are looked for."""
    monkeypatch.chdir(tmp_path)
    paths = [Path("runs/train") / recipe / "model.safetensors" for recipe in RECIPES]
    for path in (*paths, *(Path("weights") / f"{name}.safetensors" for name in BROUGHT)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name + str(path.parent))
    return tmp_path


def counted(table, key):
    cells = TABLES[table].cells("paper", TableOptions())
    assert all(cell.config.get("device") == "cuda" for cell in cells)
    return cells, {value: sum(c.config[key] == value for c in cells) for value in {c.config[key] for c in cells}}


def test_table2_is_three_data_sets_with_their_presets(folder):
    cells, count = counted("table2", "dataset")
    seeds = 6 * 3 + 6  # methods with three seeds, and with one
    rows = seeds + 6  # by running statistics
    assert count == {"cifar10-c": 15 * rows, "cifar100-c": 15 * rows, "imagenet-c": 15 * (rows - 2)}
    assert {(c.config["dataset"], c.config["preset"]) for c in cells} == {
        ("cifar10-c", "cifar10"),
        ("cifar100-c", "cifar100"),
        ("imagenet-c", "imagenet"),
    }
    assert {c.config["corruption"] for c in cells} == set(STANDARD)
    assert not [c for c in cells if c.config["method"] == "tttpp" and c.config["dataset"] == "imagenet-c"]


def test_tables_with_images_as_episodes_are_split(folder):
    cells, count = counted("table4", "dataset")
    assert count == {"imagenet100-c": 3 * 15 * (4 * 10 + 1)}
    assert {c.config["limit"] for c in cells} == {None}
    cells, _ = counted("table3", "dataset")
    assert len(cells) == 15 * (2 * 100 + 3)
    assert {c.config["hyper"].get("em_steps") for c in cells} == {None, 1}


@pytest.mark.parametrize(
    ("table", "cells"), [("fig3", 80), ("tableA3", 2 * 76), ("tableA4", 15 * (35 + 17)), ("few", 70)]
)
def test_the_others_have_a_paper_scale_too(folder, table, cells):
    assert len(TABLES[table].cells("paper", TableOptions())) == cells


@pytest.mark.parametrize("table", ["table2", "table3", "table4", "fig3", "tableA3", "tableA4", "few"])
def test_missing_weights_are_missing_data(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataMissingError, match=r"no weights at (runs/train|weights)/.* (offsupport train|Put)"
    ) as found:
        TABLES[table].cells("paper", TableOptions())
    assert found.value.exit_code == 3


def test_a_model_that_the_zoo_does_not_have_yet_comes_with_its_command(monkeypatch):
    monkeypatch.setattr(zoo, "names", list)
    for table, model in (("tableA3", "supervised-early"), ("table2", "joint"), ("few", "supervised")):
        with pytest.raises(DataMissingError, match=f"offsupport train cifar10-resnet18x0.25-{model} ") as found:
            TABLES[table].cells("small", TableOptions())
        assert found.value.exit_code == 3
