"""TeSLA-s: TeSLA that also keeps the distribution of its features near that of the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from offsupport.functional import Moments, symmetric_gaussian_kl, update_moments
from offsupport.functional.gaussian import precision
from offsupport.methods.config import MethodInfo, require
from offsupport.methods.features import feature_moments, features_of
from offsupport.methods.registry import register
from offsupport.methods.tesla import Tesla, TeslaConfig
from offsupport.nn.inspect import capture_input


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeslaSConfig(TeslaConfig):
    """Hyper-parameters of TeSLA-s."""

    align_weight: float = 0.05
    """Weight of the symmetric divergence between the Gaussians of source and target features."""
    moment_window: int = 1280
    """A target feature counts as at least one part in so many in the running moments."""
    ridge: float = 1 / 30
    """This share of the largest source covariance is added to the diagonal of both covariances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("align_weight", self.align_weight >= 0, "at least 0")
        require("moment_window", self.moment_window >= 1, "at least 1")
        require("ridge", self.ridge > 0, "above 0")


_MOMENTS = ("moments/mean", "moments/cov", "moments/count")


class Source(NamedTuple):
    """The Gaussian of the source's features: (D,), (D, D) with the ridge, its inverse, and the ridge (D, D)."""

    mean: Tensor
    cov: Tensor
    precision: Tensor
    ridge: Tensor


@register(
    MethodInfo(
        name="tesla-s",
        summary="TeSLA with its features held to the mean and covariance of the source.",
        paper="Tomar et al. 2023",
        adapts="every layer but the classifier",
        scored="after the step, by the teacher",
        norm="none",
        source="required",
        single="no step (the marginal needs a batch); batch norm: blended statistics",
    ),
    TeslaSConfig,
)
class TeslaS(Tesla):
    """TeSLA plus the symmetric Gaussian divergence of global feature moments."""

    config: TeslaSConfig
    _cached: Source | None = None

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the running moments of the target's features too."""
        return super().initial_memory() | {name: torch.empty(0) for name in _MOMENTS}

    def agreement(self, x_b: Tensor, log_q: Tensor) -> Tensor:
        """Return the loss of the student on ``x_b``, its features' distance from the source included."""
        with capture_input(self.head()[1]) as features:
            loss = super().agreement(x_b, log_q)
        z = features[0].flatten(1)
        target, source = self._follow(z), self._source_gaussian(z)
        distance = symmetric_gaussian_kl(
            source.mean, source.cov, target.mean, target.cov + source.ridge, precision_a=source.precision
        )
        return loss + self.config.align_weight * distance

    def _follow(self, z: Tensor) -> Moments:
        """Let the running moments follow the features of this batch, and return them with their gradients."""
        past = [self.memory[name] for name in _MOMENTS]
        start = Moments(*past) if past[0].numel() else Moments.none(z.shape[1], like=z)
        moments = update_moments(start, z, self.config.moment_window)
        for name, value in zip(_MOMENTS, (moments.mean, moments.cov, moments.count), strict=True):
            self.memory[name] = value
        return moments

    def _source_gaussian(self, like: Tensor) -> Source:
        """Return the Gaussian of the source's features in the type of ``like``; its inverse is computed once."""
        if self._cached is None or self._cached.mean.dtype != like.dtype or self._cached.mean.device != like.device:
            assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
            mean, cov = (self.source.tensors[name].to(like) for name in ("feature_mean", "feature_cov"))
            ridge = self.config.ridge * cov.max() * torch.eye(len(mean)).to(like)
            self._cached = Source(mean, cov + ridge, precision(cov + ridge), ridge)
        return self._cached

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the mean and the unbiased covariance of the source's features, of the model as it came."""
        return feature_moments(features_of(self, batches))
