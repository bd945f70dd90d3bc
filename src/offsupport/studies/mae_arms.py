"""What Tables 3 and 4 share: the arms, the cells they take, and rows and claims about accuracies."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offsupport import zoo
from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import EXTRA, STANDARD
from offsupport.results.intervals import difference_estimate
from offsupport.results.rows import Claim, Row, below
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.episodes import EpisodeConfig
from offsupport.studies.errors import Part, difference, estimate, parts_of
from offsupport.studies.published import brought
from offsupport.studies.tables import TableOptions

CHOSEN_ON = ("impulse_noise", "snow", "thin_strokes", "occlusion")
"""Shifts of digits for choosing settings; they are not reported. The extra corruptions hardly harm any digit."""
PUBLISHED = tuple(name for name in STANDARD if name not in CHOSEN_ON)
"""The published corruptions that are left."""
SHIFTS = (*PUBLISHED, *EXTRA, "rotation", "thick_strokes", "uniform_noise", "coarse_noise")
"""The shifts of digits that averages are made of."""
APART = ("invert",)
"""Shifts that show what it cannot do: they have columns and claims, and take no part in averages."""
ENOUGH_CLEAN = 0.65
"""Below this clean accuracy of the probe, the joint model is adapted as well."""


@dataclass(frozen=True)
class Scale:
    """How large a grid is, and what it is computed on.

    Args:
        about: One line for people.
        dataset: The corrupted data.
        models: The source model of each regime: ``probe``, ``joint`` and ``finetune``; or one for each of the first
            seeds, after which the regime has none.
        hyper: Hyper-parameters of both methods.
        chosen: Hyper-parameters by regime and method for which ``reproduce tuning-mae`` found better ones than these.
        seeds: Number of seeds; each draws its own images and its own masks.
        limit: Images per corruption and seed, the same for every arm; None for all.
        together: Whether one cell takes all corruptions; else each has its own, so that more may run at once.
        shards: Parts that the images of a corruption are split into, so that still more may run at once.
        device: Where the cells run.
        entropy: Hyper-parameters of the method with entropy steps alone.
        shifts: What the images are put through, at severity 5.
        batch_size: Images per batch.
        alone: Whether entropy steps without reconstruction are run as well.
        adapted: The regimes that are adapted; none: the probe, and the joint model where the probe is weak.
        tuned: The regimes whose settings ``reproduce tuning-mae`` tries; none: those that are adapted.
    """

    about: str
    dataset: str
    models: Mapping[str, str | tuple[str, ...]]
    hyper: Mapping[str, Any]
    seeds: int
    limit: int | None
    chosen: Mapping[tuple[str, str], Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    together: bool = False
    shards: int = 1
    device: str = "cpu"
    entropy: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shifts: Sequence[str] = STANDARD
    batch_size: int = 16
    alone: bool = False
    adapted: Sequence[str] = ()
    tuned: Sequence[str] = ()

    def model(self, regime: str, seed: int) -> str | None:
        """Return the source model of a regime for a seed; None where there is none."""
        found = self.models.get(regime)
        if found is None or isinstance(found, str):
            return found
        return found[seed] if seed < len(found) else None


BATCHES = 32
"""Different images per batch, as in the paper."""
TOGETHER = {"together": True, "steps": 10, "masks": 4 * BATCHES, "optimizer": "adam", "lr": 1e-4}
"""Reconstruction on the digits: all images of a batch, then a reset. ``reproduce tuning-mae`` tries others."""
INFORMATION = {
    "em_loss": "information",
    "em_tune": "norms",
    "optimizers": "separate",
    "em_optimizer": "adam",
    "em_lr": 1e-3,
}
"""The entropy steps there: SHOT's information maximisation by an optimiser of its own."""
_DIGITS = {"probe": "zoo:digits-mae", "joint": "digits-mae-joint", "finetune": "digits-mae-finetune"}
SCALES = {
    "smoke": Scale(
        "64 embedded digits under 13 corruptions in batches of 32, the zoo's autoencoder",
        "digits-c",
        _DIGITS,
        TOGETHER,
        entropy=INFORMATION,
        seeds=1,
        limit=2 * BATCHES,
        shifts=PUBLISHED,
        together=True,
        batch_size=BATCHES,
        alone=True,
    ),
    "digits": Scale(
        "all 599 test digits under 21 shifts and inverted, in batches of 32, three autoencoders",
        "digits-c",
        {
            "probe": (_DIGITS["probe"], "digits-mae-seed1", "digits-mae-seed2"),
            "joint": (_DIGITS["joint"],),
            "finetune": (_DIGITS["finetune"],),
        },
        TOGETHER,
        entropy=INFORMATION,
        seeds=3,
        limit=None,
        shifts=(*SHIFTS, *APART),
        batch_size=BATCHES,
        alone=True,
    ),
    "small": Scale(
        "CIFAR-10-C, 34 random images per corruption for each of three seeds, 10 steps, 32 masks; the zoo's network",
        "cifar10-c",
        {
            "probe": "zoo:cifar10-mae-tiny",
            "joint": "zoo:cifar10-mae-tiny-joint",
            "finetune": "zoo:cifar10-mae-tiny-finetune",
        },
        {"steps": 10, "masks": 32},
        seeds=3,
        limit=34,
        chosen={("probe", "mae-ttt+em"): {"lr": 1.7e-3}},
    ),
}

