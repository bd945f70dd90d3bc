"""Regret: what a method costs against the best one in hindsight, and against doing nothing, whatever the stream is.

Nobody knows beforehand what will come. So every method meets the same conditions: clean images and corruptions, in
random order, sorted by label and in bursts, one at a time and many, mixed, changing, short, and with an attacker's
images among them. A covering design, not the full product: every level of every factor occurs, and pairs of those that
go wrong together. *Regret* is the error less that of the method that was best in the same condition, *harm* the error
less that of the source model. Beside them stands what the monitor said without labels, and whether that was true.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, make_cell
from offsupport.bench.store import Record, versions
from offsupport.core.errors import ConfigError, FileError, SourceStatsError, nearest
from offsupport.core.files import canonical_json, file_lock, sha256_bytes
from offsupport.core.seeds import derive_seed
from offsupport.data import STANDARD
from offsupport.functional import wilson
from offsupport.results.correctness import pack
from offsupport.results.intervals import Estimate, mean_estimate
from offsupport.results.rows import Claim, Listing, Row, at_least, below, shifted
from offsupport.studies.adaptation import (
    SOURCE_BATCH,
    AdaptConfig,
    Images,
    few_settings,
    prepare_adapt,
    provenance_of,
    stats_of,
)
from offsupport.studies.errors import Part, difference
from offsupport.studies.models import pinned, source_model, unpinned
from offsupport.studies.ours.poison import Attack, Attacker, PoisonConfig, attacked_alike
from offsupport.studies.paper.fig3 import SUPERVISED
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from offsupport.data import Stream
    from offsupport.data.order import Integers
    from offsupport.data.spec import Stage, StreamSpec
    from offsupport.engine import SourceStats
    from offsupport.methods import Adapter
    from offsupport.monitor import Estimate as Judgement
    from offsupport.monitor import Interval

METHODS = ("source", "bn", "tent", "shot", "eata", "minimal", "auto")
"""What runs by default, as far as it is registered; every other method takes ``--methods``."""
SETTLED = 200
"""Images after which a stream has settled: one at a time and many at once are compared on the rest."""
BLOCK = 50
"""Images of one point of the error along a stream."""
LOOK = 64
"""Images that are shown to the source model at a time, where only this table watches it."""

STAGE = re.compile(r"clean|[\w-]+/\d{1,2}", re.ASCII)
"""What a stream visits."""
MOST_CYCLES = 10_000
"""A stream does not visit its stages more often."""

# What a cell computes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegretConfig(Images):
    """Everything the result of a method under one condition depends on."""

    method: str
    """Name of the method."""
    condition: str
    """What the condition is called."""
    stages: list[Any] = dataclasses.field(default_factory=lambda: ["clean"])
    """What the stream visits in turn: ``clean``, or a corruption and its severity (``fog/5``)."""
    cycles: int = 1
    """How often it visits them."""
    mixed: bool = False
    """Whether the stages are dealt out image by image instead."""
    episode: int = 0
    """Start again from the source model after so many images, a stage each; 0 for never."""
    attack: Attack = "none"
    """What an attacker sends."""
    share: float = 0.0
    """Which share of every batch is the attacker's."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    preset: str | None = None
    """Named hyper-parameters."""
    seed: int = 0
    """Seed of images, order, attack and the method's own draws."""
    batch_size: int = 128
    """Images per batch."""
    threads: int = 1
    """Threads of the computation."""

    def __post_init__(self) -> None:
        # A cell may come from anybody's file: what no grid of ours says is refused before a stream is made of it.
        if not self.stages or not all(isinstance(name, str) and STAGE.fullmatch(name) for name in self.stages):
            raise ConfigError(f"The stages are {self.stages}.", "Each is 'clean', or like 'fog/5'.")
        for name, least, most in (("cycles", 1, MOST_CYCLES), ("episode", 0, None), ("batch_size", 1, None)):
            if getattr(self, name) < least or (most is not None and getattr(self, name) > most):
                limit = f"at least {least}" if most is None else f"from {least} to {most:,}"
                raise ConfigError(f"{name} is {getattr(self, name)}.", f"It must be {limit}.")

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("regret", dataclasses.replace(self, model=pinned(self.model)))

    def calibration(self) -> AdaptConfig:
        """Return the settings that source statistics depend on: they do not know what stream will come."""
        names = ("dataset", "model", "method", "hyper", "preset", "source_images", "source_split", "threads")
        return AdaptConfig(batch_size=SOURCE_BATCH, **{name: getattr(self, name) for name in names})


