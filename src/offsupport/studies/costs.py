"""What a grid will cost, said before it starts: from times of results that are there, else from small trials.

A cell is made of pieces, most often images, that cost about the same in all cells of a method, a network and a batch
size; its kind knows what has to be the same (:class:`~offsupport.bench.cell.Effort`). What is known of no piece is not
guessed: such cells are counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsupport.bench.cell import KINDS, Cell, Effort, Place
from offsupport.bench.executor import needs_gpu
from offsupport.bench.runs import Run
from offsupport.bench.store import Record
from offsupport.core.config import build
from offsupport.core.errors import ConfigError, FileError, InputError, SourceStatsError
from offsupport.core.files import canonical_json
from offsupport.core.processes import gpus
from offsupport.studies.adaptation import AdaptConfig, clean_images, stats_of, stream_of, takes_statistics
from offsupport.studies.models import MODELS, source_model

if TYPE_CHECKING:
    from torch import Tensor, nn

TRIAL, LEAST = 16, 4
"""Images of a trial, in one batch; and of one where images come one by one."""
SOURCE = (128, 256)
"""Source images of a trial: two numbers tell what each costs, beside what is done once."""
TFLOPS = 30.0
"""What a GPU is taken to sustain, in 1e12 operations a second, where there is none to try."""
BACKWARD = 2
"""Operations of a pass backwards over those of one forwards."""


@dataclass
class Share:
    """What is left to do for one method."""

    cells: int = 0
    done: int = 0
    unknown: int = 0
    """Cells of which nothing is known."""
    core_hours: float = 0.0
    gpu_hours: float = 0.0
    sources: dict[str, int] = field(default_factory=lambda: {"results": 0, "trials": 0})
    """How many cells were estimated from times of results, and how many from trials."""


@dataclass
class Cost:
    """What the cells without a result will take, without reading images and training."""

    cells: int
    done: int
    seconds: float = 0.0
    """In the adapter, of one worker on this machine; on a GPU where a cell needs one."""
    forward: int = 0
    """Images through the network, forwards, where the kind of a cell counts them."""
    backward: int = 0
    """And backwards."""
    sources: dict[str, int] = field(default_factory=lambda: {"results": 0, "trials": 0})
    """How many cells were estimated from times of results, and how many from trials."""
    source_seconds: float = 0.0
    """For source statistics, of one worker, from trials."""
    core_hours: float = 0.0
    """Of cells that compute on the CPU: hours of a worker times its threads, source statistics included."""
    gpu_hours: float = 0.0
    """Of cells that need a GPU, likewise."""
    tflops: float | None = None
    """What a GPU was taken to sustain, in 1e12 operations a second; None where nothing rests on it."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Cells of which nothing is known, by kind."""
    methods: dict[str, Share] = field(default_factory=dict)
    """The same by method."""

    def words(self) -> str:
        """Return the estimate as sentences that say what it rests on."""
        if self.done == self.cells:
            return "All results are there."
        return " ".join([*self._known(), *self._unknown()])

    def _known(self) -> list[str]:
        if not any(self.sources.values()):
            return []
        bases = {
            "results": "times of results that are there",
            "trials": f"trials of up to {TRIAL} images, run just now",
        }
        basis = " and ".join(f"{bases[name]} ({n} cells)" for name, n in self.sources.items() if n)
        hours = {"core-hours": self.core_hours, "GPU-hours": self.gpu_hours}
        amount = " and ".join(f"{_number(value)} {unit}" for unit, value in hours.items() if value) or "no time"
        counted = f" ({self.forward:,} images forwards, {self.backward:,} back)" if self.forward else ""
        said = [f"About {amount}{counted}, from {basis}."]
        if self.source_seconds:
            said.append(f"Of that, source statistics: {_time(self.source_seconds)}, from trials.")
        if self.tflops is not None:
            said.append(
                f"There is no GPU to try: the GPU-hours are operations of one image through the network times the "
                f"passes of a trial on the CPU, at an assumed {self.tflops:g} TFLOP/s (--tflops)."
            )
        return [*said, "Reading and corrupting images, training and reports are not in it."]

    def _unknown(self) -> list[str]:
        if not self.unknown:
            return []
        kinds = ", ".join(f"{count} of kind {kind}" for kind, count in self.unknown.items())
        return [f"Of unknown cost, and not in it: {kinds}; only results tell, and there are none of their like."]


