"""Protocols: every method on every stream that methods are compared on in the literature, with what it costs.

The streams are those of :mod:`offsupport.data.protocols`, shortened where the scale says so. The leaderboard has a line
for each method, protocol and network: error, passes, milliseconds of one core and memory, and the command that measures
it again. A method is on the frontier of a protocol if none that is about as quick errs less. Whether an order of
methods that was printed elsewhere, with other networks and more images, is found again is held against the same images.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, but_for, make_cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.core.processes import forget_peak, peak_since
from offsupport.data import PROTOCOLS
from offsupport.results.correctness import pack
from offsupport.results.intervals import Estimate
from offsupport.results.rows import Claim, Listing, Row, below
from offsupport.studies.adaptation import (
    SOURCE_BATCH,
    AdaptConfig,
    Images,
    adapter_of,
    few_settings,
    prepare_adapt,
    provenance_of,
)
from offsupport.studies.errors import Part, difference, estimate, row_name
from offsupport.studies.models import pinned, source_model, unpinned
from offsupport.studies.ours.regret import NETWORKS, Network, Walk, passes_of_images
from offsupport.studies.tables import Table, TableOptions, register_table

if TYPE_CHECKING:
    from offsupport.data import Stream

METHODS = (
    *("source", "bn", "tent", "shot", "eata", "sar", "deyo", "note", "rotta", "petta", "rdumb", "roid", "cmf", "rpl"),
    *("lame", "t3a", "neo", "minimal", "auto"),
)
"""What runs by default, as far as it is registered: at most about four passes an image; others take ``--methods``."""
FEW_METHODS = ("source", "bn", "tent", "roid", "lame")
"""The same where it must be quick."""

# What a cell computes.


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig(Images):
    """Everything the result of a method under one protocol depends on, the protocol's parameters among them."""

    method: str
    """Name of the method."""
    protocol: str
    """Name of the protocol."""
    reset: Literal["online", "continual"] = "continual"
    """``online`` starts again from the source model in each domain."""
    corruptions: list[Any] = dataclasses.field(default_factory=list)
    """In the order of their visits."""
    severity: int = 5
    """Of the corruptions, or their peak."""
    schedule: Literal["sequence", "mixed", "ramp", "pairs"] = "sequence"
    """How the stream goes through them."""
    visits: int = 1
    """How often."""
    concentration: float | None = None
    """Of the order ``dirichlet``."""
    imbalance: float | None = None
    """How many times as frequent the most frequent class is as the rarest."""
    window: int = 0
    """Past images that fill up a batch."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    preset: str | None = None
    """Named hyper-parameters."""
    seed: int = 0
    """Seed of images, order and the method's own draws."""
    batch_size: int = 200
    """Images per batch."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("protocol", replace(self, model=pinned(self.model)))

    def calibration(self) -> AdaptConfig:
        """Return the settings that source statistics depend on: they do not know what stream will come."""
        names = ("dataset", "model", "method", "hyper", "preset", "source_images", "source_split", "seed", "threads")
        return AdaptConfig(batch_size=SOURCE_BATCH, **{name: getattr(self, name) for name in names})

    def stream(self, place: Place) -> Stream:
        """Open the stream; one that is too short for its protocol is refused."""
        from offsupport import data

        names = ("severity", "schedule", "visits", "imbalance", "seed", "order", "limit", "batch_size")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.concentration is not None:
            options["concentration"] = self.concentration
        made = data.stream(self.dataset, place.data, corruption=self.corruptions, **options)
        PROTOCOLS[self.protocol].require_enough(made)
        return made


def run_protocol(config: ProtocolConfig, place: Place) -> Outcome:
    """Send the stream of a protocol through an adapter, and count what is right and what it costs."""
    import torch

    torch.set_num_threads(config.threads)
    model = source_model(config.model, place.folder, place.code).eval()
    stream = config.stream(place)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        held = forget_peak()
        adapter = adapter_of(config.calibration(), model, place, window=config.window)
        forget_peak()  # making source statistics is not what serving costs
        walk = Walk(adapter, watched=False)
        domains: list[str] = []
        for batch in stream:
            starts = bool(domains) and batch.domain != domains[-1]
            walk.take(batch.x, batch.y, batch.index, fresh=config.reset == "online" and starts)
            domains += [batch.domain] * len(batch.index)
        most = peak_since()
    measured = {
        "error": 1 - float(np.mean(walk.correct)),
        "n": len(walk.correct),
        "domains": _by_domain(walk, domains),
        "passes": {way: count / len(walk.correct) for way, count in walk.passes.items()},
        "events": {name: count for name, count in walk.counted().items() if count},
        "warnings": list(dict.fromkeys(str(each.message) for each in said)),
    }
    spent = {"seconds": walk.seconds, "cpu_seconds": walk.cpu_seconds}
    grown = {} if held is None or most is None else {"grown_bytes": max(0, most - held)}
    return Outcome(measured, provenance_of(model, stream, config.limit), {**spent, **grown})


def _by_domain(walk: Walk, domains: Sequence[str]) -> dict[str, Any]:
    rows, correct, where = np.array(walk.rows), np.array(walk.correct), np.array(domains)
    return {
        name: {
            "error": float(1 - correct[where == name].mean()),
            "n": int((where == name).sum()),
            "images": pack(rows[where == name], correct[where == name]),
        }
        for name in dict.fromkeys(domains)
    }


def prepare_protocol(configs: Sequence[ProtocolConfig], place: Place) -> None:
    """Refuse unknown names, missing data and streams that are too short before anything runs."""
    prepare_adapt([config.calibration() for config in configs], place)
    for config in {(c.dataset, c.protocol, c.limit, c.batch_size): c for c in configs}.values():
        config.stream(place)


_STREAM = ("protocol", "reset", "corruptions", "severity", "schedule", "visits", "concentration", "imbalance", "seed")


def _few(config: ProtocolConfig, images: int) -> ProtocolConfig:
    # What a window adds to each image shows once it is full.
    few = few_settings(config, images + 2 * config.window) | {"batch_size": min(images, config.batch_size)}
    plain: dict[str, Any] = {"protocol": "online", "schedule": "sequence", "visits": 1, "order": "iid"}
    plain |= {"corruptions": config.corruptions[:1], "concentration": None, "imbalance": None}
    return replace(config, **few, **plain)


_EFFORT = Effort(
    size=lambda config, place: config.stream(place).num_images,
    alike=but_for(*_STREAM, "order", "limit", "source_images", "source_split"),
    few=_few,
    passes=passes_of_images,
    adaptation=ProtocolConfig.calibration,
)
_NAMED_BY = ("method", "protocol")
KINDS.register("protocol")(Kind(ProtocolConfig, run_protocol, prepare_protocol, named_by=_NAMED_BY, effort=_EFFORT))


# The design.


@dataclass(frozen=True)
class Piece:
    """A protocol as a scale has it.

    Args:
        protocol: Its name.
        limit: Images of each domain; of pairs, at each point.
        corruptions: Which.
        batch_size: Where it is not the published one.
        network: One of :data:`offsupport.studies.ours.regret.NETWORKS`.
    """

    protocol: str
    limit: int
    corruptions: tuple[str, ...]
    batch_size: int | None = None
    network: str = "supervised"

    def settings(self) -> dict[str, Any]:
        """Return it as settings of a cell."""
        known = PROTOCOLS[self.protocol]
        options = known.settings(self.corruptions, limit=self.limit, batch_size=self.batch_size)
        corruptions = options.pop("corruption")
        return {
            "protocol": self.protocol,
            "reset": known.reset,
            "window": known.window,
            "corruptions": corruptions,
            **options,
        }


OF_EACH_GROUP = ("gaussian_noise", "glass_blur", "fog", "contrast")
"""The corruptions of the small scale: one of each group."""
FEWER = {"gradual": 200, "single": 400, "single-window": 400, "recurring": 100, "ccc": 80, "label-imbalance": 6000}
"""Images of each domain at the small scale where they are not 1,500; the imbalance leaves a quarter of its 6,000."""
_SMOKE = dict.fromkeys(("online", "continual", "mixed", "correlated", "correlated-continual", "sorted"), 128) | {
    "gradual": 32,
    "single": 48,
    "single-window": 48,
    "recurring": 100,
    "ccc": 16,
}
PARTS: dict[str, dict[str, Piece]] = {
    "smoke": {
        name: Piece(name, limit, ("fog", "contrast"), 1 if "single" in name else 32, "digits")
        for name, limit in _SMOKE.items()
    },
    "small": {
        **{name: Piece(name, FEWER.get(name, 1500), OF_EACH_GROUP) for name in PROTOCOLS},
        "sorted-group-norm": Piece("sorted", 1500, OF_EACH_GROUP, network="group-norm"),
    },
}
"""What each scale is made of. Digits have too few images for the imbalance of a hundred to one."""
_DIGITS = Network("zoo:digits-small", "digits-c", preset=None, source_split="train", source_images=128)
_NETWORKS = {**NETWORKS, "digits": _DIGITS}


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: parts, methods that can run on their networks, seeds."""
    parts = PARTS[scale]
    for part in options.parts or ():
        if part not in parts:
            raise ConfigError(f"protocols has no part {part!r} at the scale {scale}.", nearest(part, parts))
    usual = FEW_METHODS if scale == "smoke" else METHODS
    return [
        _cell(parts[part], method, seed)
        for part in options.parts or parts
        for method in _able(_NETWORKS[parts[part].network], options.methods, usual)
        for seed in range(options.seeds or 1)
    ]