_JOINT = {"joint": "cifar10-mae-tiny-joint", "larger": "cifar10-mae-small-joint"}
"""The zoo's autoencoders that learned to reconstruct and to classify at once; one that is not there yet is left out."""
_PHOTOGRAPHS = Scale(
    "CIFAR-10-C, 64 random images per corruption in batches of 32 that are put back, 5 steps; the zoo's joint models",
    "cifar10-c",
    {regime: f"zoo:{name}" for regime, name in _JOINT.items() if name in zoo.names()},
    {**TOGETHER, "steps": 5, "masks": 2 * BATCHES},
    entropy=INFORMATION,
    seeds=1,
    limit=64,
    batch_size=BATCHES,
    alone=True,
    adapted=tuple(_JOINT),
    tuned=("larger",),
    chosen={
        ("larger", "mae-ttt"): {"lr": 1e-4},
        ("larger", "mae-ttt+em"): {"lr": 1e-4, "em_lr": 1e-3, "em_tune": "encoder"},
    },
)
_ONLINE = {"online": True, "steps": 1, "masks": 2 * BATCHES, "optimizer": "adam", "lr": 1e-4}
BATCHED = {
    "batches": _PHOTOGRAPHS,
    "online": dataclasses.replace(
        _PHOTOGRAPHS,
        about="the same on 160 images, one step per batch, never put back",
        hyper=_ONLINE,
        limit=160,
        chosen={
            ("larger", "mae-ttt"): {"lr": 3e-4},
            ("larger", "mae-ttt+em"): {"lr": 3e-4, "em_lr": 3e-4, "em_tune": "encoder-and-head"},
        },
    ),
}
"""Photographs in batches of different images, as the digits are (Table 4)."""

ADAPTED = ("probe", "joint", "larger")
"""The regimes that some scale adapts."""
_REGIMES = ("probe", "joint", "finetune")
PAPER = {
    "table3": Scale(
        "ImageNet-C, all images, ViT-L/16, 20 steps, 128 masks, one GPU per worker",
        "imagenet-c",
        {regime: f"imagenet-mae-large-{regime}" for regime in _REGIMES},
        {},
        seeds=1,
        limit=None,
        shards=100,
        device="cuda",
    ),
    "table4": Scale(
        "ImageNet100-C, all images, three seeds, ViT-L/16, 20 steps, 128 masks, one GPU per worker",
        "imagenet100-c",
        {"probe": "imagenet100-mae-large-probe"},
        {},
        seeds=3,
        limit=None,
        shards=10,
        device="cuda",
    ),
}
"""The published set-ups; their models are files that the user brings."""


def scale_of(table: str, scale: str) -> Scale:
    """Return a scale of a table; the models of ``paper`` must be where they are looked for."""
    if scale != "paper":
        return {**SCALES, **BATCHED}[scale]
    found = PAPER[table]
    what = "a masked autoencoder ViT-L/16 with its decoder and a classifier ({})"
    models = {regime: brought(str(name), what.format(regime)) for regime, name in found.models.items()}
    return dataclasses.replace(found, models=models)


