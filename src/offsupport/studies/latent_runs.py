"""A block of runs of one column family of the synthetic tables: draw, fit, predict, compare with the truth."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, but_for, make_cell
from offsupport.core.config import build
from offsupport.core.errors import ConfigError, nearest
from offsupport.latent.base import LatentEstimator
from offsupport.latent.baselines.imsda import Imsda
from offsupport.latent.baselines.only_source import OnlySource
from offsupport.latent.baselines.trimmed import TrimmedNN
from offsupport.latent.baselines.vae import Vae
from offsupport.latent.baselines.vae_slab import ConditionalVae, VaeSlab
from offsupport.latent.extrapolator.dense import FlowConfig
from offsupport.latent.extrapolator.estimator import Extrapolator
from offsupport.latent.inputs import Source
from offsupport.latent.process.draws import Draws, draw, oracle
from offsupport.latent.process.process import Process, Shift, Task, preset

CLASSES: dict[str, type[LatentEstimator]] = {
    "only-source": OnlySource,
    "imsda": Imsda,
    "vae": Vae,
    "vae-slab": VaeSlab,
    "vae-classes": ConditionalVae,
    "trimmed-nn": TrimmedNN,
    "extrapolator": Extrapolator,
    "extrapolator-inferred": Extrapolator,
}
TRANSDUCTIVE = ("imsda", "vae")
FLOWS = ("extrapolator", "extrapolator-inferred")
REFERENCES = ("given-c", "constant")
KL: dict[tuple[str, str, str], float] = {
    ("vae", "classification", "dense"): 0.1,
    ("vae", "classification", "sparse"): 0.1,
    ("vae", "regression", "dense"): 0.01,
    ("vae", "regression", "sparse"): 0.01,
    ("imsda", "classification", "dense"): 0.1,
    ("imsda", "classification", "sparse"): 0.1,
    ("imsda", "regression", "dense"): 0.01,
    ("imsda", "regression", "sparse"): 0.01,
}
"""Weight of the KL term by method, task and shift: the published 0.01 for regression; for classification the one of
0.1, 0.01 and 0.001 with the highest likelihood of held-out source samples (``offsupport reproduce kl-choice``)."""


@dataclass(frozen=True)
class Block:
    """Outcomes of R runs at D distances with T targets each.

    Attributes:
        outcome: (R, D, T) correctness (1 or 0) for classes, squared error for numbers.
        metric: ``accuracy`` or ``mse``, what the mean of the outcomes is.
    """

    seeds: tuple[int, ...]
    distances: tuple[float, ...]
    metric: str
    outcome: np.ndarray[Any, Any]

    def per_run(self) -> np.ndarray[Any, Any]:
        """Return the (R, D) means over the targets of a run."""
        return np.asarray(self.outcome.mean(-1))


def run_block(
    shift: Shift,
    task: Task,
    method: str,
    seeds: Sequence[int],
    distances: Sequence[float],
    *,
    process: str = "table",
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    n_targets: int = 1,
    memory: str | None = None,
) -> Block:
    """Score one method on a block of runs; a run's outcome does not depend on the block it is in.

    Estimators that do not train on targets are fitted once per run for all distances. Results agree to the last bits
    between blocks of different size, but for the order of additions in batched matrix products (relative 1e-4 in
    single precision, so a prediction on the very boundary may differ).

    Args:
        shift: ``dense`` or ``sparse``.
        task: ``classification`` or ``regression``.
        method: One of ``CLASSES``, or a reference: ``given-c`` (the ceiling) or ``constant``.
        seeds: Runs.
        distances: Columns: distances of s_tgt from the origin.
        process: Preset the runs are drawn from.
        changes: Fields of the process to set differently.
        options: Fields of the estimator to set differently.
        n_targets: Targets per run and distance.
        memory: Folder where extrapolators keep their flows; rows that fit the same one share it.
    """
    draws = draw(preset(process, shift, task=task, **(changes or {})), seeds, distances, n_targets=n_targets)
    if method == "given-c":
        predicted: Any = oracle(draws, draws.c_tgt)
    elif method == "constant":
        predicted = torch.full_like(draws.y_tgt, 2.0 if task == "regression" else 0)
    else:
        kept = {"memory": memory} if CLASSES.get(method) is Extrapolator else {}
        estimator = make(method, draws.process, {**kept, **(options or {})})
        predicted = _predict(estimator, draws, method in TRANSDUCTIVE)
    return _compare(draws, torch.as_tensor(predicted))


def held_out_likelihood(
    shift: Shift,
    method: str,
    seeds: Sequence[int],
    distance: float,
    *,
    held_out: int = 2000,
    options: dict[str, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """Return the (R,) mean log-likelihoods of source samples that ``vae`` or ``imsda`` was not fitted to, in nats.

    Args:
        shift: ``dense`` or ``sparse``.
        method: One of ``TRANSDUCTIVE``.
        seeds: Runs.
        distance: Of the one unlabelled target the model is fitted beside.
        held_out: How many source samples per run.
        options: Fields of the estimator to set differently.
    """
    if method not in TRANSDUCTIVE:
        raise ConfigError(f"{method!r} has no likelihood of x.", nearest(method, TRANSDUCTIVE))
    fitted = preset("table", shift).n_source
    draws = draw(preset("table", shift, n_source=fitted + held_out), seeds, [distance])
    estimator = cast("Vae", make(method, draws.process, options or {}))
    estimator.fit(draws.x[:, :fitted], draws.y[:, :fitted], draws.x_tgt[:, 0])
    return np.asarray(estimator.log_likelihood(draws.x[:, fitted:]).mean(1), dtype=np.float64)


def make(method: str, process: Process, options: dict[str, Any]) -> LatentEstimator:
    """Return the estimator of a table row, told what that row may know of the process."""
    if method not in CLASSES:
        raise ConfigError(f"Unknown latent method {method!r}.", nearest(method, [*CLASSES, *REFERENCES]))
    known: dict[str, Any] = {"task": process.task}
    if method in TRANSDUCTIVE or method == "extrapolator":
        known |= {"shift": process.shift, "d_c": process.d_c, "d_s": process.d_s}
    if method in TRANSDUCTIVE:
        known["kl"] = KL[method, process.task, process.shift]
    if method == "vae-classes":
        known |= {"d_c": process.d_c, "d_s": process.d_s}
    if method == "trimmed-nn":
        known["d_s"] = process.d_s
    given = {**known, **options}
    if isinstance(given.get("flow"), dict):  # a cell holds plain values
        given["flow"] = build(FlowConfig, given["flow"], f"the flow of latent method {method!r}")
    return build(CLASSES[method], given, f"latent method {method!r}")


def _predict(estimator: LatentEstimator, draws: Draws, transductive: bool) -> Tensor:
    if transductive:
        return _predict_each(estimator, draws)
    _fit_once(estimator, draws)
    return torch.stack([torch.as_tensor(estimator.predict(column)) for column in draws.x_tgt.unbind(1)], 1)


SIDE_BY_SIDE = 16
"""Fits of targets at several distances that go on together: of few runs a step costs the same for more of them."""


def _predict_each(estimator: LatentEstimator, draws: Draws) -> Tensor:
    """Fit for every column; blocks of few runs take several columns at a time, as runs of their own."""
    runs = len(draws.x)
    columns: list[Tensor] = []
    for some in torch.split(draws.x_tgt, max(1, SIDE_BY_SIDE // runs), 1):
        count = some.shape[1]
        x_tgt = some.transpose(0, 1).flatten(0, 1)
        estimator.fit(draws.x.repeat(count, 1, 1), draws.y.repeat(count, 1), x_tgt)
        columns += torch.split(torch.as_tensor(estimator.predict(x_tgt)), runs)
    return torch.stack(columns, 1)


def _fit_once(estimator: LatentEstimator, draws: Draws) -> None:
    """Fit for all columns; an extrapolator that infers the shift goes without the flow where no column asks for it.

    Fitting the flow is nearly all of the time, and sparse columns rarely need it. But columns decide one by one: where
    all targets together say sparse and some column still says dense, that column gets its flow.
    """
    if not isinstance(estimator, Extrapolator):
        estimator.fit(draws.x, draws.y)
        return
    estimator.fit(draws.x, draws.y, draws.x_tgt.flatten(1, 2) if draws.distances else None)
    left_out = estimator.shift == "auto" and estimator.dense_ is None
    if left_out and any(estimator.needs_flow(column) for column in draws.x_tgt.unbind(1)):
        estimator.fit(draws.x, draws.y)


def _compare(draws: Draws, predicted: Tensor) -> Block:
    if draws.process.task == "classification":
        outcome, metric = (predicted == draws.y_tgt).double(), "accuracy"
    else:
        outcome, metric = (predicted.double() - draws.y_tgt.double()).square(), "mse"
    return Block(draws.seeds, draws.distances, metric, outcome.numpy())


# Cells of kind ``latent``: a block of runs of one estimator on a synthetic process.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Everything the result of one block of synthetic runs depends on."""

    method: str
    """Name of the estimator, or of a reference (``given-c``, ``constant``)."""
    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    distances: list[float]
    """Distances of the target from the origin; one column each."""
    task: Literal["classification", "regression"] = "classification"
    """What is predicted."""
    process: str = "table"
    """Preset of the process."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the process that differ from the preset."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the estimator that differ from its defaults."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 25
    """Runs in the block, with consecutive seeds."""
    targets: int = 1
    """Targets per run and distance. An estimator that trains on its targets trains on all of them together."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("latent", self)


