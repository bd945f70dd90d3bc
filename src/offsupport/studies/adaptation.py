"""Cells of kind ``adapt``: a model, a method and a stream of images in; errors and per-image correctness out."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell
from offsupport.bench.executor import check_device, require_gpus
from offsupport.bench.store import Invalid, Record, Store, parse, versions
from offsupport.core.config import build
from offsupport.core.errors import ConfigError, nearest
from offsupport.core.files import canonical_json
from offsupport.core.settings import read_settings, require_mapping
from offsupport.results.correctness import pack
from offsupport.studies.models import pinned

if TYPE_CHECKING:
    from torch import nn

    from offsupport.data import Stream
    from offsupport.evaluation import Result
    from offsupport.methods import Adapter


UNSAID = {"shard": None, "device": "cpu"}
"""Settings that a cell leaves out where they have these values."""
SOURCE_BATCH = 64
"""Source images come in batches of at least this size, however few target images come at once."""
LEAK = "A leak: {method} took its source statistics from the clean twins of the images it is scored on."


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Everything the result of one adaptation run depends on."""

    dataset: str
    """Name of the data set (``digits-c``, ``cifar10-c``)."""
    method: str
    """Name of the method."""
    corruption: str | list[str] | None = None
    """One corruption, several in a row, or none."""
    severity: int = 5
    """Severity of the corruption."""
    block: int | None = None
    """Side of the square the corruption is limited to; None for the whole image."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    preset: str | None = None
    """Named hyper-parameters (``cifar10``)."""
    model: str = "digits-small"
    """Name of the source model (``zoo:NAME``, ``file:PATH``), or ``module:function`` that returns one."""
    seed: int = 0
    """Seed of the stream's order and of the method's random draws."""
    protocol: Literal["online", "continual", "episodic"] = "online"
    """When the adapter is reset."""
    order: str = "iid"
    """Order of the stream."""
    batch_size: int = 128
    """Images per batch."""
    limit: int | None = None
    """Number of images, drawn at random; None for all."""
    source_images: int = 2000
    """For methods that can use source statistics: so many images at most; 0 for none."""
    source_split: Literal["train", "test"] = "train"
    """Where those come from. ``test``, the uncorrupted twins of the stream, is a leak, and every report says so."""
    shard: str | None = None
    """``0/4`` for the first of four equal parts of the stream, for methods whose images are episodes of their own."""
    threads: int = 1
    """Threads of the computation."""
    device: str = "cpu"
    """Where it is computed: ``cpu`` or ``cuda``."""

    def cell(self) -> Cell:
        """Return the cell of these settings; the hash of the model's weights, where it has any yet, is part of it."""
        whole = make_cell("adapt", dataclasses.replace(self, model=pinned(self.model)))
        settings = {name: value for name, value in whole.config.items() if UNSAID.get(name, ...) != value}
        return Cell(whole.kind, settings)

    def part(self) -> tuple[int, int]:
        """Return which shard this is, and of how many."""
        number, _, of = (self.shard or "0/1").partition("/")
        if not (number.isdigit() and of.isdigit() and int(number) < int(of)):
            raise ConfigError(f"There is no shard {self.shard!r}.", "Write 0/4, 1/4, 2/4 and 3/4 for four of them.")
        return int(number), int(of)


def run_adapt(config: AdaptConfig, place: Place) -> Outcome:
    """Adapt the model along the stream and score it."""
    import torch

    from offsupport.engine.state import model_sha256
    from offsupport.studies.models import load_model

    torch.set_num_threads(config.threads)
    if config.device == "cuda":
        require_gpus()
    model = load_model(config.model, place.folder).to(config.device)
    stream = stream_of(config, place)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        adapter = adapter_of(config, model, place)
        result, kept = _evaluated(adapter, stream, config, place, said)
    remarks = list(dict.fromkeys([*kept, *map(_text, said)]))
    if adapter.source and config.source_split == "test":
        remarks.append(LEAK.format(method=config.method))
    about = stream.describe()
    provenance = {
        "weights_sha256": model_sha256(model),
        "data_sha256": about["sha256"],
        "data_source": about["source"],
        "order_sha256": about["order_hash"],
        "images": about["n"],
        "limit": config.limit,
        "source_images": adapter.source.samples if adapter.source else 0,
        "source_split": config.source_split if adapter.source else None,
    }
    timing = {"seconds": result.seconds, "peak_bytes": result.memory}
    findings = adapter.findings()
    measured = {**_measured(result), "warnings": remarks, **({"findings": findings} if findings else {})}
    return Outcome(measured, provenance, timing)


