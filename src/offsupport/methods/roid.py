"""ROID and CMF: certain and diverse samples weigh more, views must agree, and weights are drawn back to the source."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment import cotta_view
from offsupport.engine.adapter import PixelAdapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.functional import entropy, symmetric_cross_entropy
from offsupport.nn import affine_parameters

CERTAIN = 0.99
"""Probabilities above it count as this much, and have no gradient."""

CIFAR: dict[str, Any] = {"lr": 1e-3, "optimizer": "adam", "prior_correction": "paper"}
IMAGENET: dict[str, Any] = {"lr": 2.5e-4, "optimizer": "sgd", "prior_correction": "paper"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatioConfig(StepConfig):
    """Hyper-parameters that ROID and CMF share."""

    temperature: float = 1 / 3
    """The smaller, the more a certain and unusual sample weighs beside others."""
    prediction_decay: float = 0.9
    """How much of the running mean prediction one batch keeps."""
    weighting: bool = True
    """Whether samples weigh differently, and the most usual ones nothing."""
    consistency: bool = True
    """Whether augmented views must be predicted as the images are; one more forward pass of about half the batch."""
    prior_correction: Literal["off", "log", "paper"] = "off"
    """Favour classes that are frequent in the batch: add log of their share to the logits, or multiply by it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("temperature", self.temperature > 0, "above 0")
        require("prediction_decay", 0 <= self.prediction_decay < 1, "in [0, 1)")


