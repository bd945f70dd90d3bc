"""T3A: the classifier's rows become means of features that were predicted with certainty; nothing is trained."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.engine.adapter import Adapter, require_whole
from offsupport.engine.config import MethodConfig, MethodInfo, require
from offsupport.engine.guard import shows
from offsupport.engine.registry import register_method
from offsupport.functional import entropy
from offsupport.nn.inspect import capture_input, single
from offsupport.nn.norm import Statistics

_SUPPORTS, _ENTROPIES = "supports/", "entropies/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class T3aConfig(MethodConfig):
    """Hyper-parameters of T3A."""

    supports: int = 20
    """How many features of a class are kept, those of the lowest entropy."""

    def __post_init__(self) -> None:
        require("supports", self.supports >= 1, "at least 1")


@register_method(
    MethodInfo(
        name="t3a",
        summary="Predicts by class means of the features that the classifier was surest of.",
        paper="Iwasawa and Matsuo 2021",
        adapts="the rows of the classifier",
        scored="after it is counted",
        norm="none",
        source="none",
        needs="a linear classifier",
        single="as any other batch",
        passes="1F",
    ),
    T3aConfig,
)
class T3a(Adapter):
    """Keeps the surest features of each class; a sample counts before it is predicted. No batch statistics."""

    config: T3aConfig
    statistics: ClassVar[Statistics] = "source"
    any_order: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"supports": 100},
        "cifar100": {"supports": 20},
        "imagenet": {"supports": 20},
    }

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember supports and entropies of each class, and the means of supports, at first the classifier's rows."""
        name, head = self.head()
        if not isinstance(head, nn.Linear):
            raise ModelError(
                f"The method 't3a' replaces the rows of a linear classifier, and {name!r} is {type(head).__name__}.",
                'Name the nn.Linear that gives the logits: head="name of the module".',
            )
        rows = single(head.weight.detach())
        # One entry per class: a batch replaces those of its classes, and copies no others.
        each = {f"{what}{k}": torch.empty(0) for k in range(len(rows)) for what in (_SUPPORTS, _ENTROPIES)}
        return each | {"prototypes": nn.functional.normalize(rows, dim=1)}

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Count the batch, then predict it by its cosine to the mean of each class, times its length."""
        with capture_input(self.classifier) as features:
            logits = require_whole(self.network(x), self.info.name)
        z = features[0].flatten(1)
        self._keep(z[shows(x)], logits[shows(x)])
        return z @ self.memory["prototypes"].T

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Predict by the means as they are."""
        with capture_input(self.classifier) as features:
            require_whole(self.network(x), self.info.name)
        return features[0].flatten(1) @ self.memory["prototypes"].T

    def _keep(self, z: Tensor, logits: Tensor) -> None:
        """Add the features to the supports of their classes; of each class the surest stay."""
        finite = z.isfinite().all(1) & logits.isfinite().all(1)
        labels, surprise, z = logits[finite].argmax(1), entropy(logits[finite]), z[finite]
        prototypes, found = self.memory["prototypes"].clone(), dict[str, Tensor]()
        for k in sorted(set(labels.tolist())):  # at most as many as the batch has images
            mine = labels == k
            past = self._past(k)
            supports, entropies = torch.cat([past[0], z[mine]]), torch.cat([past[1], surprise[mine]])
            surest = entropies.argsort(stable=True)[: self.config.supports]
            supports, entropies = supports[surest], entropies[surest]
            found |= {f"{_SUPPORTS}{k}": supports, f"{_ENTROPIES}{k}": entropies}
            prototypes[k] = nn.functional.normalize(nn.functional.normalize(supports, dim=1).sum(0), dim=0)
        self.memory.update(found | {"prototypes": prototypes})

    def _past(self, k: int) -> tuple[Tensor, Tensor]:
        """Return supports and entropies of a class: at first its own row of the classifier."""
        supports, entropies = self.memory[f"{_SUPPORTS}{k}"], self.memory[f"{_ENTROPIES}{k}"]
        if supports.numel():
            return supports, entropies
        # Published code gives a row to the class it is predicted as, which may leave a class without any.
        assert isinstance(self.classifier, nn.Linear)  # noqa: S101 (others are refused when wrapping)
        row = self.classifier.weight[k : k + 1].detach()
        return single(row), entropy(single(self.classifier(row)))