def _able(network: Network, asked: Sequence[str] | None, usual: Sequence[str]) -> list[str]:
    """Return the methods that a network can be adapted by."""
    from offsupport.methods import METHODS as KNOWN

    names = asked or [name for name in usual if name in KNOWN]
    return [name for name in names if network.batch_norm or KNOWN[name].info.norm != "batch"]


def _cell(piece: Piece, method: str, seed: int) -> Cell:
    from offsupport.methods import METHODS as KNOWN

    network = _NETWORKS[piece.network]
    return ProtocolConfig(
        dataset=network.dataset,
        model=network.model,
        method=method,
        preset=network.preset if network.preset in KNOWN[method].presets else None,
        source_images=network.source_images,
        source_split=network.source_split,
        seed=seed,
        **piece.settings(),
    ).cell()


# What came out.


Key = tuple[str, str]
"""A network and a protocol."""
Found = dict[Key, dict[str, list[Part]]]
"""Results by network and protocol, and by method: a part for each domain and seed."""


def by_protocol(records: Iterable[Record]) -> Found:
    """Sort results by network and protocol, and by method."""
    names = {network.model: name for name, network in _NETWORKS.items()}
    found: Found = {}
    for record in (record for record in records if record.cell.kind == "protocol"):
        config = record.cell.config
        key = names.get(unpinned(config["model"]), config["model"]), config["protocol"]
        own = found.setdefault(key, {}).setdefault(row_name(config["method"], config["hyper"]), [])
        own += [Part(record, domain) for domain in record.deterministic["domains"]]
    order = list(PROTOCOLS)
    return dict(sorted(found.items(), key=lambda item: order.index(item[0][1])))


