"""Poison: what a few bad images among the good ones cost the good ones.

Every batch holds benign images and, scattered among them, images that an attacker put there. Only the benign ones are
scored. Four attacks need no knowledge: constant images, binary noise, inverted images, and one image that the model
gets wrong, again and again. The fifth knows everything: weights, labels and the batch; it moves its own pixels within
[0, 1] until the benign images of the batch are misclassified under the statistics of the whole batch. The sixth is made
against ``minimal``: it knows its source statistics and its state as well, and moves its pixels until the benign images
are misclassified by the statistics at which ``minimal`` would settle if the stream went on like this.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, but_for, make_cell
from offsupport.bench.store import Record
from offsupport.core.seeds import derive_seed
from offsupport.results.correctness import pack
from offsupport.results.rows import Claim, Row, below, shifted
from offsupport.studies.adaptation import (
    OURS,
    AdaptConfig,
    Images,
    adapter_of,
    few_settings,
    prepare_adapt,
    provenance_of,
    stream_of,
)
from offsupport.studies.errors import Part, difference, error_row
from offsupport.studies.models import pinned, source_model
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from offsupport.methods import Adapter
    from offsupport.methods.minimal import Minimal

Attack = Literal["none", "constant", "binary", "inverted", "repeat", "white-box", "adaptive"]
SHARES = (0.05, 0.1)
STRICT = " (not trusted)"
METHODS = ("source", "bn", "tent", "shot", "eata", "sar", "auto", "minimal", f"minimal{STRICT}")
"""Others, ``tesla`` among them, take ``--methods``; with the attacker's images they take minutes a stream."""
AIMED_AT = ("source", "minimal")
"""Who meets the images made against ``minimal``: itself, and the model alone to compare with."""
STEPS, STEP = 10, 0.1
"""Of the attacks that know everything: signed gradient steps, and how far each pixel moves in one."""
CRAFTLESS_COST, CRAFTED_COST = 0.01, 0.02
"""What the defence promises: over the same stream without poison, and over the source model."""
POINTS = {CRAFTLESS_COST: "1 point", CRAFTED_COST: "2 points"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoisonConfig(Images):
    """Everything the benign error of a poisoned stream depends on."""

    method: str
    """Name of the method."""
    attack: Attack = "none"
    """What the attacker sends."""
    share: float = 0.0
    """Which share of every batch is the attacker's."""
    corruption: str | None = None
    """Corruption of the benign images."""
    severity: int = 5
    """Its severity."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    preset: str | None = None
    """Named hyper-parameters."""
    trusted: bool = True
    """Whether the adapter is told that all images can be trusted."""
    seed: int = 0
    """Seed of the order, of the attack's draws and of its places."""
    batch_size: int = 64
    """Benign images per batch."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("poison", dataclasses.replace(self, model=pinned(self.model)))

    def benign(self) -> AdaptConfig:
        """Return the settings of the same stream without an attacker."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return AdaptConfig(**{name: value for name, value in own.items() if name not in ("attack", "share", "trusted")})


def run_poison(config: PoisonConfig, place: Place) -> Outcome:
    """Send the stream with the attacker's images among it, and score the others."""
    import torch

    torch.set_num_threads(config.threads)
    model = source_model(config.model, place.folder).eval()
    stream = stream_of(config.benign(), place)
    adapter = adapter_of(config.benign(), model, place, trusted=config.trusted)
    attacker = Attacker(config, model, planner_of(config, model, place, adapter))
    rows: list[int] = []
    correct: list[bool] = []
    seconds = 0.0
    for batch in stream:
        began = time.perf_counter()
        x = torch.as_tensor(batch.x)
        y = torch.as_tensor(batch.y)
        mixed, good = attacker.mix(x, y)
        found = adapter(mixed)[good].argmax(1)
        rows += [int(i) for i in batch.index]
        correct += (found == y).tolist()
        seconds += time.perf_counter() - began
    domain = config.corruption or "clean"
    measured = {
        "error": 1 - float(np.mean(correct)),
        "n": len(correct),
        "domains": {domain: {"images": pack(rows, correct)}},
        "events": dict(adapter.events),
    }
    return Outcome(measured, provenance_of(model, stream, config.limit), {"seconds": seconds})


def planner_of(config: PoisonConfig, model: nn.Module, place: Place, victim: Adapter) -> Planner | None:
    """Return who makes images against ``minimal``, where the attack is that; whatever the method is that meets them."""
    import copy

    if config.attack != "adaptive":
        return None
    against = dataclasses.replace(config.benign(), method="minimal")
    twin = copy.deepcopy(victim) if config.method == "minimal" else adapter_of(against, model, place)
    return Planner(model, cast("Minimal", twin))


class Attacker:
    """Makes the images of an attack and hides them among the benign ones of a batch."""

    def __init__(self, config: PoisonConfig, model: nn.Module, planner: Planner | None = None) -> None:
        import torch

        self.config, self.model, self.planner = config, model, planner
        self.draw: torch.Generator = torch.Generator().manual_seed(derive_seed("poison", config.seed, config.attack))
        self.wrong: Tensor | None = None
        """The image that is sent again and again, once one was found."""

    def mix(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch with the attacker's images in it, and where the benign ones stand in it."""
        import torch

        share = self.config.share if self.config.attack != "none" else 0.0
        count = round(len(x) * share / (1 - share))
        bad = self.images(x, y, count) if count else x[:0]
        places = torch.randperm(len(x) + len(bad), generator=self.draw)
        mixed = torch.cat([x, bad])[places.argsort()]
        if self.planner is not None:
            self.planner.twin(mixed)  # what it sends, it knows its victim to have counted
        return mixed, places[: len(x)]

    def images(self, x: Tensor, y: Tensor, count: int) -> Tensor:
        """Return the attacker's images for this batch."""
        import torch

        shape = (count, *x.shape[1:])
        if self.config.attack == "constant":
            return torch.rand((count, 1, 1, 1), generator=self.draw).expand(shape).contiguous()
        if self.config.attack == "binary":
            return torch.rand(shape, generator=self.draw).round()
        if self.config.attack == "inverted":
            return 1 - x[torch.randperm(len(x), generator=self.draw)[:count]]
        if self.config.attack == "repeat":
            return self._misclassified(x, y).expand(shape).contiguous()
        if self.planner is not None:
            return self.planner.images(x, y, torch.rand(shape, generator=self.draw))
        return self._crafted(x, y, torch.rand(shape, generator=self.draw))

    def _misclassified(self, x: Tensor, y: Tensor) -> Tensor:
        import torch

        if self.wrong is None:
            with torch.no_grad():
                wrong = (self.model(x).argmax(1) != y).nonzero().flatten()
            self.wrong = x[wrong[:1]] if len(wrong) else x[:1]
        return self.wrong

    def _crafted(self, x: Tensor, y: Tensor, bad: Tensor) -> Tensor:
        """Ascend the loss of the benign images under the statistics of the whole batch."""
        import copy

        import torch
        from torch.nn.functional import cross_entropy

        model = copy.deepcopy(self.model)
        for layer in model.modules():
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                layer.train()
        for _ in range(STEPS):
            bad = bad.detach().requires_grad_()
            loss = cross_entropy(model(torch.cat([x, bad]))[: len(x)], y)
            (gradient,) = torch.autograd.grad(loss, bad)
            bad = (bad + STEP * gradient.sign()).clamp(0, 1)
        return bad.detach()


class Planner:
    """Makes images against ``minimal``: it runs a twin of it, and plans for where the twin would settle."""

    def __init__(self, model: nn.Module, twin: Minimal) -> None:
        import copy

        self.twin = twin
        self.bound = (1.0 if twin.options.trusted else 0.5) * twin.config.clip * twin.reference.spread
        """How far from what is known an image can count, by moment and channel."""
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.layers = open_batch_norm(self.model)
        self.last: Tensor | None = None
        """The images of the last batch: the next ones start from them."""

    def images(self, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Ascend the loss of the benign images by the statistics at which the twin would settle; return the best."""
        import torch

        before = self.twin.snapshot()
        self.twin(x)  # the benign images tell which classes the stream has, and how sure the twin will be
        plan = self._plan(x, y)
        starts: list[Tensor] = [noise, noise.round()]
        if self.last is not None:
            starts.append(torch.cat([self.last, noise])[: len(noise)])
        bad = max(starts, key=lambda start: float(plan(start).detach()))
        best, highest = bad, -math.inf
        for _ in range(STEPS):
            bad = bad.detach().requires_grad_()
            loss = plan(bad)
            if float(loss.detach()) > highest:
                best, highest = bad.detach(), float(loss.detach())
            (gradient,) = torch.autograd.grad(loss, bad)
            bad = (bad + STEP * gradient.sign()).clamp(0, 1)
        self.twin.restore(before)
        self.last = best
        return best

    def _plan(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the loss of the benign images as a function of the others, at the shift where all pulls cancel."""
        import torch
        from torch.nn.functional import cross_entropy

        now, known = self.twin.moved(), self.twin.memory["shift"]
        with torch.no_grad():
            benign = self._pull(x, now)

        def loss(bad: Tensor) -> Tensor:
            settled = known + benign + len(bad) / len(x) * self._pull(bad, now)
            self._normalise_by(self.twin.moved(settled))
            return cross_entropy(self.model(x), y)

        return loss

    def _pull(self, x: Tensor, statistics: Tensor) -> Tensor:
        """Return the mean of how far images count as lying from what the twin knows, (2, channels)."""
        import torch

        self._normalise_by(statistics)
        self.model(x)
        found = torch.cat([layer.seen for layer in self.layers], 2)
        return self._counted(found - (self.twin.reference.clean + self.twin.memory["shift"])[:, None]).mean(1)

    def _counted(self, away: Tensor) -> Tensor:
        """Clip as ``minimal`` does. Gradients come back from behind the bound, but for those that lead further out."""
        bound = self.bound[:, None]
        if away.requires_grad:
            outside = away.detach().sign() * (away.detach().abs() > bound)
            away.register_hook(lambda gradient: gradient * (gradient * outside <= 0))  # type: ignore[no-untyped-call]
        return away + (away.clamp(-bound, bound) - away).detach()

    def _normalise_by(self, statistics: Tensor) -> None:
        import torch

        parts = torch.split(statistics, [len(layer.weight) for layer in self.layers], 1)
        for layer, part in zip(self.layers, parts, strict=True):
            layer.statistics = part


def open_batch_norm(model: nn.Module) -> list[Any]:
    """Replace batch norm by layers that pass gradients on to their statistics, in place; return them in order."""
    import torch
    from torch import nn

    class Open(nn.Module):
        """Batch norm by given ``statistics`` (2, C), which notes the moments of each image, (2, N, C)."""

        def __init__(self, plain: Any) -> None:
            super().__init__()
            self.weight: Tensor = plain.weight
            self.bias: Tensor = plain.bias
            self.eps: float = plain.eps
            self.seen = self.statistics = torch.empty(0)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.flatten(2) if x.dim() > 2 else x[..., None]
            self.seen = torch.stack([rows.mean(2), rows.square().mean(2)])
            beside = (-1, *(1 for _ in x.shape[2:]))
            mean, var = (each.view(beside) for each in self.statistics)
            scale = self.weight.view(beside) * (var + self.eps).rsqrt()
            out: Tensor = (x - mean) * scale + self.bias.view(beside)
            return out

    found = {n: Open(each) for n, each in model.named_modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)}
    for name, layer in found.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer)
    return list(found.values())


def prepare_poison(configs: Sequence[PoisonConfig], place: Place) -> None:
    """Refuse what cannot work before anything runs."""
    prepare_adapt([config.benign() for config in configs], place)
    for config in {config.method: config for config in configs if not config.trusted}.values():
        quick = dataclasses.replace(config.benign(), source_images=0)
        adapter_of(quick, source_model(config.model, place.folder), place, trusted=False)


CRAFTED = ("white-box", "adaptive")
"""Attacks that go through the network themselves."""


def attacked_alike(config: Any, *varied: str) -> dict[str, Any]:
    """Return what cells have in common whose images cost about the same: it hardly matters who sent them."""
    varied = (*varied, "seed", "order", "limit", "source_images", "source_split", "share")
    return {**but_for(*varied)(config), "attack": config.attack if config.attack in CRAFTED else ""}


_EFFORT = Effort(
    size=lambda config, place: stream_of(config.benign(), place).num_images,
    alike=lambda config: attacked_alike(config, "corruption", "severity"),
    few=lambda config, images: dataclasses.replace(config, **few_settings(config, images)),
    adaptation=PoisonConfig.benign,
)
_NAMED_BY = ("method", "attack", "corruption")
KINDS.register("poison")(Kind(PoisonConfig, run_poison, prepare_poison, named_by=_NAMED_BY, effort=_EFFORT))


# The table.


def attacks_on(method: str) -> Iterator[tuple[Attack, float]]:
    """Yield the attacks that a method meets, each with the attacker's share."""
    yield "none", 0.0
    for attack in get_args(Attack)[1:-1]:
        yield from ((attack, share) for share in SHARES)
    if method.removesuffix(STRICT) in AIMED_AT:
        yield "adaptive", SHARES[-1]


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: methods x attacks x shares, on streams that are corrupted and on one that is not."""
    if scale == "smoke":
        fixed: dict[str, Any] = {"dataset": "digits-c", "model": "digits-small", "limit": 192}
        corruptions: tuple[str | None, ...] = ("fog",)
    else:
        fixed = {"dataset": "cifar10-c", "model": MODEL, "preset": "cifar10-small", "limit": 512}
        corruptions = ("gaussian_noise", "fog")
    return [
        PoisonConfig(
            method=method.removesuffix(STRICT),
            trusted=not method.endswith(STRICT),
            attack=attack,
            share=share,
            corruption=corruption,
            seed=seed,
            **fixed,
        ).cell()
        for seed in range(options.seeds or 1)
        for method in options.methods or METHODS
        for corruption in corruptions
        for attack, share in attacks_on(method)
    ]


def by_column(records: Sequence[Record]) -> dict[str, dict[str, list[Part]]]:
    """Sort results by method and attack."""
    found: dict[str, dict[str, list[Part]]] = {}
    for record in records:
        config = record.cell.config
        part = Part(record, config["corruption"] or "clean")
        method = part.method if config["trusted"] else f"{part.method}{STRICT}"
        column = config["attack"] if config["attack"] == "none" else f"{config['attack']}-{100 * config['share']:g}"
        found.setdefault(method, {}).setdefault(f"{part.dataset}/{column}", []).append(part)
    return found


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the benign error of every method under every attack."""
    found = by_column(records)
    return [error_row(method, column, parts, {}) for method, own in found.items() for column, parts in own.items()]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Hold the promises of the defended methods against what was measured."""
    found = by_column(records)
    made = []
    for method in (method for method in found if method.startswith(OURS)):
        own = found[method]
        for column, parts in own.items():
            dataset, _, attack = column.partition("/")
            crafted = attack.startswith(("white-box", "adaptive"))
            baseline, limit = (found.get("source", {}), CRAFTED_COST) if crafted else (own, CRAFTLESS_COST)
            against = baseline.get(f"{dataset}/none")
            if attack == "none" or against is None:
                continue
            than = "the source model without an attacker" if crafted else "itself without an attacker"
            made.append(
                below(
                    f"{method} under {attack} errs at most {POINTS[limit]} more than {than}",
                    shifted(difference(parts, against), limit),
                    f"error({method}, {attack}) - error({'source' if crafted else method}, none) - {100 * limit:g}",
                )
            )
    return made


register_table(
    Table(
        name="poison",
        title="Benign error with an attacker's images in every batch (5 and 10 %)",
        scales={
            "smoke": "192 images of the embedded digits in fog, a small network trained on the spot",
            "small": "512 images each of CIFAR-10-C in noise and in fog, the zoo's joint model",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
