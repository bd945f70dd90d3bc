"""TTAC: move the features until their Gaussians, one per class and one for all, are those of the source."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from offsupport.core.errors import SourceStatsError
from offsupport.engine.config import MethodInfo, require
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import SourceStats, class_feature_moments
from offsupport.engine.state import Lifecycle
from offsupport.engine.statistics import FollowConfig, Following
from offsupport.functional import (
    Moments,
    as_rows,
    precision,
    symmetric_diagonal_kl,
    symmetric_gaussian_kl,
    update_class_moments,
    update_moments,
)
from offsupport.nn.inspect import capture_input


@dataclasses.dataclass(frozen=True, kw_only=True)
class TtacConfig(FollowConfig):
    """Hyper-parameters of TTAC."""

    lr: float = 1e-2
    """Step size."""
    scale: float = 0.05
    """Weight of the divergences."""
    confidence: float = 0.9
    """A sample speaks for its predicted class when its probability exceeds this."""
    class_min: int = 16
    """A class is aligned once so many of its samples have been trusted."""
    global_length: int = 1280
    """Over how many samples the moments of all features run."""
    class_length: int | None = None
    """Over how many samples the moments of a class run; None is 128 for up to 10 classes and 64 for more."""
    class_prior: int = 0
    """As how many samples the source moments of a class count when its moments start."""
    class_terms: Literal["mean", "sum"] = "mean"
    """Whether the divergences of the classes are divided by the number of classes."""
    class_cov: Literal["auto", "full", "diagonal"] = "auto"
    """Form of the class covariances; ``auto`` is full up to 64 MB, decided when source statistics are made."""
    ridge: float = 1 / 30
    """This share of the largest source (co)variance is added to every variance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("scale", self.scale >= 0, "at least 0")
        require("global_length", self.global_length >= 1, "at least 1")
        require("class_length", self.class_length is None or self.class_length >= 1, "at least 1")
        require("class_prior", self.class_prior >= 0, "at least 0")
        require("ridge", self.ridge > 0, "above 0")