class Ratio(PixelAdapter):
    """One step per batch down the likelihood ratio and the disagreement of views; what follows it, a subclass says."""

    config: RatioConfig

    @abc.abstractmethod
    def draw_back(self) -> None:
        """Draw the adapted parameters back to the source after a step, in place."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the running mean prediction."""
        return {"p_bar": torch.empty(0)}

    def step(self, x: Tensor) -> Tensor:
        """Predict, weigh the samples, descend, and draw the weights back."""
        x = self.images(x)
        logits = self.network(x)
        weight = self._weights(logits.detach())
        kept = weight > 0
        terms = soft_likelihood_ratio(logits[kept])
        if self.config.consistency:
            views = cotta_view(x[kept], self.generator, "reflection", noise=0.0)
            terms = terms + symmetric_cross_entropy(logits[kept], self.network(views))
        # By the samples at hand: published code divides by the batch size of its settings, whatever came.
        self.descend((weight[kept] * terms).sum() / len(x))
        with torch.no_grad():
            self.draw_back()
        return self._corrected(logits)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step, corrected as in a step where it is a whole batch."""
        logits = super().predict(x)
        return self._corrected(logits) if len(x) >= max(self.min_batch, 2) else logits

    def _weights(self, logits: Tensor) -> Tensor:
        """Return how much each sample counts, (N,); 0 for those that are nearer to the mean prediction than most."""
        p = logits.softmax(1)
        past = self.memory["p_bar"] if self.memory["p_bar"].numel() else torch.full_like(p[0], 1 / p.shape[1])
        decay = self.config.prediction_decay
        self.memory["p_bar"] = decay * past + (1 - decay) * p.mean(0)
        if not self.config.weighting:
            return torch.ones_like(p[:, 0])
        diversity = min_max(1 - nn.functional.cosine_similarity(past[None], p, dim=1))
        certainty = min_max(-entropy(logits))
        weight = (diversity * certainty / self.config.temperature).exp()
        return torch.where(diversity < diversity.mean(), 0.0, weight)

    def _corrected(self, logits: Tensor) -> Tensor:
        """Return the logits with the share of each class in the batch taken into account."""
        if self.config.prior_correction == "off":
            return logits
        p_bar, (samples, classes) = logits.softmax(1).mean(0), logits.shape
        smooth = max(1 / samples, 1 / classes) / p_bar.max()
        prior = (p_bar + smooth) / (1 + smooth * classes)
        return logits * prior if self.config.prior_correction == "paper" else logits + prior.log()


def min_max(values: Tensor) -> Tensor:
    """Return values scaled to [0, 1]; equal ones, such as one alone, are 0."""
    low, high = values.aminmax()
    return (values - low) / (high - low) if bool(high > low) else torch.zeros_like(values)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Return -sum_k p_k log(p_k / (1 - p_k)) of each sample, (N,)."""
    p = logits.softmax(1).clamp(max=CERTAIN)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoidConfig(RatioConfig):
    """Hyper-parameters of ROID."""

    source_decay: float = 0.99
    """How much of itself an adapted parameter keeps after a step; the rest is the source's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("source_decay", 0 <= self.source_decay <= 1, "in [0, 1]")


@register_method(
    MethodInfo(
        name="roid",
        summary="Weighs samples by certainty and diversity, asks views to agree, and draws weights to the source.",
        paper="Marsden et al. 2024",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per sample, unweighted",
        passes="1F, and 1F of about half the batch, 1B of both",
    ),
    RoidConfig,
)
class Roid(Ratio):
    """Each parameter keeps ``source_decay`` of itself and takes the rest from the source."""

    config: RoidConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar10": CIFAR, "cifar100": CIFAR, "imagenet": IMAGENET}

    def draw_back(self) -> None:
        """Mix each parameter with its source."""
        for name, parameter in self.parameters_adapted.items():
            parameter.lerp_(self.source_parameters[name], 1 - self.config.source_decay)


# CMF: the same loss, and a Kalman filter between what steps found and the source.


LARGEST_NOISE = 0.99
"""The noise of the filter is a variance beside one of the observation, and both make up 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CmfConfig(RatioConfig):
    """Hyper-parameters of CMF."""

    alpha: float = 0.99
    """How much of itself the hidden model keeps before it is corrected; the rest is the source's."""
    gamma: float = 0.99
    """How much of itself an adapted parameter keeps after a step; the rest is the hidden model's."""
    q: float = 0.005
    """Noise of the hidden model, for as many adapted numbers as a ViT-B/16 has in its norm layers, 38,400."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("alpha", 0 <= self.alpha <= 1, "in [0, 1]")
        require("gamma", 0 <= self.gamma <= 1, "in [0, 1]")
        require("q", 0 <= self.q < 1, "in [0, 1)")


@register_method(
    MethodInfo(
        name="cmf",
        summary="ROID with a Kalman filter over the weights in place of the fixed mix with the source.",
        paper="Lee and Chang 2024",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per sample, unweighted",
        passes="1F, and 1F of about half the batch, 1B of both",
    ),
    CmfConfig,
)
class Cmf(Ratio):
    """A hidden model follows the adapted parameters by a scalar filter, and draws them to itself."""

    config: CmfConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar10": CIFAR, "cifar100": CIFAR, "imagenet": IMAGENET}

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the hidden model and its variance, too."""
        hidden = {f"hidden/{name}": p.detach().clone() for name, p in self.parameters_adapted.items()}
        return super().initial_memory() | hidden | {"variance": torch.zeros((), dtype=torch.float64)}

    def draw_back(self) -> None:
        """Predict the hidden model, correct it by what the step found, and mix."""
        alpha, gamma = self.config.alpha, self.config.gamma
        count = sum(parameter.numel() for parameter in self.parameters_adapted.values())
        q = min(self.config.q * count / 38_400, LARGEST_NOISE)
        variance = alpha**2 * float(self.memory["variance"]) + q
        beta = (1 - q) / (variance + 1 - q)
        beta = 1.0 if beta > 0.9999 else max(beta, 0.89)
        self.memory["variance"] = torch.tensor(beta * variance, dtype=torch.float64)
        for name, parameter in self.parameters_adapted.items():
            hidden = self.source_parameters[name].lerp(self.memory[f"hidden/{name}"], alpha)
            hidden = parameter.detach().lerp(hidden, beta)
            parameter.copy_(hidden.lerp(parameter, gamma))
            self.memory[f"hidden/{name}"] = hidden
