"""Cells of kind ``adapt``: a model, a method and a stream of images in; errors and per-image correctness out."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, but_for, make_cell
from offsupport.bench.executor import check_device, require_gpus
from offsupport.bench.store import versions
from offsupport.core.errors import ConfigError
from offsupport.core.files import canonical_json
from offsupport.results.correctness import pack
from offsupport.studies.models import pinned, source_model, unpinned

if TYPE_CHECKING:
    from torch import nn

    from offsupport.data import Stream
    from offsupport.engine import SourceStats
    from offsupport.evaluation import Result
    from offsupport.methods import Adapter


UNSAID = {"shard": None, "device": "cpu", "afterwards": 0}
"""Settings that a cell leaves out where they have these values."""
SOURCE_BATCH = 64
"""Source images come in batches of at least this size, however few target images come at once."""
OURS = ("minimal", "auto")
"""Methods of ours: tables give them clean images that the network was not trained on."""
CALIBRATION: dict[str, Any] = {"source_images": 500, "source_split": "held-out"}
"""What tables give such a method, where it is known what the network was not trained on."""
LEAK = "A leak: {method} took its source statistics from the clean twins of the images it is scored on."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Where images come from and which model meets them: what a cell and a data set of a grid have in common."""

    dataset: str
    """Name of the data set (``digits-c``, ``cifar10-c``)."""
    model: str = "digits-small"
    """Name of the source model (``zoo:NAME``, ``file:PATH``), or ``module:function`` where it may run."""
    order: str = "iid"
    """Order of the stream."""
    limit: int | None = None
    """Number of images, drawn at random; None for all."""
    source_images: int = 2000
    """For methods that can use source statistics: so many images at most; 0 for none."""
    source_split: Literal["train", "held-out", "test"] = "train"
    """Where those come from. ``held-out`` are training images that the model's recipe kept back: on those it trained on
    a model is surer than on any others. ``test``, the uncorrupted twins of the stream, is a leak, and every report says
    so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptConfig(Images):
    """Everything the result of one adaptation run depends on."""

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
    seed: int = 0
    """Seed of the stream's order and of the method's random draws."""
    protocol: Literal["online", "continual", "episodic"] = "online"
    """When the adapter is reset."""
    batch_size: int = 128
    """Images per batch."""
    shard: str | None = None
    """``0/4`` for the first of four equal parts of the stream, for methods whose images are episodes of their own."""
    threads: int = 1
    """Threads of the computation."""
    device: str = "cpu"
    """Where it is computed: ``cpu`` or ``cuda``."""
    afterwards: int = 0
    """When the stream is over, the network is asked about so many clean test images; 0 for none."""

    def cell(self) -> Cell:
        """Return the cell of these settings; the hash of the model's weights, where it has any yet, is part of it."""
        whole = make_cell("adapt", dataclasses.replace(self, model=pinned(self.model)))
        settings = {name: value for name, value in whole.config.items() if UNSAID.get(name, ...) != value}
        return Cell(whole.kind, settings)

    def stream_settings(self) -> dict[str, Any]:
        """Return what the stream of images is opened with, but for the folder of the data."""
        names = ("dataset", "corruption", "severity", "block", "order", "seed", "limit", "batch_size")
        return {name: getattr(self, name) for name in names}

    def part(self) -> tuple[int, int]:
        """Return which shard this is, and of how many."""
        number, _, of = (self.shard or "0/1").partition("/")
        if not (number.isdigit() and of.isdigit() and int(number) < int(of)):
            raise ConfigError(f"There is no shard {self.shard!r}.", "Write 0/4, 1/4, 2/4 and 3/4 for four of them.")
        return int(number), int(of)