def abouts(table: str) -> dict[str, str]:
    """Return a line about each scale of a table."""
    own = BATCHED if table == "table4" else {}
    return {name: scale.about for name, scale in {**SCALES, **own, "paper": PAPER[table]}.items()}


@dataclass(frozen=True)
class Arm:
    """One thing that is compared: a source model and what is done to it at test time.

    Args:
        model: ``probe``, ``joint``, ``finetune``, or ``larger``, which is another joint one.
        em_steps: Entropy steps per iteration; 0 is MAE-TTT, None is no adaptation.
        reconstructs: Whether a reconstruction step goes before them.
    """

    model: str
    em_steps: int | None = None
    reconstructs: bool = True


def arm_cells(scale: Scale, arms: Sequence[Arm], options: TableOptions) -> list[Cell]:
    """Return the cells of these arms: every corruption at severity 5, every seed."""
    corruptions: list[str | list[str]] = [list(scale.shifts)] if scale.together else list(scale.shifts)
    return [
        dataclasses.replace(config_of(scale, arm, corruption, seed), shard=shard).cell()
        for seed in range(options.seeds or scale.seeds)
        for corruption in corruptions
        for arm in arms
        for shard in _shards(scale, arm)
        if scale.model(arm.model, seed)
    ]


def _shards(scale: Scale, arm: Arm) -> list[str | None]:
    """Episodes can be split; a prediction without adaptation is quick enough whole."""
    if scale.shards == 1 or arm.em_steps is None:
        return [None]
    return [f"{number}/{scale.shards}" for number in range(scale.shards)]


def episode_cells(scale: Scale) -> list[Cell]:
    """Return the cell of one episode of the probe, for the report to show; where a GPU is needed, it does without."""
    if scale.device != "cpu" or "probe" not in scale.models:
        return []
    # The figure is of one image: where batches are episodes, that of reconstruction, which needs no company.
    shown = config_of(scale, Arm("probe", 0 if "together" in scale.hyper else 1), "gaussian_noise", seed=0)
    episode = EpisodeConfig(
        dataset=shown.dataset, method=shown.method, corruption="gaussian_noise", hyper=shown.hyper, model=shown.model
    )
    return [episode.cell()]


def method_of(arm: Arm) -> str:
    """Return the method that an arm takes."""
    return {None: "source", 0: "mae-ttt"}.get(arm.em_steps, "mae-ttt+em")


def config_of(scale: Scale, arm: Arm, corruption: str | list[str], seed: int, limit: int | None = None) -> AdaptConfig:
    """Return one cell of an arm; the number of images is the scale's unless given."""
    method, hyper = method_of(arm), {}
    if arm.em_steps is not None:
        entropy = {**scale.entropy, "em_steps": arm.em_steps} if arm.em_steps else {}
        hyper = {**scale.hyper, **entropy, **scale.chosen.get((arm.model, method), {})}
    if not arm.reconstructs:
        hyper["recon_steps"] = 0
    return AdaptConfig(
        dataset=scale.dataset,
        method=method,
        corruption=corruption,
        hyper=hyper,
        device=scale.device,
        model=scale.model(arm.model, seed) or "",
        seed=seed,
        limit=limit or scale.limit,
        batch_size=scale.batch_size,
    )


def adapted_models(scale: Scale) -> list[str]:
    """Return the regimes that are adapted: the probe, as in the paper, and the joint model where the probe is weak."""
    if scale.adapted:
        return [regime for regime in scale.adapted if regime in scale.models]
    probe = str(scale.model("probe", 0))
    name = probe.removeprefix("zoo:")
    known = probe.startswith("zoo:") and name in zoo.names()
    weak = known and zoo.card(name)["test"]["accuracy"] < ENOUGH_CLEAN
    return ["probe", "joint"] if weak else ["probe"]


HARD = 0.1
"""Where the source errs on less, there is little to gain."""
Arms = dict[Arm, dict[str, list[Part]]]
"""For each arm and corruption the results of all seeds."""