@dataclass(frozen=True)
class _Price:
    """Of one piece."""

    seconds: float
    forward: float
    backward: float
    source: str
    assumed: bool = False
    """Whether the seconds are those of a GPU that nobody has tried."""


def estimate_cost(cells: Sequence[Cell], place: Place, tflops: float = TFLOPS) -> Cost:
    """Estimate what is left to do of a grid; nothing is written.

    Args:
        cells: The grid, of whatever kinds.
        place: The run folder, whose results count as done and tell what others cost; and the data.
        tflops: What a GPU sustains, in 1e12 operations a second, for cells that need one where there is none.
    """
    if not 0 < tflops < float("inf"):
        raise ConfigError(f"A GPU cannot sustain {tflops:g} TFLOP/s.", "Give a positive number.")
    cells = list(dict.fromkeys(cells))
    run = Run(place.folder)
    done = run.status(cells).done
    known = {record.key for record in done}
    cost = Cost(len(cells), len(known))
    with tempfile.TemporaryDirectory() as scratch:  # what trials keep is gone afterwards
        pricing = _Pricing(place, Path(scratch), tflops, _prices([*done, *_others(run)], place))
        for cell in cells:
            share = cost.methods.setdefault(str(cell.config.get("method", cell.kind)), Share())
            share.cells += 1
            if cell.key in known:
                share.done += 1
            else:
                _add(cost, share, cell, pricing)
    return cost


def _add(cost: Cost, share: Share, cell: Cell, pricing: _Pricing) -> None:
    config = build(KINDS[cell.kind].config, cell.config, f"a cell of kind {cell.kind!r}")
    price = pricing.price(cell, config)
    if price is None:
        cost.unknown[cell.kind] = cost.unknown.get(cell.kind, 0) + 1
        share.unknown += 1
        return
    pieces, statistic = pricing.size(cell, config), pricing.statistics(cell, config)
    cost.seconds += price.seconds * pieces
    cost.source_seconds += statistic
    cost.forward += round(price.forward * pieces)
    cost.backward += round(price.backward * pieces)
    if price.assumed:
        cost.tflops = pricing.tflops
    hours = (price.seconds * pieces + statistic) / 3600
    for total in (cost, share):
        total.sources[price.source] += 1
        if needs_gpu(cell):
            total.gpu_hours += hours
        else:
            total.core_hours += hours * config.threads


# What results tell.


def _others(run: Run) -> Iterable[Record]:
    """Return all results of the folder: those of another seed, or method, may tell, too."""
    with contextlib.suppress(FileError):  # no run yet
        return run.status().done
    return ()


def _prices(records: Iterable[Record], place: Place) -> dict[str, _Price]:
    groups: dict[str, dict[str, _Price]] = {}
    for record in records:
        # A kind that is not known here, or a result that says no time.
        with contextlib.suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ConfigError):
            config = build(KINDS[record.cell.kind].config, record.cell.config, "a result")
            price = _price(record.cell.kind, config, record.deterministic, record.timing, place)
            groups.setdefault(_group(record.cell.kind, config), {})[record.key] = price
    return {group: _mean(list(prices.values())) for group, prices in groups.items()}


def _price(kind: str, config: Any, measured: Mapping[str, Any], timing: Mapping[str, Any], place: Place) -> _Price:
    effort = KINDS[kind].effort
    pieces = measured["n"] if "n" in measured else effort.size(config, place)
    seconds = timing["cpu_seconds"] / config.threads if "cpu_seconds" in timing else timing["seconds"]
    return _Price(float(seconds) / pieces, *effort.passes(measured), "results")