def run_adapt(config: AdaptConfig, place: Place) -> Outcome:
    """Adapt the model along the stream and score it."""
    import torch

    from offsupport import data
    from offsupport.studies.afterwards import left_behind

    torch.set_num_threads(config.threads)
    if config.device == "cuda":
        require_gpus()
    model = source_model(config.model, place.folder, place.code).to(config.device)
    stream = stream_of(config, place)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        adapter = adapter_of(config, model, place)
        result, kept = _evaluated(adapter, stream, config, place, said)
    remarks = list(dict.fromkeys([*kept, *map(_text, said)]))
    if adapter.source and config.source_split == "test":
        remarks.append(LEAK.format(method=config.method))
    provenance = {
        **provenance_of(model, stream, config.limit),
        "source_images": adapter.source.samples if adapter.source else 0,
        "source_split": config.source_split if adapter.source else None,
    }
    timing = {"seconds": result.seconds, "peak_bytes": result.memory}
    findings = adapter.findings()
    measured = {**_measured(result), "warnings": remarks, **({"findings": findings} if findings else {})}
    if config.afterwards:
        clean = data.stream(config.dataset.removesuffix("-c"), place.data, limit=config.afterwards, batch_size=256)
        measured["afterwards"] = left_behind(adapter, model, clean)
    return Outcome(measured, provenance, timing)


def provenance_of(model: nn.Module, stream: Stream, limit: int | None) -> dict[str, Any]:
    """Return which weights met which images, in which order."""
    from offsupport.engine.state import model_sha256

    about = stream.describe()
    return {
        "weights_sha256": model_sha256(model),
        "data_sha256": about["sha256"],
        "data_source": about["source"],
        "order_sha256": about["order_hash"],
        "images": about["n"],
        "limit": limit,
    }


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


def adapter_of(
    config: AdaptConfig, model: nn.Module, place: Place, *, trusted: bool = True, window: int = 0
) -> Adapter:
    """Wrap the model; a method that can use source statistics gets them from the clean data."""
    from offsupport.methods import METHODS, adapt

    stats = None
    if takes_statistics(config):
        stats = stats_of(config, model, place, labelled=METHODS[config.method].watches > 1)
    options: dict[str, Any] = {"preset": config.preset, "source": stats, "seed": config.seed, "trusted": trusted}
    options |= {"window": window} if window else {}  # a cell may have one among its hyper-parameters
    return adapt(model, config.method, **options, **config.hyper)


def takes_statistics(config: AdaptConfig) -> bool:
    """Return whether an adapter gets source statistics."""
    from offsupport.methods import METHODS

    moments = config.hyper.get("statistics") == "minimal"
    return (moments or METHODS[config.method].info.source != "none") and config.source_images > 0


def our_methods() -> list[str]:
    """Return which of :data:`OURS` there are."""
    from offsupport.methods import METHODS

    return [name for name in OURS if name in METHODS]


def stats_of(config: AdaptConfig, model: nn.Module, place: Place, *, labelled: bool) -> SourceStats:
    """Return the source statistics of a cell's method; with labels, they also calibrate its monitor."""
    from offsupport.methods import source_stats

    images = clean_images(config, place)
    labels = images.domains[0].dataset.labels[images.plan.rows].tolist() if labelled else None
    known = {"dataset": config.dataset.removesuffix("-c"), "split": config.source_split}
    options: dict[str, Any] = {"preset": config.preset, "provenance": known, "labels": labels}
    return source_stats(model, images, config.method, **options, **config.hyper)


def clean_images(config: AdaptConfig, place: Place) -> Stream:
    """Open the images that source statistics are made of."""
    from offsupport import data

    clean, limit, size = config.dataset.removesuffix("-c"), config.source_images, _source_batch(config)
    if config.source_split != "held-out":
        return data.stream(clean, place.data, split=config.source_split, limit=limit, batch_size=size)
    from offsupport.training.recipe import list_recipes, read_recipe
    from offsupport.training.run import held_out_rows

    name = unpinned(config.model).removeprefix("zoo:")
    held_out = read_recipe(name).held_out if name in list_recipes() else 0
    if not held_out:
        raise ConfigError(
            f"No training images are known to have been held out from {config.model}.", "Take source_split: train."
        )
    training = data.load(clean, place.data, split="train")
    rows = held_out_rows(training, held_out)
    return data.stream_arrays(
        training.images(rows), training.labels[rows], classes=training.classes, limit=limit, batch_size=size
    )