def run_regret(config: RegretConfig, place: Place) -> Outcome:
    """Send the stream of a condition through an adapter, and hold it and its monitor against the labels."""
    import torch

    from offsupport.methods import adapt

    torch.set_num_threads(config.threads)
    model = source_model(config.model, place.folder, place.code).eval()
    stream, starts = stream_of_stages(config, place)
    for here, domain in enumerate(stream.domains):
        domain.dataset.images(stream.plan.rows[stream.plan.domain == here])  # at once is quicker than one by one
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        stats = _kept_stats(config, model, place)
        options: dict[str, Any] = {"preset": config.preset, "source": stats, "seed": config.seed}
        adapter = adapt(model, config.method, **options, **config.hyper)
        # An estimate is about a whole stream, and about nobody's crafted images.
        walk = Walk(adapter, _attacker(config, model), watched=not config.episode and config.attack == "none")
        for number, batch in enumerate(stream):
            walk.take(batch.x, batch.y, batch.index, fresh=bool(config.episode) and number in starts)
    measured = {
        "error": 1 - float(np.mean(walk.correct)),
        "n": len(walk.correct),
        "domains": {"stream": walk.scored(), **({"settled": walk.scored(SETTLED)} if len(walk.rows) > SETTLED else {})},
        "trace": [float(1 - np.mean(part)) for part in np.split(walk.correct, range(BLOCK, len(walk.rows), BLOCK))],
        "passes": {way: count / len(walk.correct) for way, count in walk.passes.items()},
        "events": {name: count for name, count in walk.counted().items() if count},
        "estimate": walk.judged() if walk.watched else None,
        "warnings": list(dict.fromkeys(str(each.message) for each in said)),
    }
    spent = {"seconds": walk.seconds, "cpu_seconds": walk.cpu_seconds}
    return Outcome(measured, provenance_of(model, stream, config.limit), spent)


class Walk:
    """An adapter along a stream: which images were right, what it cost, and what the monitor says at the end.

    Passes are counted in images that go through the network, because methods cut batches up and put others together. A
    pass that keeps a graph counts as one backward, too. A method that does not watch the source model itself is watched
    from here, out of its time and its passes.
    """

    def __init__(self, adapter: Adapter, attacker: Attacker | None = None, *, watched: bool = True) -> None:
        from offsupport.monitor import LastAnswers

        self.adapter, self.attacker, self.watched = adapter, attacker, watched
        self.rows: list[int] = []
        self.correct: list[bool] = []
        self.looked_at: list[bool] = []
        self.seconds = self.cpu_seconds = 0.0
        self.passes: Counter[str] = Counter(forward=0, backward=0)
        self._events: Counter[str] = Counter()
        self._memory: dict[str, Tensor] = LastAnswers.initial()
        self._unseen: list[tuple[Tensor, Tensor]] = []
        self._counts = True
        adapter.model.register_forward_hook(self._passed)

    def _passed(self, _: nn.Module, inputs: tuple[Tensor, ...], out: Any) -> None:
        if self._counts:
            kept = len(inputs[0])
            self.passes["forward"] += kept
            self.passes["backward"] += kept if out.requires_grad else 0

    def take(self, x: Tensor, y: Tensor, rows: Tensor, *, fresh: bool) -> None:
        """Predict a batch, after a reset if it begins a stream of its own."""
        if fresh:
            self._events.update(self.adapter.events)
            self.adapter.reset()
        sent, good = (x, slice(None)) if self.attacker is None else self.attacker.mix(x, y)
        monitor = self.adapter.options.monitor
        self.looked_at += [not monitor or self.adapter.watched] * len(rows)
        began = time.perf_counter(), time.process_time()
        logits = self.adapter(sent)[good]
        self.seconds += time.perf_counter() - began[0]
        self.cpu_seconds += time.process_time() - began[1]
        self.rows += rows.tolist()
        self.correct += (logits.argmax(1) == y).tolist()
        if self.watched and not monitor:
            self._unseen.append((x, logits))
            if sum(len(each) for each, _ in self._unseen) >= LOOK:
                self._look()

    def _look(self) -> None:
        """Show the source model what has come since it was last asked."""
        import torch

        x, logits = (torch.cat(parts) for parts in zip(*self._unseen, strict=True))
        self._unseen, self._counts = [], False
        seen = self.adapter.source_view(x)
        self._counts = True
        self._memory.update(self.adapter.answers.add(self._memory, x, logits, *seen))

    def counted(self) -> Counter[str]:
        """Return how often the guard intervened, resets or not."""
        return self._events + Counter(self.adapter.events)

    def scored(self, first: int = 0) -> dict[str, Any]:
        """Return which images were right, from this one of the stream on."""
        return {"images": pack(self.rows[first:], self.correct[first:])}

    def judged(self) -> dict[str, Any]:
        """Return what can be said without labels of the last images looked at, and which of them were right."""
        if self._unseen:
            self._look()
        watches = self.adapter.options.monitor
        found: Judgement = self.adapter.estimate() if watches else self.adapter.answers.estimate(self._memory)
        last = [place for place, looked in enumerate(self.looked_at) if looked][-found.n :]
        spans: dict[str, Interval | None] = {"source": found.source, "adapted": found.adapted}
        return {
            **{name: None if span is None else [span.value, span.low, span.high] for name, span in spans.items()},
            "n": found.n,
            "agreement": found.agreement,
            "shift": found.shift,
            "order": found.order,
            "verdict": found.verdict,
            "images": pack([self.rows[place] for place in last], [self.correct[place] for place in last]),
        }