def _mean(prices: list[_Price]) -> _Price:
    seconds, forward, backward = (
        statistics.fmean(getattr(price, name) for price in prices) for name in ("seconds", "forward", "backward")
    )
    return _Price(seconds, forward, backward, prices[0].source)


def _group(kind: str, config: Any) -> str:
    return Cell(kind, KINDS[kind].effort.alike(config)).text  # canonical: a file may say 5 where a table says 5.0


# What trials tell.


class _Pricing:
    """Finds out what cells cost, each thing once."""

    def __init__(self, place: Place, scratch: Path, tflops: float, prices: dict[str, _Price]) -> None:
        self.place, self.tflops = dataclasses.replace(place, folder=scratch), tflops
        self._trained = place.folder / "models"
        self._prices: dict[str, _Price | None] = dict(prices)
        self._sizes: dict[str, int] = {}
        self._source: dict[str, Callable[[int], float]] = {}
        self._shared: set[str] = set()

    def price(self, cell: Cell, config: Any) -> _Price | None:
        """Return what a piece costs; None where nobody can tell."""
        group = _group(cell.kind, config)
        if group not in self._prices:
            try:
                self._prices[group] = self._trial(cell, config)
            except (InputError, SourceStatsError):  # so few images are none for this method
                self._prices[group] = None
        return self._prices[group]

    def size(self, cell: Cell, config: Any) -> int:
        """Return of how many pieces a cell is made."""
        beside = ("method", "hyper", "preset", "model", "seed", "threads", "device")
        key = canonical_json([cell.kind, {n: v for n, v in cell.to_dict()["config"].items() if n not in beside}])
        if key not in self._sizes:
            self._sizes[key] = _effort(cell).size(config, self.place)
        return self._sizes[key]

    def statistics(self, cell: Cell, config: Any) -> float:
        """Return the seconds that the source statistics of a cell take, of which cells may have them in common."""
        effort = _effort(cell)
        if effort.adaptation is None or not takes_statistics(inner := effort.adaptation(config)):
            return 0.0
        own = canonical_json(vars(inner))
        if effort.shared and own in self._shared:
            return 0.0
        self._shared.add(own)
        names = ("dataset", "model", "method", "hyper", "preset", "batch_size", "source_split", "threads", "device")
        key = canonical_json([getattr(inner, name) for name in names])
        images = clean_images(inner, self.place).num_images
        if key not in self._source:
            try:
                self._source[key] = self._statistics_trial(inner, images)
            except (InputError, SourceStatsError):  # so few images are none for this method
                self._source[key] = lambda number: 0.0
        return self._source[key](images)

    def _trial(self, cell: Cell, config: Any) -> _Price | None:
        kind, effort = KINDS[cell.kind], _effort(cell)
        if effort.few is None:
            return None
        here = not needs_gpu(cell) or _gpu_there()
        one_by_one = getattr(config, "batch_size", TRIAL)
        # A GPU is not busy with a few images; its first batch also chooses how to compute the others.
        images = 2 * one_by_one if needs_gpu(cell) and here else min(TRIAL, max(LEAST, one_by_one))
        few = effort.few(config, images)
        few = few if here else dataclasses.replace(few, device="cpu")
        self._put_weights(few)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(2 if needs_gpu(cell) and here else 1):
                clock = _Clock()
                outcome = kind.run(few, self.place)
        price = _price(cell.kind, few, outcome.deterministic, outcome.timing, self.place)
        busy = 1.0 if needs_gpu(cell) else clock.busy(few.threads)
        price = dataclasses.replace(price, seconds=price.seconds * busy, source="trials")
        return price if here else self._on_gpu(price, few, effort)

    def _on_gpu(self, price: _Price, few: Any, effort: Effort) -> _Price | None:
        """Return the price on a GPU that is not there, by operations and passes; None where neither is known."""
        if effort.adaptation is None or not price.forward:
            return None
        seconds = self._gpu_seconds(effort.adaptation(few), price.forward, price.backward)
        return dataclasses.replace(price, seconds=seconds, assumed=True)

    def _gpu_seconds(self, inner: AdaptConfig, forward: float, backward: float) -> float:
        operations = _operations(source_model(inner.model, self.place.folder, self.place.code), inner, self.place)
        return operations * (forward + BACKWARD * backward) / (1e12 * self.tflops)

    def _statistics_trial(self, inner: AdaptConfig, images: int) -> Callable[[int], float]:
        """Measure source statistics of two numbers of images; return the seconds by number, in between and beyond."""
        import torch

        here = inner.device != "cuda" or _gpu_there()
        device = inner.device if here else "cpu"
        torch.set_num_threads(inner.threads)
        self._put_weights(inner)
        model = source_model(inner.model, self.place.folder, self.place.code).to(device)
        found: list[tuple[int, float]] = []
        for count in dict.fromkeys(min(each, images) for each in SOURCE):
            few = dataclasses.replace(inner, source_images=count, device=device)
            seconds, forward, backward = _measured_statistics(few, model, self.place)
            found.append((count, seconds if here else self._gpu_seconds(few, forward, backward)))
        (few_images, low), (more_images, high) = found[0], found[-1]
        each = max(0.0, high - low) / (more_images - few_images) if more_images > few_images else 0.0
        return lambda number: high + each * (number - more_images)

    def _put_weights(self, config: Any) -> None:
        """Put weights where a cell would train some first: those the run has, else untrained ones."""
        from offsupport.core.checkpoints import load_tensors, save_tensors

        name = str(getattr(config, "model", ""))
        path = self.place.folder / "models" / f"{name}.safetensors"
        if name not in MODELS or not MODELS[name].kept or path.exists():
            return
        network = MODELS[name].network()
        with contextlib.suppress(FileError, RuntimeError):  # absent, damaged or of another network
            network.load_state_dict(load_tensors(self._trained / path.name)[0])
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, network.state_dict(), {})


