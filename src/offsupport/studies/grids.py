"""Grids of adaptation cells: combinations of settings, and recipes in files."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from offsupport.bench.cell import Cell, code_of, require_few, require_threads
from offsupport.core.config import build
from offsupport.core.errors import ConfigError
from offsupport.core.settings import read_settings, require_mapping
from offsupport.studies.adaptation import AdaptConfig, Images


def expand(axes: Mapping[str, Sequence[Any]], **fixed: Any) -> list[Cell]:
    """Return the adaptation cells of every combination of ``axes``, the last axis running fastest, none twice.

    Args:
        axes: Values by field of :class:`~offsupport.studies.adaptation.AdaptConfig`.
        **fixed: Fields that are the same everywhere.

    Example:
        >>> len(expand({"method": ["source", "bn"], "corruption": ["fog", "snow"]}, dataset="digits-c"))
        4
    """
    require_few(math.prod(len(values) for values in axes.values()))
    combinations = itertools.product(*axes.values())
    settings = (dict(zip(axes, values, strict=True)) for values in combinations)
    cells = (build(AdaptConfig, {**fixed, **chosen}, "a grid").cell() for chosen in settings)
    return list(dict.fromkeys(cells))


# Recipes of grids: N data sets and M methods, each written down once; a cell for every combination.


E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class DataSet(Images):
    """Images to adapt to, and the model that meets them; what is not said is as in an ``adapt`` cell."""

    corruptions: list[Any] | str = field(default_factory=list)
    """Names, or ``all`` for the 15 standard ones; none for clean images."""
    severities: list[Any] = field(default_factory=lambda: [5])
    """Severities of the corruptions."""
    blocks: list[Any] = field(default_factory=lambda: [None])
    """Sides of the square a corruption is limited to; null for the whole image."""

    def names(self) -> list[str]:
        """Return the corruptions by name."""
        if isinstance(self.corruptions, list):
            return self.corruptions
        from offsupport.data import STANDARD

        return list(STANDARD) if self.corruptions == "all" else [self.corruptions]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and how it is set up."""

    method: str
    """Name of the method."""
    hyper: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters that differ from its defaults."""
    preset: str | None = None
    """Published hyper-parameters by name."""
    batch_size: int | None = None
    """Images per batch, where it needs another number than the others."""


@dataclass(frozen=True, kw_only=True)
class GridRecipe:
    """A grid: every data set with every method and seed."""

    datasets: list[Any]
    """Settings of data sets, names of them, or paths of files with settings, relative to the recipe."""
    methods: list[Any]
    """The same for methods."""
    about: str = ""
    """One line for people."""
    seeds: int = 1
    """Seeds 0, 1, ... of each cell."""
    protocol: Literal["online", "continual", "episodic"] = "online"
    """When the adapter is reset; with ``continual`` all corruptions are one stream."""
    batch_size: int = 128
    """Images per batch."""
    threads: int = 1
    """Threads per cell."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where cells are computed; with ``cuda`` every worker has a GPU."""


def read_recipe(path: Path | str) -> list[Cell]:
    """Return the cells of a recipe file; unknown, missing and senseless settings are errors that say which."""
    path = Path(path)
    cells = recipe_cells(build(GridRecipe, read_settings(path), f"the recipe {path}"), path.parent)
    code = sorted({name for cell in cells for name in code_of(cell)})
    if code:  # a recipe is passed around; whoever runs one has not thereby agreed to run what lies beside it
        raise ConfigError(
            f"The recipe {path} names code, {code[0]!r}; a file may name only what is registered.",
            "Register it as a model (docs/extend.md), or name it yourself without the recipe: "
            f"offsupport bench run --model {code[0]} --allow-code ...",
        )
    return cells


def recipe_cells(recipe: GridRecipe, folder: Path) -> list[Cell]:
    """Return the cells of a recipe, none twice; files it names are looked for in ``folder``."""
    require_few(recipe.seeds)
    require_threads(recipe.threads)
    datasets = [_entry(DataSet, "dataset", each, folder) for each in recipe.datasets]
    methods = [_entry(Method, "method", each, folder) for each in recipe.methods]
    each = [(_axes(recipe, data), data) for data in datasets]
    require_few(len(methods) * sum(math.prod(map(len, axes.values())) for axes, _ in each))
    cells = [cell for axes, data in each for method in methods for cell in _combined(recipe, axes, data, method)]
    if not cells:
        raise ConfigError(
            "The recipe has no cells.", "It takes a data set, a method, a severity, a block (null: none) and a seed."
        )
    return list(dict.fromkeys(cells))


def _axes(recipe: GridRecipe, data: DataSet) -> dict[str, Sequence[Any]]:
    names = data.names()
    streams: list[Any] = [names] if recipe.protocol == "continual" and len(names) > 1 else names or [None]
    return {"corruption": streams, "severity": data.severities, "block": data.blocks, "seed": range(recipe.seeds)}


def _combined(recipe: GridRecipe, axes: Mapping[str, Sequence[Any]], data: DataSet, method: Method) -> list[Cell]:
    shared = {each.name: getattr(data, each.name) for each in dataclasses.fields(Images)}
    return expand(
        axes,
        **shared,
        method=method.method,
        hyper=method.hyper,
        preset=method.preset,
        batch_size=method.batch_size or recipe.batch_size,
        protocol=recipe.protocol,
        threads=recipe.threads,
        device=recipe.device,
    )


def _entry(cls: type[E], name: str, given: Any, folder: Path) -> E:
    """A data set or method: settings, a path of a file with settings, or a bare name."""
    if isinstance(given, str) and not given.endswith((".yaml", ".yml")):
        return build(cls, {name: given}, f"the {name} {given!r}")
    if isinstance(given, str):
        return build(cls, read_settings(folder / given), f"the file {given}")
    return build(cls, require_mapping(given, f"A {name} of the recipe"), f"a {name} of the recipe")
