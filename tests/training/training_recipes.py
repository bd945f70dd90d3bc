"""Recipes small enough for tests."""

from offsupport.training.recipe import make_recipe

TINY = {
    "about": "tiny",
    "dataset": "digits",
    "network": "digits-small",
    "epochs": 3,
    "epoch_images": 128,
    "batch_size": 32,
    "lr": 0.1,
    "held_out": 100,
}


def tiny(**changes):
    return make_recipe({**TINY, **changes}, "recipe 'tiny'")


def written(path, **changes):
    settings = {**TINY, **changes}
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return str(path)
