"""Source models and how they are trained."""

from offsupport.training import mae as mae  # registers its objectives
from offsupport.training import moco as moco  # registers its objective
from offsupport.training.digits import digits_model, train_on_the_spot
from offsupport.training.recipe import Recipe, list_recipes, read_recipe
from offsupport.training.run import train

__all__ = ["Recipe", "digits_model", "list_recipes", "read_recipe", "train", "train_on_the_spot"]
