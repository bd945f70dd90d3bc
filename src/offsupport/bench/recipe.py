"""Recipes of grids: N data sets and M methods, each written down once; a cell for every combination."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from offsupport.bench.cell import Cell
from offsupport.bench.grid import expand
from offsupport.core.config import build
from offsupport.core.errors import ConfigError
from offsupport.core.settings import read_settings, require_mapping

E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Images to adapt to, and the model that meets them; what is not said is as in an ``adapt`` cell."""

    dataset: str
    """Name of the data set (``digits-c``, ``cifar10-c``)."""
    corruptions: list[Any] | str = field(default_factory=list)
    """Names, or ``all`` for the 15 standard ones; none for clean images."""
    severities: list[Any] = field(default_factory=lambda: [5])
    """Severities of the corruptions."""
    blocks: list[Any] = field(default_factory=lambda: [None])
    """Sides of the square a corruption is limited to; null for the whole image."""
    model: str = "digits-small"
    """Name of the source model."""
    order: str = "iid"
    """Order of the stream."""
    limit: int | None = None
    """Only so many images."""
    source_images: int = 2000
    """Images for methods that use source statistics."""
    source_split: Literal["train", "test"] = "train"
    """Where those come from."""

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
class Recipe:
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
    return recipe_cells(build(Recipe, read_settings(path), f"the recipe {path}"), path.parent)


def recipe_cells(recipe: Recipe, folder: Path) -> list[Cell]:
    """Return the cells of a recipe, none twice; files it names are looked for in ``folder``."""
    datasets = [_entry(DataSet, "dataset", each, folder) for each in recipe.datasets]
    methods = [_entry(Method, "method", each, folder) for each in recipe.methods]
    cells = [cell for data in datasets for method in methods for cell in _combined(recipe, data, method)]
    if not cells:
        raise ConfigError(
            "The recipe has no cells.", "It takes a data set, a method, a severity, a block (null: none) and a seed."
        )
    return list(dict.fromkeys(cells))


def _combined(recipe: Recipe, data: DataSet, method: Method) -> list[Cell]:
    names = data.names()
    streams: list[Any] = [names] if recipe.protocol == "continual" and len(names) > 1 else names or [None]
    axes = {"corruption": streams, "severity": data.severities, "block": data.blocks, "seed": range(recipe.seeds)}
    shared = {name: getattr(data, name) for name in ("dataset", "model", "order", "limit", "source_images")}
    return expand(
        axes,
        **shared,
        source_split=data.source_split,
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
