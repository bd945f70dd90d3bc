import dataclasses

import pytest
import torch
from training_recipes import TINY, tiny, written

from offsupport.core.errors import ConfigError, FileError
from offsupport.nn.loading import NORMALIZATIONS
from offsupport.training import list_recipes, read_recipe
from offsupport.training.objectives import OBJECTIVES
from offsupport.training.recipe import make_recipe
from offsupport.training.run import fresh_network, fresh_objective


def test_every_recipe_of_the_package_can_begin():
    for name, about in list_recipes().items():
        recipe = read_recipe(name)
        assert about
        assert recipe.objective in OBJECTIVES
        if recipe.network != "resnet50":
            fresh_objective(recipe, 100 if recipe.dataset.endswith("100") else 10, 0)
        if recipe.start is not None:
            assert recipe.start in list_recipes()


def test_the_published_recipes_say_what_was_published():
    for classes in (10, 100):
        first, second = (read_recipe(f"cifar{classes}-resnet50-{kind}") for kind in ("supervised", "joint"))
        for recipe in (first, second):
            assert (recipe.epochs, recipe.batch_size, recipe.schedule) == (500, 256, "cosine")
            assert (recipe.momentum, recipe.weight_decay, recipe.nesterov) == (0.9, 1e-4, False)
        assert (first.lr, first.views, second.lr, second.views) == (0.2, "crop-flip", 1.0, "simclr")
        assert second.options == {"contrast": 0.1, "temperature": 0.5, "base_temperature": 0.07}


@pytest.mark.parametrize(
    ("dataset", "epochs"), [("cifar100", {"supervised": 24, "joint": 12}), ("tiny100", {"supervised": 14, "joint": 4})]
)
def test_the_small_recipes_for_a_hundred_classes_are_twins_of_those_for_cifar10(dataset, epochs):
    for kind in ("supervised", "joint"):
        known, twin = (read_recipe(f"{name}-resnet18x0.25-{kind}") for name in ("cifar10", dataset))
        start = known.start and known.start.replace("cifar10", dataset)
        assert twin == dataclasses.replace(known, about=twin.about, dataset=dataset, start=start, epochs=epochs[kind])
        network = fresh_network(twin, 100)
        assert network(torch.rand(2, 3, 32, 32)).shape == (2, 100)
        assert torch.equal(network.mean.flatten(), torch.tensor(NORMALIZATIONS[dataset][0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 3}, "Unknown setting 'epoch' for recipe 'tiny'. Did you mean 'epochs'"),
        ({"epochs": "many"}, "is 'many'. It must be an integer"),
        ({"epochs": 0}, "Setting 'epochs' of the recipe 'tiny' is 0. It must be above 0"),
        ({"weight_decay": -1.0}, "It must be at least 0"),
        ({"dataset": "cifar11"}, "It must be 'digits' or 'cifar10' or 'cifar100' or 'tiny100'"),
        ({"stop_at": 0.5, "held_out": 0}, "holds nothing out"),
    ],
)
def test_senseless_settings_are_refused(change, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        tiny(**change)


def test_missing_settings_are_named():
    with pytest.raises(ConfigError, match="does not say epochs, batch_size"):
        make_recipe({name: TINY[name] for name in TINY if name not in ("epochs", "batch_size")}, "recipe 'tiny'")
    with pytest.raises(ConfigError, match="not a mapping"):
        make_recipe(["epochs"], "recipe 'tiny'")


def test_options_of_an_objective_are_strict_too():
    with pytest.raises(ConfigError, match=r"'temprature' for objective 'joint'. Did you mean 'temperature'\?"):
        fresh_objective(tiny(objective="joint", options={"temprature": 1.0}), 10, 0)
    with pytest.raises(ConfigError, match="Unknown objective 'supervized'"):
        fresh_objective(tiny(objective="supervized"), 10, 0)


def test_recipes_come_from_files_too(tmp_path):
    assert read_recipe(written(tmp_path / "mine.yaml", lr=0.3)) == tiny(lr=0.3)
    assert read_recipe(written(tmp_path / "small.yaml", lr="1e-3")).lr == 0.001
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(FileError, match="is not YAML"):
        read_recipe(str(tmp_path / "bad.yaml"))
    with pytest.raises(FileError, match="There is no file"):
        read_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="Did you mean 'digits-small'"):
        read_recipe("digits-smal")


def test_settings_leave_out_defaults_and_words():
    settings = tiny(about="other words", lr=0.3).settings()
    assert settings == {**{name: TINY[name] for name in TINY if name != "about"}, "lr": 0.3}
    assert tiny(objective="joint", options={"contrast": 0.2}).settings()["options"] == {"contrast": 0.2}