def prepare_adapt(configs: Sequence[AdaptConfig], place: Place) -> None:
    """Refuse unknown names, wrong hyper-parameters and missing data before anything runs; train the models."""
    from offsupport.engine.registry import method_config
    from offsupport.methods import METHODS

    for config in configs:
        hyper = method_config(config.method, config.preset, config.hyper)
        if config.part()[1] > 1 and not hyper.independent:
            raise ConfigError(
                f"{config.method} carries state from image to image, so its stream cannot be split into shards.",
                "Leave shard out.",
            )
    # Thousands of cells have a handful of streams and adapters between them: each is tried once.
    for config in _each(configs, ("dataset", "corruption", "severity", "block", "order", "batch_size")):
        stream_of(config, place)
    for config in _each(configs, ("device",)):
        check_device(config.device)
    names = [config.model for config in _each(configs, ("model",))]
    models = {name: source_model(name, place.folder, place.code) for name in names}
    for config in _each(configs, ("model", "method", "preset", "hyper")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            # Where statistics are required, a few images tell whether they can be made.
            few = 2 * _source_batch(config) if METHODS[config.method].info.source == "required" else 0
            few = min(few, config.source_images)
            adapter_of(dataclasses.replace(config, source_images=few, device="cpu"), models[config.model], place)


def _each(configs: Sequence[AdaptConfig], names: Sequence[str]) -> list[AdaptConfig]:
    """Return the first of all settings that agree in these; as JSON, since lists and mappings are among them."""
    found: dict[str, AdaptConfig] = {}
    for config in configs:
        found.setdefault(canonical_json([getattr(config, name) for name in names]), config)
    return list(found.values())


def _source_batch(config: AdaptConfig) -> int:
    # With few target images at a time, the moments of batches as small would be mostly noise.
    return max(config.batch_size, SOURCE_BATCH)


def stream_of(config: AdaptConfig, place: Place) -> Stream:
    """Open the stream of a cell."""
    from offsupport import data

    settings = config.stream_settings()
    whole = data.stream(settings.pop("dataset"), place.data, **settings)
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


# What tells how long a cell will take.


TRIAL_STATISTICS = 128
"""Source images of a trial: with fewer, some methods have nothing to go by."""


def few_settings(config: Any, images: int) -> dict[str, Any]:
    """Return the settings by which a cell of any kind that adapts has so many images, and few for its statistics."""
    source = min(TRIAL_STATISTICS, config.source_images)
    return {"limit": images, "batch_size": min(images, config.batch_size), "source_images": source}


def _few(config: AdaptConfig, images: int) -> AdaptConfig:
    first = config.corruption[0] if isinstance(config.corruption, list) else config.corruption
    few = {**few_settings(config, images), "corruption": first, "shard": None, "afterwards": 0}
    return dataclasses.replace(config, **few)


def _passes_of_batches(measured: Mapping[str, Any]) -> tuple[float, float]:
    """Passes are counted by batch: as many as of each of its images."""
    forward, backward = (measured["passes"].get(way, 0) / len(measured["trace"]) for way in ("forward", "backward"))
    return forward, backward


_STREAM = ("corruption", "severity", "block", "seed", "order", "limit", "shard", "afterwards")
_EFFORT = Effort(
    size=lambda config, place: stream_of(config, place).num_images,
    alike=but_for(*_STREAM, "source_images", "source_split"),
    few=_few,
    passes=_passes_of_batches,
    adaptation=lambda config: config,
)
_NAMED_BY = ("method", "dataset", "corruption")
KINDS.register("adapt")(Kind(AdaptConfig, run_adapt, prepare_adapt, named_by=_NAMED_BY, effort=_EFFORT))
