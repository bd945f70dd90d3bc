"""TTT++: go on with the contrastive task of training, held to the source by the moments of the features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import simclr_views
from offsupport.core.errors import InputError, ModelError
from offsupport.engine.config import MethodInfo, require
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import Sums
from offsupport.engine.statistics import FollowConfig, Following
from offsupport.functional import coral, mean_and_covariance, mean_gap, nt_xent
from offsupport.nn.inspect import capture_input
from offsupport.nn.projected import find_projection

PARTS = ("feature", "projection")
"""What is aligned: the penultimate features, and what the projection head makes of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TttppConfig(FollowConfig):
    """Hyper-parameters of TTT++."""

    temperature: float = 0.5
    """Temperature of the contrast between views."""
    base_temperature: float | None = 0.07
    """The contrast is scaled by temperature over this, as published; None leaves it unscaled."""
    feature_scale: float = 0.05
    """Weight of the alignment of penultimate features."""
    projection_scale: float = 0.2
    """Weight of the alignment of projected features."""
    mean_weight: float = 0.5
    """Weight of the distance of means beside that of covariances."""
    queue: int = 1536
    """Moments are those of the batch and of past features up to this many, once so many have been seen."""
    chance: Literal["rows", "queue"] = "rows"
    """Distances are divided by what chance makes of them between sets as large as those at hand, or as a full queue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("temperature", self.temperature > 0, "above 0")
        require("base_temperature", self.base_temperature is None or self.base_temperature > 0, "above 0")
        require("queue", self.queue >= 0, "at least 0")
        for name in ("feature_scale", "projection_scale", "mean_weight"):
            require(name, getattr(self, name) >= 0, "at least 0")


@register_method(
    MethodInfo(
        name="tttpp",
        summary="Tells views of the batch apart while the moments of its features are held to those of the source.",
        paper="Liu et al. 2021",
        adapts="every layer but the classifier and the projection head",
        scored="after the step, by the statistics of the batch or running ones",
        norm="none",
        source="required",
        needs="a projection head",
        single="no step (contrast needs a batch); batch norm: running statistics blended with the sample's",
        passes="3F 1B",
    ),
    TttppConfig,
)
class Tttpp(Following):
    """One step per batch down the contrast of two views and the distances of moments, in one pass over the stream."""

    config: TttppConfig
    augments: ClassVar[bool] = True
    source_shapes: ClassVar[dict[str, str]] = {
        f"{part}_{name}": shape
        for part, side in zip(PARTS, "DP", strict=True)
        for name, shape in (("mean", side), ("cov", 2 * side), ("coral", ""), ("gap", ""))
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-2, "queue": 1536, "feature_scale": 0.05, "projection_scale": 0.2, "chance": "queue"},
        "cifar100": {"lr": 1e-4, "queue": 2048, "feature_scale": 5.0, "projection_scale": 20.0, "chance": "queue"},
        # No configuration for ImageNet was published: the weights of CIFAR-10 with the smaller step.
        "imagenet": {"lr": 1e-4, "queue": 2048, "feature_scale": 0.05, "projection_scale": 0.2, "chance": "queue"},
        "cifar10-small": {
            "lr": 3.3e-3,
            "queue": 1536,
            "feature_scale": 0.05,
            "projection_scale": 0.2,
            "chance": "queue",
        },
    }

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the encoder; a model without projection head is refused."""
        self.projection()
        return super().trainable()

    def projection(self) -> nn.Module:
        """Return the projection head."""
        found = find_projection(self.model)
        if found is None:
            raise ModelError(
                "The method 'tttpp' goes on with contrastive training, and this model has no projection head.",
                "Train one with its head: offsupport train cifar10-resnet18x0.25-joint, or wrap yours: "
                "offsupport.nn.WithProjection(model, projection). 'ttac' aligns features without such a head.",
            )
        return found

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember past features and projections, and how many of the rows are filled."""
        rows = {part: torch.empty(0) for part in PARTS}
        if self.source is not None:
            means = {part: self.source.tensors[f"{part}_mean"] for part in PARTS}
            rows = {part: mean.new_zeros(self.config.queue, len(mean)) for part, mean in means.items()}
        return super().initial_memory() | rows | {"filled": torch.zeros(())}

    def look(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the features of the batch, and the projections of two views of it."""
        views = torch.cat(simclr_views(x, self.generator))
        projection = self.projection()
        # The views first: the statistics of batch norm follow both passes, and the last one weighs most.
        with self.norm_statistics.using(self.looking), capture_input(self.classifier) as features:
            self.network(views)
            self.network(x)
        return (features[1], *projection(features[0]).chunk(2))

    def loss(self, *seen: Tensor) -> Tensor:
        """Return the contrast of the views plus the weighted distances of moments."""
        z, one, two = seen
        contrast = nt_xent(one, two, self.config.temperature, self.config.base_temperature)
        scales = (self.config.feature_scale, self.config.projection_scale)
        aligned = zip(PARTS, (z, self.projection()(z)), scales, strict=True)
        distances = [scale * self._distance(part, rows) for part, rows, scale in aligned]
        self.memory["filled"] = (self.memory["filled"] + len(z)).clamp(max=self.config.queue)
        return contrast + torch.stack(distances).sum()

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the moments of features and projections, and how far those of equal batches are apart by chance."""
        projection, walks = self.projection(), {part: _Walk() for part in PARTS}
        for z, _ in self.source_features(batches):
            with torch.no_grad():
                walks["feature"].add(z)
                walks["projection"].add(projection(z))
        return {f"{part}_{name}": value for part in PARTS for name, value in walks[part].summary().items()}

    def _distance(self, part: str, rows: Tensor) -> Tensor:
        """Return the distance of the moments of ``rows`` and of past ones from the source's, in units of chance."""
        assert self.source is not None  # noqa: S101 (required by the card of the method)
        known = {name: self.source.tensors[f"{part}_{name}"].to(rows) for name in ("mean", "cov", "coral", "gap")}
        together = self._with_queue(part, rows)
        mean, cov = mean_and_covariance(together)
        size = len(together) if self.config.chance == "rows" else max(self.config.queue, len(rows))
        covariances = coral(known["cov"], cov) / (known["coral"] / size)
        means = mean_gap(known["mean"], mean) / (known["gap"] / size)
        return covariances + self.config.mean_weight * means

    def _with_queue(self, part: str, rows: Tensor) -> Tensor:
        """Return past rows, once there are enough, and these; remember these."""
        past, size = self.memory[part], self.config.queue
        missing = max(size - len(rows), 0)
        together = torch.cat([past[size - missing :], rows])
        self.memory[part] = together[len(together) - size :]
        return together if self.memory["filled"] >= missing else rows