def error_of(parts: Sequence[Part]) -> Estimate:
    """Return the error averaged over domains and seeds; an image may come many times, so images are drawn."""
    found = estimate(parts, repeated=True)
    return replace(found, n=sum(len(part.images[0]) for part in parts))


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every method under every protocol, in percent."""
    made = []
    for (network, protocol), own in by_protocol(records).items():
        for method, parts in own.items():
            found = error_of(parts)
            made.append(
                Row(
                    method=method,
                    column=f"{network}/{protocol}",
                    metric="error",
                    unit="percent",
                    value=100 * found.value,
                    low=100 * found.low,
                    high=100 * found.high,
                    n=found.n,
                    cells=found.cells,
                )
            )
    return made


@dataclass(frozen=True)
class Line:
    """One line of the leaderboard."""

    network: str
    protocol: str
    method: str
    error: Estimate
    passes: tuple[float, float]
    """Images forwards and backwards through the network, for each image of the stream."""
    milliseconds: float
    """Of one core, an image."""
    megabytes: float | None
    """That serving took beside the source model; None where the system does not tell."""
    norm: str
    """The norm layers that the method needs, and those of the network."""
    frontier: bool
    """Whether no method that is about as quick errs less."""
    leads: bool
    """Whether it errs least, or by so little more that it could be chance."""
    command: str


def board(records: Sequence[Record]) -> list[Line]:
    """Return the leaderboard, the best method of each protocol and network first."""
    from offsupport.methods import METHODS as KNOWN

    lines = []
    for (network, protocol), own in by_protocol(records).items():
        costs = {method: milliseconds(parts) for method, parts in own.items()}
        errors = {method: error_of(parts) for method, parts in own.items()}
        best = frontier({method: (costs[method], errors[method].value) for method in own})
        ranked = sorted(own, key=lambda name: errors[name].value)
        for method in ranked:
            part, *_ = own[method]
            grown = [p.record.timing["grown_bytes"] for p in own[method] if "grown_bytes" in p.record.timing]
            name = part.record.cell.config["method"]
            needs = KNOWN[name].info.norm if name in KNOWN else "unknown"
            lines.append(
                Line(
                    network,
                    protocol,
                    method,
                    errors[method],
                    _passes(own[method]),
                    costs[method],
                    max(grown) / 1e6 if grown else None,
                    f"{needs}, on {'batch' if _NETWORKS[network].batch_norm else 'group'} norm",
                    method in best,
                    method == ranked[0] or difference(own[method], own[ranked[0]]).low <= 0,
                    command([p.record for p in own[method]]),
                )
            )
    return lines


def milliseconds(parts: Sequence[Part]) -> float:
    """Return the time of one core for an image."""
    own = _records(parts)
    seconds = sum(record.timing["cpu_seconds"] for record in own)
    return float(1000 * seconds / sum(record.deterministic["n"] for record in own))


def _passes(parts: Sequence[Part]) -> tuple[float, float]:
    forward, backward = (
        float(np.mean([record.deterministic["passes"][way] for record in _records(parts)]))
        for way in ("forward", "backward")
    )
    return forward, backward


def _records(parts: Sequence[Part]) -> list[Record]:
    return list({part.record.key: part.record for part in parts}.values())


SAME_TIME = 1.1
"""Times that differ by a smaller factor count as the same: on a busy machine they vary by as much."""


def frontier(points: Mapping[str, tuple[float, float]]) -> set[str]:
    """Return the names whose error no other betters in the same time or less, nor equals in plainly less.

    Example:
        >>> sorted(frontier({"a": (1, 9), "b": (2, 5), "c": (3, 6), "d": (0.95, 10)}))
        ['a', 'b']
    """
    return {
        name
        for name, (cost, error) in points.items()
        if not any(
            (e < error and c <= SAME_TIME * cost) or (e == error and SAME_TIME * c < cost) for c, e in points.values()
        )
    }


def asked(records: Sequence[Record]) -> TableOptions:
    """Return the options that ask for these results alone."""
    configs = [record.cell.config for record in records]
    seeds = 1 + max((config["seed"] for config in configs), default=0)
    return TableOptions(
        methods=tuple(dict.fromkeys(config["method"] for config in configs)),
        parts=tuple(dict.fromkeys(_part(config) for config in configs)),
        seeds=seeds if seeds > 1 else None,
    )


def _part(config: Mapping[str, Any]) -> str:
    """Return the part of its scale that a cell belongs to."""
    model = unpinned(config["model"])
    for name, piece in PARTS[_scale(config)].items():
        if piece.protocol == config["protocol"] and _NETWORKS[piece.network].model == model:
            return name
    return str(config["protocol"])


def _scale(config: Mapping[str, Any]) -> str:
    return "smoke" if config["dataset"] == _DIGITS.dataset else "small"


def command(records: Sequence[Record]) -> str:
    """Return what measures these results again."""
    options, scale = asked(records), _scale(records[0].cell.config)
    words = [f"--scale {scale}", f"--parts {','.join(options.parts or ())}"]
    words += [f"--methods {','.join(options.methods or ())}"]
    words += [f"--seeds {options.seeds}"] if options.seeds else []
    words += ["--data DATA"] if scale != "smoke" else []
    return " ".join(["offsupport reproduce protocols", *words])


def summaries(records: Sequence[Record]) -> list[Listing]:
    """Return the leaderboard, what its streams are, and where a printed order was found again."""
    found = by_protocol(records)
    if not found:
        return []
    lines, orders = board(records), _orders(found)
    return [overview(lines), _leaderboard(lines), *([orders] if orders.lines else []), _streams(found)]


def overview(lines: Sequence[Line]) -> Listing:
    """Return errors with a column for each protocol, the best on average first.

    Averages and places are over the protocols of the network that has most of them, for methods that met all of these.
    """
    by_method: dict[str, dict[Key, Line]] = {}
    for line in lines:
        by_method.setdefault(line.method, {})[line.network, line.protocol] = line
    keys = list(dict.fromkeys((line.network, line.protocol) for line in lines))
    [(usual, _)] = Counter(network for network, _ in keys).most_common(1)
    compared = [key for key in keys if key[0] == usual]
    body: list[tuple[Any, ...]] = []
    for method, own in by_method.items():
        errors = {key: 100 * line.error.value for key, line in own.items()}
        whole = all(key in own for key in compared)
        mean = round(float(np.mean([errors[key] for key in compared])), 1) if whole else None
        rank = round(float(np.mean([_place(own[key], by_method) for key in compared])), 1) if whole else None
        cost = round(float(np.median([line.milliseconds for line in own.values()])), 2)
        body.append((method, mean, rank, cost, *(round(errors[key], 1) if key in errors else None for key in keys)))
    body.sort(key=lambda line: (line[1] is None, line[1] or 0.0, line[0]))
    names = [protocol if network == usual else f"{protocol}, {network}" for network, protocol in keys]
    return Listing("overview", ("method", "mean error, %", "mean rank", "ms per image", *names), body)


def _place(line: Line, by_method: Mapping[str, Mapping[Key, Line]]) -> int:
    """Return the rank of a method among all that met the same protocol; equals share the better one."""
    rivals = (own.get((line.network, line.protocol)) for own in by_method.values())
    return 1 + sum(rival is not None and rival.error.value < line.error.value for rival in rivals)


def _leaderboard(lines: Sequence[Line]) -> Listing:
    columns = (
        *("protocol", "network", "method", "error, %", "95 % interval", "forward", "backward", "ms per image", "MB"),
        *("norm layers", "frontier", "leads", "command"),
    )
    body = [
        (
            line.protocol,
            line.network,
            line.method,
            round(100 * line.error.value, 1),
            f"{100 * line.error.low:.1f} to {100 * line.error.high:.1f}",
            *(round(each, 2) for each in line.passes),
            round(line.milliseconds, 2),
            None if line.megabytes is None else round(line.megabytes),
            line.norm,
            "yes" if line.frontier else "",
            "yes" if line.leads else "",
            line.command,
        )
        for line in lines
    ]
    return Listing("leaderboard", columns, body, filters=("protocol", "network", "ms per image", "norm layers"))


def _streams(found: Found) -> Listing:
    columns = ("protocol", "network", "corruptions", "images", "batch", "reset", "methods")
    lines = []
    for (network, name), own in found.items():
        record = next(iter(own.values()))[0].record
        config = record.cell.config
        reset = "in each domain" if config["reset"] == "online" else "never"
        about = (", ".join(config["corruptions"]), record.deterministic["n"], config["batch_size"], reset)
        lines.append((name, network, *about, ", ".join(own)))
    return Listing("streams", columns, lines)


# Claims: who leads where, and whether a printed order is found again.


_COLUMNS: tuple[Key, ...] = (("supervised", "continual"), ("supervised", "mixed"), ("group-norm", "sorted"))
_PRINTED = {
    "source": (43.5, 43.5, 32.7),
    "bn": (20.4, 33.8, None),
    "tent": (20.0, 44.1, 87.6),
    "eata": (17.9, 28.6, 40.8),
    "sar": (20.4, 33.8, 37.1),
    "cotta": (16.5, 32.5, 44.5),
    "rotta": (19.3, 33.4, 33.7),
    "adacontrast": (18.5, 26.2, 30.5),
    "lame": (64.3, 75.2, 11.3),
    "roid": (16.2, 28.0, 15.9),
}
PRINTED: dict[Key, dict[str, float]] = {
    column: {method: value for method, values in _PRINTED.items() if (value := values[place]) is not None}
    for place, column in enumerate(_COLUMNS)
}
"""Errors in percent on CIFAR-10-C that the authors of ROID print: a WRN-28-10, and a ResNet-26 with group norm, fifteen
corruptions, 10,000 images each. Other networks and more images than here, so that only their order is compared."""


def claims(records: Sequence[Record]) -> list[Claim]:
    """Say who leads under each protocol, and ask of neighbours in a printed order whether they stand so here."""
    made = []
    for key, own in by_protocol(records).items():
        column = "/".join(key)
        if len(own) > 1:
            first, second, *_ = sorted(own, key=lambda name: error_of(own[name]).value)
            made.append(
                below(
                    f"{first} leads on {column}",
                    difference(own[first], own[second]),
                    f"error({first}) - error({second})",
                )
            )
        printed = {method: value for method, value in PRINTED.get(key, {}).items() if method in own}
        for better, worse in itertools.pairwise(sorted(printed, key=lambda name: printed[name])):
            if printed[better] < printed[worse]:
                made.append(
                    below(
                        f"{better} errs less than {worse} on {column}, as printed ({printed[better]} and "
                        f"{printed[worse]})",
                        difference(own[better], own[worse]),
                        f"error({better}) - error({worse})",
                    )
                )
    return made


def _orders(found: Found) -> Listing:
    """Return printed and measured orders side by side, and how many pairs of methods stand the same way in both."""
    columns = ("protocol", "network", "printed order", "measured order", "pairs in the printed order")
    lines = []
    for key, own in found.items():
        printed = {method: value for method, value in PRINTED.get(key, {}).items() if method in own}
        if len(printed) < 2:
            continue
        here = {method: error_of(own[method]).value for method in printed}
        pairs = [pair for pair in itertools.combinations(printed, 2) if printed[pair[0]] != printed[pair[1]]]
        same = sum((printed[a] < printed[b]) == (here[a] < here[b]) for a, b in pairs)
        words = [
            ", ".join(f"{name} {value:.1f}" for name, value in sorted(side.items(), key=lambda item: item[1]))
            for side in (printed, {method: 100 * value for method, value in here.items()})
        ]
        lines.append((key[1], key[0], *words, f"{same} of {len(pairs)}"))
    return Listing("printed_order", columns, lines)


register_table(
    Table(
        name="protocols",
        title="Methods on the protocols of the literature: error, passes, time and memory",
        scales={
            "smoke": "two corruptions of the embedded digits, eleven protocols, five methods",
            "small": "four corruptions of CIFAR-10-C, one of each group; the zoo's supervised model and, sorted, "
            "the one with group norm; 1,500 images of each corruption, 400 one at a time, 100 in each of 20 visits; "
            "parts are protocols",
        },
        options=frozenset({"methods", "seeds", "parts"}),
        grid=grid,
        rows=rows,
        claims=claims,
        summaries=summaries,
        asked=asked,
    )
)