def stream_of_stages(config: RegretConfig, place: Place) -> tuple[Stream, set[int]]:
    """Open the stream of a condition; also return the batches with which a visit to a stage begins.

    Every image comes once. With the same seed, conditions of the same length have the same images, and those of the
    same stages and order have them in the same order, whatever the size of a batch.
    """
    from offsupport.data.catalog import Access
    from offsupport.data.corrupted import Corrupted
    from offsupport.data.order import Plan, permutation
    from offsupport.data.remembered import Remembered
    from offsupport.data.streams import Domain, Stream

    stages, spec = _spec_of(config)
    access = Access(spec, place.data)
    opened = [access.open(stage.corruption, stage.severity) for stage in stages]
    sets = [Remembered(each) if isinstance(each, Corrupted) else each for each in opened]
    domains = [Domain(stage, each) for stage, each in zip(stages, sets, strict=True)]
    labels = domains[0].dataset.labels
    count = min(config.limit or len(labels), len(labels))
    rows = np.random.default_rng(derive_seed("regret", config.seed)).permutation(len(labels))[:count]
    rng = np.random.default_rng(derive_seed("regret order", config.seed, *config.stages))
    places = {stage.name: place for place, stage in enumerate(stages)}
    plans = []
    for here, stage in _visits(config, count):
        own = rows[here][permutation(labels[rows[here]], spec.order, rng)]
        dealt = rng.integers(len(stages), size=len(own)) if config.mixed else np.full(len(own), places[stage])
        plans.append((dealt, own))
    begins = np.cumsum([0, *(len(own) for _, own in plans)]).tolist()
    bounds = [at for begin, end in itertools.pairwise(begins) for at in range(begin, end, config.batch_size)]
    visited, chosen = (np.concatenate(side).astype(np.int64) for side in zip(*plans, strict=True))
    plan = Plan(visited, chosen, np.array([*bounds, begins[-1]], dtype=np.int64))
    return Stream(domains, plan, spec), {bounds.index(begin) for begin in begins[:-1]}


def _spec_of(config: RegretConfig) -> tuple[list[Stage], StreamSpec]:
    """Return the stages of a condition, each once, and what is said of its stream; what no stream can be is refused."""
    from offsupport.data.spec import CLEAN, Stage, StreamSpec

    names = list(dict.fromkeys(config.stages))
    parts = [(name, *name.split("/")) if name != CLEAN else (name, None, 0) for name in names]
    stages = [Stage(name, corruption, int(level)) for name, corruption, level in parts]
    shifts = [stage for stage in stages if stage.corruption]
    known: dict[str, Any] = {
        name: getattr(config, name) for name in ("dataset", "order", "seed", "limit", "batch_size")
    }
    spec = StreamSpec(
        corruptions=tuple(dict.fromkeys(str(stage.corruption) for stage in shifts)),
        severities=tuple(sorted({stage.severity for stage in shifts})),
        schedule="mixed" if config.mixed else "sequence",
        **known,
    )
    spec.check()
    return stages, spec


def _visits(config: RegretConfig, count: int) -> Iterator[tuple[Integers, str]]:
    """Yield which images each visit has, and what stage it is to."""
    every = np.arange(count)
    if config.mixed:
        yield every, config.stages[0]
    elif config.episode:
        for number, here in enumerate(np.split(every, range(config.episode, count, config.episode))):
            yield here, config.stages[number % len(config.stages)]
    else:
        stages = config.stages * config.cycles
        yield from zip(np.array_split(every, len(stages)), stages, strict=True)


def _attacker(config: RegretConfig, model: nn.Module) -> Attacker | None:
    if config.attack == "none":
        return None
    settings: dict[str, Any] = {
        name: getattr(config, name) for name in ("dataset", "method", "attack", "share", "seed")
    }
    return Attacker(PoisonConfig(**settings), model)


def _kept_stats(config: RegretConfig, model: nn.Module, place: Place) -> SourceStats:
    """Return the source statistics of a method, with labels; those of a network are the same in every condition."""
    from offsupport.engine import SourceStats
    from offsupport.engine.state import model_sha256

    asked = dataclasses.replace(config.calibration(), model=unpinned(config.model))
    about = [versions(), model_sha256(model), dataclasses.asdict(asked)]
    path = place.folder / "source_stats" / f"{sha256_bytes(canonical_json(about).encode())}.safetensors"
    with file_lock(path):
        with contextlib.suppress(FileError, SourceStatsError):  # absent, or damaged
            return SourceStats.load(path)
        made = stats_of(config.calibration(), model, place, labelled=True)
        made.save(path)
    return made