@register_method(
    MethodInfo(
        name="ttac",
        summary="Aligns the Gaussians of the features, of each class and of all, with those of the source.",
        paper="Su et al. 2022",
        adapts="every layer but the classifier",
        scored="after the step, by the statistics of the batch or running ones",
        norm="none",
        source="required",
        single="no step (moments need a batch); batch norm: running statistics blended with the sample's",
        passes="2F 1B",
    ),
    TtacConfig,
)
class Ttac(Following):
    """One step per batch down the symmetric divergences; the form without a queue of past images."""

    config: TtacConfig
    source_shapes: ClassVar[dict[str, str]] = {
        "feature_mean": "D",
        "feature_cov": "DD",
        "class_mean": "KD",
        "class_cov": "KDD|KD",
        "class_count": "K",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-2, "scale": 0.05, "class_length": 128},
        "cifar100": {"lr": 1e-3, "scale": 0.5, "class_length": 64},
        "imagenet": {
            "lr": 1e-3,
            "scale": 0.05,
            "class_length": 64,
            "class_prior": 64,
            "class_terms": "sum",
            "class_cov": "diagonal",
        },
    }
    # Of what was tried on the extra corruptions, this is surest to do no harm (``offsupport reproduce tuning-sc``).
    sparse_defaults: ClassVar[dict[str, Any]] = {"ratio_l": 0.1}

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the moments of all features, from zero, and of each class, from those of the source."""
        names = ("mean", "cov", "count", "class_mean", "class_cov", "class_count")
        if self.source is None:  # while source statistics are made
            return super().initial_memory() | dict.fromkeys(names, torch.empty(0))
        mean, class_mean = self.source.tensors["feature_mean"], self.source.tensors["class_mean"]
        start = Moments.none(len(mean), like=mean)
        prior = class_mean.new_full((len(class_mean),), float(self.config.class_prior))
        class_cov = class_covariances(self.source, self.config.class_cov)
        values = (start.mean, start.cov, start.count, class_mean, class_cov, prior)
        return super().initial_memory() | dict(zip(names, values, strict=True))

    def look(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the features and logits of the batch."""
        with self.norm_statistics.using(self.looking), capture_input(self.classifier) as features:
            logits = self.network(x)
        return as_rows(features[0]), as_rows(logits)

    def loss(self, *seen: Tensor) -> Tensor:
        """Return the weighted divergences of the running moments from those of the source."""
        z, logits = seen
        p, labels = logits.detach().softmax(1).max(1)
        sure = p > self.config.confidence
        return self.config.scale * (self._global_divergence(z) + self._class_divergence(z[sure], labels[sure]))

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the moments of all features, and of those of each predicted class."""
        return class_feature_moments(self.source_features(batches), self.config.class_cov)

    def _global_divergence(self, z: Tensor) -> Tensor:
        before = Moments(self.memory["mean"], self.memory["cov"], self.memory["count"])
        after = update_moments(before, z, self.config.global_length)
        self.memory["mean"], self.memory["cov"], self.memory["count"] = after.mean, after.cov, after.count
        return self._aim.divergence(after)

    def _class_divergence(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the divergences of the classes that occur and have been seen often enough, all at once."""
        before = Moments(self.memory["class_mean"], self.memory["class_cov"], self.memory["class_count"])
        classes = len(before.mean)
        length = self.config.class_length or (128 if classes <= 10 else 64)
        present, after = update_class_moments(before, z, labels, length)
        # Detached, like all memory: gradients go through this batch alone.
        for name, value in (("class_mean", after.mean), ("class_cov", after.cov), ("class_count", after.count)):
            self.memory[name] = self.memory[name].index_copy(0, present, value.detach())
        # A class with fewer than two source images has no covariance to be aligned with.
        ready = (after.count >= self.config.class_min) & (self._aim.class_count[present] > 1)
        terms = self._aim.class_divergences(
            present[ready], Moments(after.mean[ready], after.cov[ready], after.count[ready])
        )
        return terms.sum() / (classes if self.config.class_terms == "mean" else 1)

    @functools.cached_property
    def _aim(self) -> Aim:
        assert self.source is not None  # noqa: S101 (required by the card of the method)
        return Aim.of(self.source, self.config.ridge, self.config.class_cov, like=self.memory["mean"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Lifecycle:
        self.__dict__.pop("_aim", None)  # made anew with the type and device of the moments
        return super()._apply(fn, recurse)


@dataclasses.dataclass(frozen=True)
class Aim:
    """The Gaussians of the source, all with the ridge, and the inverses of their covariances, computed once.

    Args:
        mean: Of all features, (D,).
        cov: (D, D)
        inverse: (D, D)
        class_mean: Of each class, (K, D).
        class_cov: (K, D, D), or diagonals (K, D).
        class_inverse: (K, D, D); of diagonals, none is needed and these are the diagonals.
        class_count: How many source images each class had, (K,).
        ridge: What is added to every variance.
    """

    mean: Tensor
    cov: Tensor
    inverse: Tensor
    class_mean: Tensor
    class_cov: Tensor
    class_inverse: Tensor
    class_count: Tensor
    ridge: Tensor

    @staticmethod
    def of(source: SourceStats, ridge: float, form: str, like: Tensor) -> Aim:
        """Prepare source statistics for divergences from running moments of the type and device of ``like``."""
        given = {name: tensor.to(like) for name, tensor in source.tensors.items()}
        added = ridge * given["feature_cov"].max()
        cov, class_cov = _ridged(given["feature_cov"], added), class_covariances(source, form).to(like)
        diagonal = class_cov.dim() == 2
        class_cov = class_cov + added if diagonal else _ridged(class_cov, added)
        class_inverse = class_cov if diagonal else precision(class_cov)
        rest = (given["class_mean"], class_cov, class_inverse, given["class_count"], added)
        return Aim(given["feature_mean"], cov, precision(cov), *rest)

    def divergence(self, target: Moments) -> Tensor:
        """Return the symmetric divergence of the moments of all features, a scalar."""
        cov = _ridged(target.cov, self.ridge)
        return symmetric_gaussian_kl(self.mean, self.cov, target.mean, cov, precision_a=self.inverse)

    def class_divergences(self, classes: Tensor, target: Moments) -> Tensor:
        """Return the symmetric divergence of each of the P ``classes`` whose moments are given, (P,)."""
        mean, cov = self.class_mean[classes], self.class_cov[classes]
        if cov.dim() == 2:
            return symmetric_diagonal_kl(mean, cov, target.mean, target.cov + self.ridge)
        inverse = self.class_inverse[classes]
        return symmetric_gaussian_kl(mean, cov, target.mean, _ridged(target.cov, self.ridge), precision_a=inverse)


def class_covariances(source: SourceStats, form: str) -> Tensor:
    """Return the class covariances of the source as ``full`` (K, D, D), ``diagonal`` (K, D), or as they are."""
    cov = source.tensors["class_cov"]
    if form == "diagonal" and cov.dim() == 3:
        return cov.diagonal(dim1=1, dim2=2)
    if form == "full" and cov.dim() == 2:
        raise SourceStatsError(
            "These source statistics hold the diagonals of the class covariances, and class_cov='full' is asked for.",
            'Make them with offsupport.source_stats(model, loader, method="ttac", class_cov="full").',
        )
    return cov


def _ridged(cov: Tensor, ridge: Tensor) -> Tensor:
    return cov + ridge * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