class _Walk:
    """Moments of all batches, and the mean distance of the moments of each later batch from those of the first."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.first: tuple[Tensor, Tensor] | None = None
        self.size = 0
        self.corals: list[Tensor] = []
        self.gaps: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        self.sums.add(rows)
        self.dtype = rows.dtype
        if self.first is None:
            # Batches of another size are left out below: what chance does to moments depends on their number.
            self.size, self.first = len(rows), mean_and_covariance(rows.double())
        elif len(rows) == self.size:
            mean, cov = mean_and_covariance(rows.double())
            self.corals.append(coral(self.first[1], cov))
            self.gaps.append(mean_gap(self.first[0], mean))

    def summary(self) -> dict[str, Tensor]:
        """Return the moments, and the distances by chance between sets of one: between sets of n they are 1/n of it."""
        mean, cov = self.sums.varying_moments()
        lists = {"coral": self.corals, "gap": self.gaps}
        by_chance = {name: self.size * torch.stack(found).mean() for name, found in lists.items() if found}
        if not by_chance or not all(value > 0 for value in by_chance.values()):
            raise InputError(
                "How far source moments vary by chance is measured between batches, and no later one has the size of "
                "the first, more than one image, and other images.",
                "Give at least two such batches, better ten.",
            )
        return {name: value.to(self.dtype) for name, value in ({"mean": mean, "cov": cov} | by_chance).items()}