def prepare_regret(configs: Sequence[RegretConfig], place: Place) -> None:
    """Refuse unknown names and missing data before anything runs."""
    prepare_adapt([config.calibration() for config in configs], place)
    widest: dict[str, RegretConfig] = {}
    for config in configs:
        known = widest.setdefault(config.dataset, config)
        widest[config.dataset] = max(known, config, key=lambda each: len(set(each.stages)))
    for config in widest.values():
        stream_of_stages(config, place)


def passes_of_images(measured: Mapping[str, Any]) -> tuple[float, float]:
    """Return what a :class:`Walk` has counted."""
    return measured["passes"]["forward"], measured["passes"]["backward"]


def _few(config: RegretConfig, images: int) -> RegretConfig:
    first: dict[str, Any] = {"stages": config.stages[:1], "cycles": 1, "mixed": False}
    return dataclasses.replace(config, **few_settings(config, images), **first)


_EFFORT = Effort(
    size=lambda config, place: stream_of_stages(config, place)[0].num_images,
    alike=lambda config: attacked_alike(config, "condition", "stages", "cycles", "mixed", "episode"),
    few=_few,
    passes=passes_of_images,
    adaptation=RegretConfig.calibration,
    shared=True,
)
_NAMED_BY = ("method", "condition")
KINDS.register("regret")(Kind(RegretConfig, run_regret, prepare_regret, named_by=_NAMED_BY, effort=_EFFORT))


# The design.


Order = Literal["iid", "sorted", "dirichlet"]
ALL = tuple(f"{name}/5" for name in STANDARD)


@dataclasses.dataclass(frozen=True)
class Condition:
    """One line of the design; what is not said is usual."""

    stages: tuple[str, ...] = ("clean",)
    order: Order = "iid"
    batch_size: int = 128
    limit: int = 1000
    _: dataclasses.KW_ONLY
    cycles: int = 1
    mixed: bool = False
    episode: int = 0
    attack: Attack = "none"
    share: float = 0.0

    @property
    def name(self) -> str:
        """What it is called: data, order, images per batch."""
        words = " > ".join(self.stages).replace("/", " ")
        if self.mixed:
            words = f"mixed {self.stages[0].rpartition('/')[2]}"
        if self.cycles > 1:
            words = f"{len(self.stages)} corruptions x {self.cycles}"
        if self.episode:
            return f"streams of {self.episode}"
        if self.attack != "none":
            words += f" + {100 * self.share:g} % {self.attack}"
        return f"{words}, {self.order}, {self.batch_size}"

    def settings(self) -> dict[str, Any]:
        """Return it as settings of a cell."""
        return {**dataclasses.asdict(self), "stages": list(self.stages), "condition": self.name}


def _core() -> list[Condition]:
    """Return what is run first: every factor, and the combinations that are known to break methods."""
    return [
        Condition(),
        Condition(batch_size=1),
        Condition(order="sorted", batch_size=16),
        Condition(("gaussian_noise/5",)),
        Condition(("gaussian_noise/5",), batch_size=1),
        Condition(("glass_blur/5",), batch_size=16),
        Condition(("fog/5",), "sorted"),
        Condition(("contrast/5",), "dirichlet", 16),
        Condition(("jpeg_compression/2",)),
        Condition(("elastic_transform/2",), "sorted", 16),
        Condition(ALL, batch_size=16, mixed=True),
        Condition(ALL, batch_size=16, limit=2400, cycles=5),
        Condition(("clean", "gaussian_noise/5", "clean"), batch_size=16, limit=1200),
        _short(16),
        Condition(("fog/5",), attack="binary", share=0.05),
    ]


def _short(images: int) -> Condition:
    return Condition(("clean", *ALL), batch_size=min(images, 16), limit=1024, episode=images)


TURNS: tuple[tuple[Order, int], ...] = (
    *(("iid", 128), ("sorted", 16), ("dirichlet", 1), ("iid", 16), ("sorted", 1)),
    *(("dirichlet", 128), ("iid", 1), ("sorted", 128), ("dirichlet", 16)),
)
"""Orders and sizes of batches that corruptions take turns in."""


def _rest() -> list[Condition]:
    """Return the remaining corruptions and severities, each in another order and size of batch, and more changes."""
    known = {condition.stages[0] for condition in _core() if len(condition.stages) == 1}
    left = [f"{name}/{level}" for name in STANDARD for level in (5, 2) if f"{name}/{level}" not in known]
    turns = [Condition((stage,), *TURNS[place % len(TURNS)]) for place, stage in enumerate(left)]
    # One image at a time is held against batches of 128 of the same images.
    twins = [dataclasses.replace(each, batch_size=128) for each in turns if (each.order, each.batch_size) == ("iid", 1)]
    clean = [Condition(order=order, batch_size=size) for order, size in TURNS]
    return [
        *turns,
        *twins,
        *(condition for condition in clean if condition not in _core()),
        Condition(ALL, "sorted", 16, mixed=True),
        Condition(tuple(f"{name}/2" for name in STANDARD), mixed=True),
        Condition(("clean", "fog/5", "clean"), "sorted", 16, 1200),
        Condition(("contrast/5", "gaussian_noise/5", "jpeg_compression/5", "clean"), limit=1200),
        *(_short(images) for images in (1, 4, 64)),
        Condition(batch_size=16, attack="inverted", share=0.05),
        Condition(("gaussian_noise/5",), "sorted", attack="repeat", share=0.05),
    ]


