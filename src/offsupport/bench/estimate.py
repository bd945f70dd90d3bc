"""What a grid will cost: from the times of results that are there, else from one small batch of each method."""

from __future__ import annotations

import dataclasses
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from offsupport.bench.adapt_cell import AdaptConfig, adapter_of, stream_of
from offsupport.bench.cell import Cell, Place
from offsupport.bench.store import Invalid, Record, Store, parse
from offsupport.core.config import build
from offsupport.core.files import canonical_json

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
    from offsupport.bench.models import MODELS, load_model

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