def by_arm(records: Sequence[Record]) -> Arms:
    """Sort results by arm and corruption."""
    known = [*SCALES.values(), *BATCHED.values(), *PAPER.values()]
    regimes = {
        name: regime
        for scale in known
        for regime, given in scale.models.items()
        for name in ((given,) if isinstance(given, str) else given)
    }
    found: Arms = {}
    for part in parts_of(records):
        config = part.record.cell.config
        name = config["model"].partition("@")[0]
        regime = regimes[Path(name).stem if name.startswith("file:") else name]
        steps = {"source": None, "mae-ttt": 0}.get(config["method"], config["hyper"].get("em_steps"))
        arm = Arm(regime, steps, config["hyper"].get("recon_steps", 1) > 0)
        found.setdefault(arm, {}).setdefault(part.domain.partition("/")[0], []).append(part)
    return found


def whole(columns: Mapping[str, Sequence[Part]]) -> list[Part]:
    """Return the results on all shifts that averages are made of."""
    return [part for name, parts in columns.items() if name not in APART for part in parts]


def hard(arms: Arms, model: str) -> list[str]:
    """Return the shifts on which the source model errs on more than a tenth of the images."""
    columns = arms.get(Arm(model), {})
    return [name for name, parts in columns.items() if name not in APART and mean_error(parts) > HARD]


def mean_error(parts: Sequence[Part]) -> float:
    """Return the mean over results of the share of wrong predictions; what an estimate says, without its interval."""
    return statistics.fmean(float((~part.images[1]).mean()) for part in parts)


def accuracy_row(method: str, column: str, parts: Sequence[Part], paper: float | None) -> Row:
    """Return the accuracy over parts in percent, its interval, and its deviation over seeds."""
    found = estimate(parts)
    seeds: dict[int, list[Part]] = {}
    for part in parts:
        seeds.setdefault(part.record.cell.config["seed"], []).append(part)
    each = [100 * (1 - estimate(own).value) for own in seeds.values()]
    return Row(
        method=method,
        column=column,
        metric="accuracy",
        unit="percent",
        value=100 * (1 - found.value),
        low=100 * (1 - found.high),
        high=100 * (1 - found.low),
        n=found.n,
        paper=paper,
        deviation=statistics.stdev(each) if len(each) > 1 else None,
        cells=found.cells,
    )


def compare(arms: Arms, better: Arm, worse: Arm, sentence: str, corruption: str | None = None) -> list[Claim]:
    """Hold the claim that one arm errs less than another against the images both saw; nothing where one is missing."""
    shared = _shared(arms, better, worse, corruption)
    ours, theirs = ([part for name in shared for part in arms[arm][name]] for arm in (better, worse))
    return [below(sentence, difference(ours, theirs), _quantity(better, worse))] if shared else []


def compare_shifts(arms: Arms, better: Arm, worse: Arm, sentence: str) -> list[Claim]:
    """Hold the same claim against shifts drawn anew rather than images: whether it is true of shifts like these."""
    shared = _shared(arms, better, worse, None)
    if len(shared) < 2:
        return []
    ours, theirs = ([arms[arm][name] for name in shared] for arm in (better, worse))
    better_errors, worse_errors = (np.array([[mean_error(parts)] for parts in side]) for side in (ours, theirs))
    found = difference_estimate(better_errors, worse_errors)
    parts = [part for side in (ours, theirs) for each in side for part in each]
    cells = tuple(dict.fromkeys(key for part in parts for key in part.cells))
    predictions = sum(len(part.images[0]) for each in ours for part in each)
    counted = dataclasses.replace(found, n=predictions, cells=cells)
    return [below(f"{sentence}, over shifts drawn anew", counted, _quantity(better, worse))]


def _shared(arms: Arms, better: Arm, worse: Arm, corruption: str | None) -> list[str]:
    """Return the shifts that both arms have: one, or all that averages are made of."""
    if better not in arms or worse not in arms:
        return []
    wanted = [name for name in arms[better] if name == corruption or (corruption is None and name not in APART)]
    return [name for name in wanted if name in arms[worse]]


def _quantity(better: Arm, worse: Arm) -> str:
    return f"error({_words(better)}) - error({_words(worse)})"


def _words(arm: Arm) -> str:
    adapted = {None: "no adaptation", 0: "mae-ttt"}.get(arm.em_steps, f"mae-ttt+em, {arm.em_steps} steps")
    return f"{arm.model}, {adapted}" + ("" if arm.reconstructs else ", no reconstruction")