def _photographs() -> list[Condition]:
    """Return fewer and shorter streams: a pass takes ten times as long."""
    return [
        Condition(batch_size=32, limit=500),
        Condition(order="sorted", batch_size=16, limit=500),
        Condition(("gaussian_noise/5",), batch_size=32, limit=500),
        Condition(("gaussian_noise/5",), batch_size=1, limit=500),
        Condition(("contrast/5",), "sorted", 16, 500),
        Condition(("fog/5",), "dirichlet", 16, 500),
        Condition(("jpeg_compression/2",), batch_size=32, limit=500),
        Condition(("clean", "gaussian_noise/5", "clean"), batch_size=16, limit=510),
    ]


def _smoke() -> list[Condition]:
    pair = ("fog/5", "contrast/5")
    return [
        Condition(batch_size=32, limit=256),
        Condition(order="sorted", batch_size=16, limit=256),
        Condition(("gaussian_noise/5",), batch_size=32, limit=256),
        Condition(("gaussian_noise/5",), batch_size=1, limit=256),
        Condition(("jpeg_compression/2",), "dirichlet", 16, 128),
        Condition(pair, batch_size=16, limit=128, mixed=True),
        Condition(pair, batch_size=16, limit=160, cycles=5),
        Condition(("clean", "contrast/5", "clean"), "sorted", 16, 144),
        Condition(("clean", *pair), batch_size=4, limit=96, episode=4),
        Condition(("fog/5",), batch_size=32, limit=128, attack="binary", share=0.05),
    ]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of the table.

    Args:
        model: Its name for cells.
        dataset: The data it meets.
        batch_norm: Whether it has batch statistics; methods that need them are left out elsewhere.
        preset: Hyper-parameters of methods that have such.
        source_split: Where the clean images of the calibration come from.
        source_images: How many they are.
    """

    model: str
    dataset: str = "cifar10-c"
    batch_norm: bool = True
    preset: str | None = "cifar10-small"
    source_split: Literal["train", "held-out"] = "held-out"
    source_images: int = 500


NETWORKS = {
    "supervised": Network(SUPERVISED),
    "joint": Network(MODEL),
    "group-norm": Network("zoo:cifar10-resnet18x0.25-gn", batch_norm=False),
    "vit": Network("zoo:cifar10-mae-tiny-finetune", batch_norm=False),
    "digits": Network("digits-small", "digits-c", preset=None, source_split="train", source_images=128),
    "efficientnet": Network("pip:efficientnet-lite0", "imagenet-folder-c", preset="imagenet", source_split="train"),
}
Part_ = tuple[tuple[str, ...], Callable[[], list[Condition]]]
"""Networks and the conditions they meet."""
PARTS: dict[str, dict[str, Part_]] = {
    "smoke": {"core": (("digits",), _smoke)},
    "small": {
        "core": (("supervised", "joint"), _core),
        "rest": (("supervised", "joint"), _rest),
        "group-norm": (("group-norm",), _core),
        "vit": (("vit",), _core),
    },
    "photographs": {"core": (("efficientnet",), _photographs)},
}
"""What each scale is made of, in the order in which it is run."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: parts, their networks, methods that can run there, conditions."""
    parts = PARTS[scale]
    for part in options.parts or ():
        if part not in parts:
            raise ConfigError(f"regret has no part {part!r} at the scale {scale}.", nearest(part, parts))
    return [
        cell
        for part in options.parts or parts
        for name in parts[part][0]
        for method in _able(NETWORKS[name], options.methods)
        for condition in parts[part][1]()
        for seed in range(options.seeds or 1)
        for cell in [_cell(NETWORKS[name], method, condition, seed)]
    ]


def _able(network: Network, asked: Sequence[str] | None) -> list[str]:
    """Return the methods that a network can be adapted by; ``auto`` as soon as there is one."""
    from offsupport.methods import METHODS as KNOWN

    names = asked or [name for name in METHODS if name in KNOWN]
    return [name for name in names if network.batch_norm or KNOWN[name].info.norm != "batch"]


def _cell(network: Network, method: str, condition: Condition, seed: int) -> Cell:
    from offsupport.methods import METHODS as KNOWN

    return RegretConfig(
        dataset=network.dataset,
        model=network.model,
        method=method,
        preset=network.preset if network.preset in KNOWN[method].presets else None,
        source_images=network.source_images,
        source_split=network.source_split,
        seed=seed,
        **condition.settings(),
    ).cell()


# What came out.