def run_latent(config: LatentConfig, place: Place) -> Outcome:
    """Draw the runs, fit the estimator to each, and score its predictions of the targets."""
    import torch

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    block = run_block(
        config.shift,
        config.task,
        config.method,
        range(config.first, config.first + config.runs),
        config.distances,
        process=config.process,
        changes=config.changes,
        options=config.options,
        n_targets=config.targets,
        memory=str(place.folder / "flows"),
    )
    seconds = time.perf_counter() - started
    measured = {"metric": block.metric, "outcome": block.per_run().tolist()}
    if config.targets > 1:  # to be compared with methods that see the first target alone
        measured["first_target"] = block.outcome[..., 0].tolist()
    return Outcome(measured, {"seeds": [config.first, config.first + config.runs - 1]}, {"seconds": seconds})


# Runs are computed together: one alone would cost nothing like its share, so only results tell what they cost.
BY_RUNS = Effort(size=lambda config, place: config.runs, alike=but_for("first", "runs"))
KINDS.register("latent")(Kind(LatentConfig, run_latent, named_by=("method",), effort=BY_RUNS))


# Cells of kind ``epochs``: what ``vae`` says of its targets after every pass over the source.


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class _WatchedVae(Vae):
    """The same estimator, with its answers for the targets kept after every epoch."""

    SEEDED_AS: ClassVar[str] = "Vae"

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        self.answers_: list[Tensor] = []
        super()._fit(source, x_tgt)

    @torch.no_grad()
    def _after_epoch(self, x_tgt: Tensor) -> None:
        self.answers_.append(self._output(x_tgt).argmax(-1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochsConfig:
    """Everything the answers of one block of runs of ``vae`` depend on, epoch by epoch."""

    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    distances: list[float]
    """Distances of the target from the origin; ``vae`` is fitted anew for each."""
    process: str = "table"
    """Preset of the process."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the process that differ from the preset."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the estimator that differ from its defaults."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 25
    """Runs in the block, with consecutive seeds and one target each."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("epochs", self)


def run_epochs(config: EpochsConfig, place: Place) -> Outcome:
    """Draw the runs, fit ``vae`` to each, and compare what it says after every epoch with the truth."""
    import torch

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    draws = draw(preset(config.process, config.shift, **config.changes), seeds, config.distances)
    known = {"task": "classification", "shift": config.shift, "d_c": draws.process.d_c, "d_s": draws.process.d_s}
    estimator = build(_WatchedVae, {**known, **config.options}, "latent method 'vae'")
    right = []
    for x_tgt, y_tgt in zip(draws.x_tgt.unbind(1), draws.y_tgt.unbind(1), strict=True):
        estimator.fit(draws.x, draws.y, x_tgt)
        right.append((torch.stack(estimator.answers_, -1) == y_tgt[..., None])[:, 0])
    seconds = time.perf_counter() - started
    by_epoch = torch.stack(right, 1).long()  # (R, D, epochs)
    return Outcome({"right": by_epoch.tolist()}, {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("epochs")(Kind(EpochsConfig, run_epochs, effort=BY_RUNS))


# Cells of kind ``likelihood``: how well a model explains held-out source samples. No label of a target is read.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """Everything the likelihoods of one block of synthetic runs depend on."""

    method: str
    """``vae`` or ``imsda``."""
    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the estimator that differ from its defaults."""
    distance: float = 18.0
    """Distance of the target the model is fitted beside."""
    held_out: int = 2000
    """Source samples of a run that the model is not fitted to."""
    first: int = 10_000
    """Seed of the first run."""
    runs: int = 20
    """Runs, with consecutive seeds."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("likelihood", self)


def run_likelihood(config: LikelihoodConfig, place: Place) -> Outcome:
    """Draw the runs, fit the model to each, and average the log-likelihood of the held-out source samples."""
    import torch

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    nats = held_out_likelihood(
        config.shift, config.method, seeds, config.distance, held_out=config.held_out, options=config.options
    )
    seconds = time.perf_counter() - started
    return Outcome({"nats": nats.tolist()}, {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("likelihood")(Kind(LikelihoodConfig, run_likelihood, named_by=("method",), effort=BY_RUNS))


# Cells of kind ``radius``: how far off the support Theorem 1 allows a target to be, run by run.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RadiusConfig:
    """Everything the radii of one block of synthetic runs depend on."""

    shift: Literal["dense", "sparse"]
    """Kind of shift."""
    distance: float = 5.0
    """Distance of the target from the origin; the line to it is where the local radius looks."""
    process: str = "table"
    """Preset of the process."""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the process that differ from the preset."""
    first: int = 0
    """Seed of the first run of the block."""
    runs: int = 25
    """Runs in the block, with consecutive seeds."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("radius", self)


def run_radius(config: RadiusConfig, place: Place) -> Outcome:
    """Draw the runs and measure each way of computing D / (2 J_u) for the first target of each."""
    import torch

    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import preset
    from offsupport.theory.measure import measure
    from offsupport.theory.subject import from_draws

    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    seeds = range(config.first, config.first + config.runs)
    draws = draw(preset(config.process, config.shift, **config.changes), seeds, [config.distance])
    found: dict[str, list[float]] = {}
    for run in range(len(seeds)):
        for radius in measure(from_draws(draws, run=run)).radii:
            found.setdefault(radius.way, []).append(radius.radius)
    seconds = time.perf_counter() - started
    return Outcome({"radius": found}, {"seeds": [seeds[0], seeds[-1]]}, {"seconds": seconds})


KINDS.register("radius")(Kind(RadiusConfig, run_radius, effort=BY_RUNS))