def _evaluated(
    adapter: Adapter, stream: Stream, config: AdaptConfig, place: Place, said: list[warnings.WarningMessage]
) -> tuple[Result, list[str]]:
    """Evaluate, from the checkpoint on if there is one to use; also return what was said before it."""
    from offsupport.core.errors import CheckpointError
    from offsupport.evaluation import Checkpoint, evaluate

    if place.checkpoint is None:
        return evaluate(adapter, stream, config.protocol), []
    checkpoint = Checkpoint(place.checkpoint, about=versions(), notes=lambda: list(map(_text, said)))
    try:
        return evaluate(adapter, stream, config.protocol, checkpoint=checkpoint), checkpoint.kept
    except CheckpointError:  # damaged, or of other versions or another CPU: half of each would be neither
        place.checkpoint.unlink(missing_ok=True)
        return evaluate(adapter, stream, config.protocol, checkpoint=checkpoint), checkpoint.kept


def _text(warning: warnings.WarningMessage) -> str:
    return str(warning.message)


def adapter_of(config: AdaptConfig, model: nn.Module, place: Place) -> Adapter:
    """Wrap the model; a method that can use source statistics gets them from the clean data."""
    from offsupport.data import stream
    from offsupport.methods import METHODS, adapt, source_stats

    stats = None
    if METHODS[config.method].info.source != "none" and config.source_images:
        clean = config.dataset.removesuffix("-c")
        limit, size = config.source_images, _source_batch(config)
        images = stream(clean, place.data, split=config.source_split, limit=limit, batch_size=size)
        stats = source_stats(model, images, config.method, **config.hyper)
    return adapt(model, config.method, preset=config.preset, source=stats, seed=config.seed, **config.hyper)


def prepare_adapt(configs: Sequence[AdaptConfig], place: Place) -> None:
    """Refuse unknown names, wrong hyper-parameters and missing data before anything runs; train the models."""
    from offsupport.core.config import build
    from offsupport.methods import METHODS
    from offsupport.studies.models import load_model

    opened = set()
    for config in configs:
        method = METHODS[config.method]
        if config.preset is not None and config.preset not in method.presets:
            raise ConfigError(
                f"{config.method} has no preset {config.preset!r}.", nearest(config.preset, method.presets)
            )
        hyper = build(method.config_class, config.hyper, f"method {config.method!r}")
        if config.part()[1] > 1 and not hyper.independent:
            raise ConfigError(
                f"{config.method} carries state from image to image, so its stream cannot be split into shards.",
                "Leave shard out.",
            )
        data = str((config.dataset, config.corruption, config.severity, config.block, config.order, config.batch_size))
        if data not in opened:
            opened.add(data)
            stream_of(config, place)
    for device in dict.fromkeys(config.device for config in configs):
        check_device(device)
    models = {name: load_model(name, place.folder) for name in dict.fromkeys(config.model for config in configs)}
    for config in {str((c.model, c.method, c.preset, c.hyper)): c for c in configs}.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            # Where statistics are required, a few images tell whether they can be made.
            few = 2 * _source_batch(config) if METHODS[config.method].info.source == "required" else 0
            few = min(few, config.source_images)
            adapter_of(dataclasses.replace(config, source_images=few, device="cpu"), models[config.model], place)


def _source_batch(config: AdaptConfig) -> int:
    return max(config.batch_size, SOURCE_BATCH)


def stream_of(config: AdaptConfig, place: Place) -> Stream:
    """Open the stream of a cell."""
    from offsupport import data

    whole = data.stream(
        config.dataset,
        place.data,
        corruption=config.corruption,
        severity=config.severity,
        block=config.block,
        order=config.order,  # type: ignore[arg-type]  # checked there, with the nearest name
        seed=config.seed,
        limit=config.limit,
        batch_size=config.batch_size,
    )
    return whole.shard(*config.part()) if config.shard else whole


def _measured(result: Result) -> dict[str, Any]:
    return {
        "error": result.error,
        "ci95": list(result.ci95),
        "n": result.n,
        "per_class": {str(label): error for label, error in result.per_class.items()},
        "domains": {name: {**found, "images": _images(result, name)} for name, found in result.domains.items()},
        "trace": result.trace,
        "passes": result.passes,
        "events": result.events,
    }


def _images(result: Result, domain: str) -> dict[str, Any]:
    here = np.repeat(np.array(result.domain_of) == domain, result.sizes)
    return pack(result.index[here], result.correct[here])


KINDS.register("adapt")(Kind(AdaptConfig, run_adapt, prepare_adapt))


# Grids: every combination of the options given, as cells.


def expand(axes: Mapping[str, Sequence[Any]], **fixed: Any) -> list[Cell]:
    """Return the adaptation cells of every combination of ``axes``, the last axis running fastest, none twice.

    Args:
        axes: Values by field of :class:`~offsupport.studies.adaptation.AdaptConfig`.
        **fixed: Fields that are the same everywhere.

    Example:
        >>> len(expand({"method": ["source", "bn"], "corruption": ["fog", "snow"]}, dataset="digits-c"))
        4
    """
    combinations = itertools.product(*axes.values())
    settings = (dict(zip(axes, values, strict=True)) for values in combinations)
    cells = (build(AdaptConfig, {**fixed, **chosen}, "a grid").cell() for chosen in settings)
    return list(dict.fromkeys(cells))