Key = tuple[str, str]
"""A network and a condition."""
Found = dict[Key, dict[str, list[Part]]]
"""Results by network and condition, and by method; one for each seed."""
Pairs = dict[Key, tuple[list[Part], list[Part]]]
"""Results of a method, and those it is held against."""


def by_condition(records: Iterable[Record], domain: str = "stream") -> Found:
    """Sort results by network and condition, and by method."""
    names = {network.model: name for name, network in NETWORKS.items()}
    found: Found = {}
    for record in (record for record in records if record.cell.kind == "regret"):
        config = record.cell.config
        if domain in record.deterministic["domains"]:
            key = names.get(unpinned(config["model"]), config["model"]), config["condition"]
            part = Part(record, domain)
            found.setdefault(key, {}).setdefault(part.method, []).append(part)
    return found


def methods_of(found: Found) -> list[str]:
    """Return the methods that have results."""
    return list(dict.fromkeys(method for own in found.values() for method in own))


def error_of(parts: Sequence[Part]) -> float:
    """Return the mean error over seeds."""
    return float(np.mean([1 - part.images[1].mean() for part in parts]))


def against_best(found: Found, method: str) -> Pairs:
    """Pair the results of a method with those of the method that was best in the same condition, itself included."""
    return {
        key: (own[method], own[min(own, key=lambda each: error_of(own[each]))])
        for key, own in found.items()
        if method in own
    }


def against_source(found: Found, method: str) -> Pairs:
    """Pair the results of a method with those of the source model."""
    return {key: (own[method], own["source"]) for key, own in found.items() if method in own and "source" in own}


def average(pairs: Pairs) -> Estimate:
    """Return the mean difference over conditions; whom a method is held against is settled before images are drawn."""
    ours, theirs = ([part for pair in pairs.values() for part in pair[side]] for side in (0, 1))
    return difference(ours, theirs)


def worst(pairs: Pairs) -> tuple[Key, Estimate]:
    """Return the condition with the largest difference, and that: the interval reaches to the largest bounds of any."""
    each = {key: difference(*pair) for key, pair in pairs.items()}
    where = max(each, key=lambda key: each[key].value)
    low, high = max(one.low for one in each.values()), max(one.high for one in each.values())
    cells = tuple(dict.fromkeys(cell for one in each.values() for cell in one.cells))
    return where, Estimate(each[where].value, low, high, sum(one.n for one in each.values()), cells)


def rows(records: Sequence[Record]) -> list[Row]:
    """Return mean and worst regret and harm of every method, in percentage points of error."""
    found = by_condition(records)
    made = []
    for method in methods_of(found):
        for what, pairs in (("regret", against_best(found, method)), ("harm", against_source(found, method))):
            if pairs:
                made += [
                    _row(method, f"grid/{what}-mean", average(pairs)),
                    _row(method, f"grid/{what}-worst", worst(pairs)[1]),
                ]
    return made


def _row(method: str, column: str, value: Estimate) -> Row:
    return Row(
        method=method,
        column=column,
        metric="error",
        unit="percent",
        value=100 * value.value,
        low=100 * value.low,
        high=100 * value.high,
        n=value.n,
        cells=value.cells,
    )


def summaries(records: Sequence[Record]) -> list[Listing]:
    """Return what a method costs and gains by network, the error in every condition, and how true the estimates are."""
    found = by_condition(records)
    return [_by_network(found), _conditions(found), _estimates(judgements(records))] if found else []


def _by_network(found: Found) -> Listing:
    columns = (
        *("network", "method", "conditions", "error", "mean regret", "worst regret", "regretted most in"),
        *("mean harm", "worst harm", "harmed most in", "harmed by over 1 point in"),
        *("forward passes per image", "backward passes per image", "ms of one core per image"),
    )
    networks = list(dict.fromkeys(network for network, _ in found))
    scopes = {**({"all": networks} if len(networks) > 1 else {}), **{name: [name] for name in networks}}
    lines = []
    for scope, members in scopes.items():
        own = {key: value for key, value in found.items() if key[0] in members}
        lines += [(scope, method, *_line(own, method, named=len(members) > 1)) for method in methods_of(own)]
    return Listing("summary", columns, lines)


def _line(found: Found, method: str, *, named: bool) -> tuple[Any, ...]:
    regret, harm = against_best(found, method), against_source(found, method)
    parts = [part for own in found.values() for part in own.get(method, ())]
    told: list[Any] = []
    for pairs in (regret, harm):
        if pairs:
            where, most = worst(pairs)
            told += [_points(average(pairs).value), _points(most.value), ": ".join(where[not named :])]
        else:
            told += [None, None, None]
    harmed = sum(error_of(ours) - error_of(theirs) > 0.01 for ours, theirs in harm.values())
    cost = [
        float(np.mean([part.record.deterministic["passes"][way] for part in parts])) for way in ("forward", "backward")
    ]
    images = sum(part.record.deterministic["n"] for part in parts)
    seconds = sum(part.record.timing.get("cpu_seconds", 0.0) for part in parts)
    error = _points(float(np.mean([error_of(own[method]) for own in found.values() if method in own])))
    return (len(regret), error, *told, harmed, *(round(each, 2) for each in cost), round(1000 * seconds / images, 2))