class _Clock:
    """Tells time that was computed from time that others had the processor, from here on.

    Only time in user mode counts: a worker's allocator keeps memory that this process gets from the system again and
    again (:data:`offsupport.core.processes.WORKER_VARIABLES`).
    """

    def __init__(self) -> None:
        self._wall, self._user = time.perf_counter(), os.times().user

    def seconds(self) -> float:
        return time.perf_counter() - self._wall

    def busy(self, threads: int) -> float:
        """Return the share of the time that so many threads were computing."""
        used = os.times().user - self._user
        # The system counts in hundredths of a second: shorter than a few of them, it says nothing.
        return min(1.0, used / (threads * self.seconds())) if used > 0.05 else 1.0


def _effort(cell: Cell) -> Effort:
    return KINDS[cell.kind].effort


def _gpu_there() -> bool:
    return bool(gpus())


def _measured_statistics(config: AdaptConfig, model: nn.Module, place: Place) -> tuple[float, int, int]:
    """Make source statistics; return the seconds, and how many images went through the network and back."""
    from offsupport.methods import METHODS

    passed = [0, 0]

    def count(_: nn.Module, inputs: tuple[Tensor, ...], out: Any) -> None:
        passed[0] += len(inputs[0])
        passed[1] += len(inputs[0]) if getattr(out, "requires_grad", False) else 0

    hook, clock = model.register_forward_hook(count), _Clock()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            stats_of(config, model, place, labelled=METHODS[config.method].watches > 1)
    finally:
        hook.remove()
    busy = clock.busy(config.threads) if config.device == "cpu" else 1.0
    return clock.seconds() * busy, passed[0], passed[1]


def _operations(model: nn.Module, config: AdaptConfig, place: Place) -> int:
    """Return the floating-point operations of one image through a network."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    image = torch.as_tensor(next(iter(stream_of(config, place))).x)[:1]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(image)
    return int(counter.get_total_flops())


# Numbers for people.


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