# Recipes of grids: N data sets and M methods, each written down once; a cell for every combination.


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


# What a grid will cost: from the times of results that are there, else from one small batch of each method.


TRIAL = 16
"""Images of a trial."""
_DATA = {"corruption", "severity", "block", "seed", "order", "limit", "shard", "source_images", "source_split"}
"""Settings that decide which images come, not what one of them costs."""


@dataclass
class Cost:
    """What the cells without a result will take: time in the adapter, without loading and source statistics."""

    cells: int
    done: int
    seconds: float = 0.0
    """Of one worker on this machine."""
    forward: int = 0
    """Images through the network, forwards."""
    backward: int = 0
    """And backwards."""
    sources: dict[str, int] = field(default_factory=lambda: {"results": 0, "trials": 0})
    """How many cells were estimated from times of results, and how many from trials."""

    def words(self) -> str:
        """Return the estimate as a sentence that says what it rests on."""
        if self.done == self.cells:
            return "All results are there."
        bases = {
            "results": "times of results that are there",
            "trials": f"one batch of {TRIAL} images, run just now on the CPU",
        }
        basis = " and ".join(f"{bases[name]} ({n} cells)" for name, n in self.sources.items() if n)
        return (
            f"About {_time(self.seconds)} of one worker ({self.forward:,} images forwards, {self.backward:,} back), "
            f"from {basis}. Loading, training and source statistics are not in it."
        )


@dataclass(frozen=True)
class _Price:
    """Seconds per image, and passes per batch, which are as many as passes of each of its images."""

    seconds: float
    forward: float
    backward: float
    source: str


def estimate_cost(cells: Sequence[Cell], place: Place) -> Cost:
    """Estimate what is left to do of a grid of ``adapt`` cells; nothing is written."""
    store = Store(place.folder)
    found = [store.sound(cell.key) for cell in cells]
    left = [cell for cell, data in zip(cells, found, strict=True) if isinstance(data, Invalid)]
    prices = _known(parse(data) for data in found if not isinstance(data, Invalid))
    sizes: dict[str, int] = {}
    cost = Cost(len(cells), len(cells) - len(left))
    for cell in left:
        config = build(AdaptConfig, cell.config, "a cell")
        domains = len(config.corruption) if isinstance(config.corruption, list) else 1
        group, data = _group(cell), str((config.dataset, domains, config.limit, config.shard))
        if group not in prices:
            prices[group] = _trial(config, place)
        if data not in sizes:
            sizes[data] = stream_of(config, place).num_images
        _add(cost, prices[group], sizes[data])
    return cost


def _add(cost: Cost, price: _Price, images: int) -> None:
    cost.seconds += price.seconds * images
    cost.forward += round(price.forward * images)
    cost.backward += round(price.backward * images)
    cost.sources[price.source] += 1


def _group(cell: Cell) -> str:
    return canonical_json({name: value for name, value in cell.to_dict()["config"].items() if name not in _DATA})


def _known(records: Iterable[Record]) -> dict[str, _Price]:
    groups: dict[str, list[_Price]] = {}
    for record in records:
        found = record.deterministic
        seconds = record.timing["seconds"] / found["n"]
        price = _Price(seconds, *_passes(found["passes"], len(found["trace"])), "results")
        groups.setdefault(_group(record.cell), []).append(price)
    return {group: _mean(prices) for group, prices in groups.items()}


def _mean(prices: list[_Price]) -> _Price:
    seconds, forward, backward = (
        statistics.fmean(getattr(price, name) for price in prices) for name in ("seconds", "forward", "backward")
    )
    return _Price(seconds, forward, backward, prices[0].source)


def _passes(counted: Mapping[str, int], batches: int) -> tuple[float, float]:
    return counted.get("forward", 0) / batches, counted.get("backward", 0) / batches


def _trial(config: AdaptConfig, place: Place) -> _Price:
    """Run one small batch on the CPU, with untrained weights where the cell would train them first."""
    import torch

    import offsupport
    from offsupport.studies.models import MODELS, load_model

    torch.set_num_threads(config.threads)
    few = dataclasses.replace(
        config,
        limit=TRIAL,
        batch_size=min(TRIAL, config.batch_size),
        source_images=min(2 * TRIAL, config.source_images),
        device="cpu",
    )
    built_in = config.model in MODELS
    model = MODELS[config.model].network().eval() if built_in else load_model(config.model, place.folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = offsupport.evaluate(adapter_of(few, model, place), stream_of(few, place), protocol=few.protocol)
    return _Price(result.seconds / result.n, *_passes(result.passes, len(result.sizes)), "trials")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
