"""EATA: entropy minimisation on samples that are reliable and not redundant, without forgetting the source."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.functional import Loss, as_rows, uncertainty
from offsupport.nn import affine_parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class EtaConfig(StepConfig):
    """Hyper-parameters of ETA: EATA without its pull to the source."""

    margin: float = 0.4
    """A prediction is reliable below this fraction of the largest entropy, ln K."""
    redundancy: float | None = None
    """A prediction is redundant above this cosine to past ones; None is 1.265 / sqrt(K): 0.4 for 10 classes."""
    memory_decay: float = 0.9
    """How much of the running mean prediction one batch keeps."""
    loss: Loss = "entropy"
    """What is minimised: the entropy, or that of an opinion that may withhold its belief (COME)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("memory_decay", 0 <= self.memory_decay < 1, "in [0, 1)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    """Hyper-parameters of EATA."""

    fisher_weight: float = 1.0
    """Weight of the pull to the source parameters; acts only with source statistics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("fisher_weight", self.fisher_weight >= 0, "at least 0")


class Eta(Adapter):
    """One step per batch down the weighted entropy of the kept samples."""

    config: EtaConfig

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the scale and shift of every normalisation layer."""
        return affine_parameters(self.model)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the running mean prediction of the kept samples."""
        return {"p_bar": torch.empty(0)}

    def step(self, x: Tensor) -> Tensor:
        """Predict, keep what is reliable and new, and descend its weighted entropy."""
        logits = self.network(x)
        rows = as_rows(logits)
        entropies, p = uncertainty(rows, self.config.loss), rows.detach().softmax(1)
        e0 = self.config.margin * math.log(rows.shape[1])
        keep = (entropies.detach() < e0) & self._is_new(p)
        if not keep.any():
            self.count("empty_selection")
            return logits
        # Detached: it says how much a sample counts, and is not itself to be made larger.
        weight = (e0 - entropies[keep].detach()).exp()
        self.descend((weight * entropies[keep]).mean() + self._pull_to_source())
        self._remember(p[keep].mean(0))
        return logits

    def _is_new(self, p: Tensor) -> Tensor:
        past = self.memory["p_bar"]
        if past.numel() == 0:
            return torch.ones(len(p), dtype=torch.bool, device=p.device)
        limit = self.config.redundancy
        # A little above the cosine between a uniform and a certain prediction, which is 1 / sqrt(K).
        limit = 1.265 / math.sqrt(p.shape[1]) if limit is None else limit
        return nn.functional.cosine_similarity(past[None], p, dim=1).abs() < limit

    def _remember(self, p_bar: Tensor) -> None:
        past, decay = self.memory["p_bar"], self.config.memory_decay
        self.memory["p_bar"] = p_bar if past.numel() == 0 else decay * past + (1 - decay) * p_bar

    def _pull_to_source(self) -> Tensor | float:
        return 0.0


@register_method(
    MethodInfo(
        name="eata",
        summary="Minimises the entropy of reliable, non-redundant samples, held to the source by Fisher weights.",
        paper="Niu et al. 2022",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="optional",
        single="batch norm: no step, blended statistics; group and layer norm: a step per reliable sample",
        passes="1F 1B",
    ),
    EataConfig,
)
class Eata(Eta):
    """One step per batch down the weighted entropy of the kept samples; without source statistics it is ETA."""

    config: EataConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "redundancy": 0.4, "fisher_weight": 1.0},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "redundancy": 0.1, "fisher_weight": 1.0},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "redundancy": 0.05, "fisher_weight": 2000.0},
        "cifar10-small": {"lr": 3e-3, "optimizer": "adam", "redundancy": 0.4, "fisher_weight": 1.0},
    }

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the Fisher weights: the mean over batches of the squared gradient of the loss on own labels."""
        # The square of a batch's mean gradient, as published: it depends on the batch size of the loader.
        total, count = [torch.zeros_like(p) for p in self.parameters_adapted.values()], 0
        for x in batches:
            rows = as_rows(self.network(x))
            for sum_, gradient in zip(total, self.gradients(_own_label_loss(rows)), strict=True):
                sum_ += gradient.square()
            count += 1
        return {name: sum_ / count for name, sum_ in zip(self.parameters_adapted, total, strict=True)}

    def announce(self) -> None:
        """Say that without source statistics this is ETA."""
        if self.source is None:
            warnings.warn("eata without source statistics is ETA: nothing holds it to the source.", stacklevel=3)

    def _pull_to_source(self) -> Tensor | float:
        if self.source is None:
            return 0.0
        # Wrappers may adapt more parameters, or fewer: those without a Fisher weight are free.
        terms = [
            (fisher.to(p) * (p - self.source_parameters[name]).square()).sum()
            for name, fisher in self.source.tensors.items()
            if (p := self.parameters_adapted.get(name)) is not None
        ]
        return self.config.fisher_weight * torch.stack(terms).sum() if terms else 0.0


def _own_label_loss(rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(rows, rows.detach().argmax(1))