def _points(value: float) -> float:
    return round(100 * value, 2)


def _conditions(found: Found) -> Listing:
    methods = methods_of(found)
    lines = []
    for (network, condition), own in found.items():
        images = next(iter(own.values()))[0].record.deterministic["n"]
        errors = [_points(error_of(own[method])) if method in own else None for method in methods]
        lines.append((network, condition, images, *errors))
    return Listing("conditions", ("network", "condition", "images", *methods), lines)


# Estimates without labels, held against the labels.


HARMFUL = 0.03
"""A method that errs so much more than the source model on the last images must be said to harm."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """One stream: what was said of its last images, and what was true."""

    method: str
    kind: str
    """The order of the labels, or ``changing`` where the shift changes along the stream."""
    truth: Mapping[str, float]
    """Accuracy of ``source`` and ``adapted``."""
    said: Mapping[str, Sequence[float] | None]
    """Value and interval of each; None where nothing could be said."""
    verdict: str
    key: str

    @property
    def harmed(self) -> bool:
        """Whether adapting cost more than :data:`HARMFUL`."""
        return self.truth["source"] - self.truth["adapted"] > HARMFUL

    def errors(self) -> list[float]:
        """Return how far off what was said is, of each model of which anything was."""
        return [abs(said[0] - self.truth[name]) for name, said in self.said.items() if said]

    def inside(self) -> list[bool]:
        """Return whether the truth lies in the interval, of each such model."""
        return [said[1] <= self.truth[name] <= said[2] for name, said in self.said.items() if said]


def judgements(records: Sequence[Record]) -> list[Judged]:
    """Return what was said of each stream; the source model's truth is that of its own result on the same images."""
    from offsupport.results.correctness import unpack

    made = []
    for own in by_condition(records).values():
        sources = {part.record.cell.config["seed"]: part.images for part in own.get("source", ())}
        for part in (part for parts in own.values() for part in parts):
            said, config = part.record.deterministic["estimate"], part.record.cell.config
            if said is None or config["seed"] not in sources:
                continue
            rows, right = unpack(said["images"])
            every, source_right = sources[config["seed"]]
            of_source = source_right[np.searchsorted(every, rows)]
            changing = len(config["stages"]) > 1 and not config["mixed"]
            made.append(
                Judged(
                    part.method,
                    "changing" if changing else config["order"],
                    {"source": float(of_source.mean()), "adapted": float(right.mean())},
                    {name: said[name] for name in ("source", "adapted")},
                    said["verdict"],
                    part.record.key,
                )
            )
    return made


def _estimates(judged: Sequence[Judged]) -> Listing:
    columns = (
        *("method", "streams", "how many", "error of source estimate", "error of adapted estimate"),
        *("source covered (%)", "adapted covered (%)", "harmed", "harms said there", "harms said elsewhere"),
    )
    adapting = [each for each in judged if each.method != "source"]
    kinds = list(dict.fromkeys(each.kind for each in judged))
    scopes = {("all", "all"): adapting, **{("all", kind): [e for e in adapting if e.kind == kind] for kind in kinds}}
    for method in dict.fromkeys(each.method for each in judged):
        own = [each for each in judged if each.method == method]
        scopes[method, "all"] = own
        if method == "auto":
            scopes |= {(method, kind): [each for each in own if each.kind == kind] for kind in kinds}
    lines = [(*scope, len(own), *_told(own)) for scope, own in scopes.items() if own]
    return Listing("estimates", columns, lines)


def _told(judged: Sequence[Judged]) -> list[Any]:
    errors, covered = [], []
    for name in ("source", "adapted"):
        own = [(each.truth[name], said) for each in judged if (said := each.said[name])]
        errors.append(_points(float(np.mean([abs(truth - said[0]) for truth, said in own]))) if own else None)
        covered.append(_points(float(np.mean([said[1] <= truth <= said[2] for truth, said in own]))) if own else None)
    harmed = [each.verdict == "harms" for each in judged if each.harmed]
    others = [each.verdict == "harms" for each in judged if not each.harmed]
    return [*errors, *covered, len(harmed), sum(harmed), f"{sum(others)} of {len(others)}"]


# Claims: the goals of the default method, held against what was measured.


REGRET, HARM, SORTED, SINGLE = 0.007, 0.01, 0.01, 0.005
ERRORS = {"iid": 0.03, "sorted": 0.04}
COVERED, NOTICED, FALSELY = 0.9, 0.8, 0.05
ENOUGH = 1000
"""Images of a stream on which a harm of a point can be seen at all."""


def claims(records: Sequence[Record]) -> list[Claim]:
    """Hold the goals against what was measured."""
    found = by_condition(records)
    judged = judgements(records)
    made: list[Claim] = []
    for method in ("auto", "minimal"):
        if any(method in own for own in found.values()):
            made += [*_goals(found, method), *_as_good_alone(records, method)]
    made += _estimate_claims([each for each in judged if each.method == "auto"], "of auto")
    # The source model adapts nothing: all that is said of it is said beside every other method as well.
    return made + _estimate_claims([each for each in judged if each.method != "source"], "of all methods")


def _goals(found: Found, method: str) -> list[Claim]:
    regret, harm = against_best(found, method), against_source(found, method)
    made = [
        below(
            f"the mean regret of {method} is at most {100 * REGRET:g} points",
            shifted(average(regret), REGRET),
            f"mean of error({method}) - error(best), less {100 * REGRET:g}",
        )
    ]
    long = {key: pair for key, pair in harm.items() if pair[0][0].record.deterministic["n"] >= ENOUGH}
    if long:
        where, most = worst(long)
        made.append(
            below(
                f"{method} errs at most {100 * HARM:g} point more than source in every condition of {ENOUGH:,} images",
                shifted(most, HARM),
                f"error({method}) - error(source) in the worst of {len(long)} ({': '.join(where)}), less 1",
            )
        )
    clean = {key: pair for key, pair in harm.items() if key[1].startswith("clean, sorted")}
    if clean:
        made.append(
            below(
                f"{method} errs at most {100 * SORTED:g} point more than source on clean images sorted by label",
                shifted(average(clean), SORTED),
                f"mean of error({method}) - error(source), less {100 * SORTED:g}",
            )
        )
    return made


def _as_good_alone(records: Sequence[Record], method: str) -> list[Claim]:
    """One image at a time against the most at once, where both are there."""
    found = {key: own[method] for key, own in by_condition(records, "settled").items() if method in own}
    pairs: Pairs = {}
    for (network, condition), parts in found.items():
        stem, _, size = condition.rpartition(", ")
        sizes = [int(name.rpartition(", ")[2]) for at, name in found if at == network and name.startswith(f"{stem}, ")]
        if size == "1" and max(sizes) > 1:
            pairs[network, condition] = parts, found[network, f"{stem}, {max(sizes)}"]
    if not pairs:
        return []
    return [
        below(
            f"after {SETTLED} images {method} errs at most {100 * SINGLE:g} points more on single images than on many",
            shifted(average(pairs), SINGLE),
            f"error on single images - error in the largest batches, {len(pairs)} streams, less {100 * SINGLE:g}",
        )
    ]


def _estimate_claims(judged: Sequence[Judged], whose: str) -> list[Claim]:
    made = []
    for kind, limit in ERRORS.items():
        own = [each for each in judged if each.kind == kind and each.errors()]
        if own:
            errors = np.array([[np.mean(each.errors())] for each in own])
            value = dataclasses.replace(mean_estimate(errors), cells=tuple(each.key for each in own))
            sentence = f"estimates {whose} are off by at most {100 * limit:g} points on average on {kind} streams"
            made.append(below(sentence, shifted(value, limit), f"mean of |estimate - truth|, less {100 * limit:g}"))
    known = [each for each in judged if each.inside()]
    if known:
        inside = [flag for each in known for flag in each.inside()]
        sentence = f"intervals {whose} hold the truth in at least {100 * COVERED:g} % of the cases"
        made.append(at_least(sentence, _share(inside, known), COVERED, "share of intervals"))
    for flag, sentence in (
        (
            True,
            f"harm of over {100 * HARMFUL:g} points is noticed in at least {100 * NOTICED:g} % of the streams {whose}",
        ),
        (False, f"harm is called where there is none in at most {100 * FALSELY:g} % of the streams {whose}"),
    ):
        own = [each for each in judged if each.harmed is flag]
        if own:
            said = _share([each.verdict == "harms" for each in own], own)
            made.append(
                at_least(sentence, said, NOTICED, "share of streams")
                if flag
                else below(sentence, shifted(said, FALSELY), f"share of streams, less {100 * FALSELY:g} %")
            )
    return made


def _share(flags: Sequence[bool], judged: Sequence[Judged]) -> Estimate:
    low, high = wilson(sum(flags), len(flags))
    return Estimate(sum(flags) / len(flags), low, high, len(flags), tuple(each.key for each in judged))


register_table(
    Table(
        name="regret",
        title="Regret to the best method in hindsight, and harm against no adaptation, over conditions",
        scales={
            "smoke": "ten conditions on the embedded digits, a small network trained on the spot",
            "small": "CIFAR-10, 1,000 to 2,400 images each; parts: core (15 conditions, the zoo's supervised and joint "
            "models), rest (41 more), group-norm and vit (the core on those models)",
            "photographs": "EfficientNet-Lite0 on photographs of ImageNet's classes, 8 conditions of 500",
        },
        options=frozenset({"methods", "seeds", "parts"}),
        grid=grid,
        rows=rows,
        claims=claims,
        summaries=summaries,
    )
)
