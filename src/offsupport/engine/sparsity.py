"""+SC: a method under the sparsity constraint, by gated low-rank updates of every convolution and linear layer.

The constraint is not a method: it is mixed into one. ``tent+sc`` is a class made of :class:`Constrained` and ``Tent``
when its name is asked for, and its hyper-parameters are a dataclass made of :class:`Constraint` and those of ``tent``.
Both are made anew in every process, so copies and pickles name what they were made of instead of themselves.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import statistics
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError, ModelError
from offsupport.core.seeds import derive_seed
from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodConfig, StepConfig, require
from offsupport.engine.precision import refuse_half
from offsupport.engine.registry import METHODS, NARROW, PUBLISHED
from offsupport.functional import soft_threshold
from offsupport.nn.lora import Gates, add_updates, describe_updates, merge, updated_layers
from offsupport.nn.projected import training_heads

SUFFIX = "+sc"
"""Behind the name of a method that takes steps: the method under the sparsity constraint."""

HARMFUL = 2
"""From this multiple of its step size on, a clipped update has done harm where no teacher holds the network."""

# Hyper-parameters of the sparsity constraint, beside those of whatever method it constrains.


Preset = dict[str, dict[str, Any]]
"""Hyper-parameters by the name of the preset."""
Defaults = tuple[tuple[str, Any], ...]
"""Names and values of defaults that are not those of every method."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constraint:
    """Hyper-parameters of the sparsity constraint; those of the constrained method stand beside them."""

    base: ClassVar[type[MethodConfig]]
    own: ClassVar[Defaults] = ()

    rank: int = 4
    """Rank of the updates; a layer with fewer channels clips it."""
    ratio_l: float = 1.0
    """Step size of the updates as a multiple of the method's own."""
    ratio_g: float | None = None
    """The same for the gates; None is ``ratio_l``. Adam moves a gate by no more than its step size."""
    gates: bool = True
    """Whether each direction of an update has a gate; without gates there is nothing to penalise."""
    penalty: Literal["l1", "prox", "none"] = "l1"
    """``l1`` as published, with gates that start ~ N(0, 1); ``prox``: gates start at 1 and are soft-thresholded."""
    ratio_s: float = 1e-3
    """Weight of the mean absolute gate in the loss, for ``l1``."""
    prox: float = 1e-2
    """How far each step pulls every gate towards zero, for ``prox``."""
    train_head: bool = True
    """Whether the classifier has an update, too."""
    freeze_base: bool = False
    """Whether the updates alone adapt, instead of beside the method's own parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the method's hyper-parameters, which come next
        require("rank", self.rank >= 1, "at least 1")
        require("ratio_l", 0 <= self.ratio_l <= 1e6, "in [0, 1e6]")
        require("ratio_g", self.ratio_g is None or 0 <= self.ratio_g <= 1e6, "in [0, 1e6]")
        require("ratio_s", self.ratio_s >= 0, "at least 0")
        require("prox", self.prox >= 0, "at least 0")

    @property
    def initial_gates(self) -> Gates:
        """How the gates start."""
        if not self.gates:
            return "none"
        return "ones" if self.penalty == "prox" else "normal"

    def __reduce__(self) -> Any:
        # No module holds the class of this configuration: it is made again from its two halves.
        return _rebuild_config, (self.base, isinstance(self, TeacherConstraint), dataclasses.asdict(self), self.own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConstraint(Constraint):
    """Hyper-parameters of the sparsity constraint on a method whose teacher follows its student."""

    teacher_decay: float | None = None
    """How much of its own updates the teacher keeps at a step; None is as of everything else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("teacher_decay", self.teacher_decay is None or 0 <= self.teacher_decay <= 1, "in [0, 1]")


PRESETS: Preset = {
    "cifar10": {"rank": 64, "ratio_l": 1.0, "ratio_s": 1e-5, "penalty": "l1"},
    "cifar100": {"rank": 16, "ratio_l": 2.0, "ratio_s": 1e-1, "penalty": "l1"},
    "imagenet": {"rank": 4, "ratio_l": 5.0, "ratio_s": 1e-3, "penalty": "l1"},
}
TEACHER_PRESETS: Preset = {
    "cifar10": {"teacher_decay": 0.0},
    "cifar100": {"teacher_decay": 0.9},
    # Not in the paper's table: its code halves the step size of TeSLA here.
    "imagenet": {"teacher_decay": 0.9, "lr": 5e-4},
}


@functools.cache
def constrained_config(base: Any, teacher: bool, own: Defaults = ()) -> Any:
    """Return the hyper-parameters of a method with those of the constraint, as one dataclass.

    Args:
        base: The hyper-parameters of the method.
        teacher: Whether it has a teacher.
        own: Defaults of the constraint on this method, where they are others.
    """
    ours = TeacherConstraint if teacher else Constraint
    body = {"__module__": __name__, "base": base, "own": own, **dict(own)}
    # A default that a dataclass is to take over from its body has to be annotated there.
    body["__annotations__"] = {name: Constraint.__annotations__[name] for name, _ in own}
    combined = type(f"Constrained{base.__name__}", (ours, base), body)
    return dataclasses.dataclass(frozen=True, kw_only=True)(combined)


def _rebuild_config(base: Any, teacher: bool, values: dict[str, Any], own: Defaults = ()) -> Any:
    return constrained_config(base, teacher, own)(**values)


class Constrained(Adapter):
    """Mixed into a method: it adapts gated low-rank updates beside its own parameters (Kong et al., 2024).

    The method sees them as further adapted parameters, so that its optimiser, sharpness-aware perturbation and teacher
    take them in; what it holds to the source by name (Fisher weights) stays its own.
    """

    config: Any
    method: ClassVar[type[Adapter]]

    def findings(self) -> dict[str, Any]:
        """Say how far the updates went: gates at exactly zero, effective ranks, and all of it by layer.

        Nothing where each image is an episode: its updates are gone with it.
        """
        if self.config.independent:
            return super().findings()
        updates = describe_updates(self.model)
        gates = [gate.detach() for gate in self.gates.values()]
        zeros = sum(int((gate == 0).sum()) for gate in gates) / max(sum(gate.numel() for gate in gates), 1)
        mean_rank = statistics.fmean(update["effective_rank"] for update in updates.values())
        values = {
            name.removesuffix(".low_rank.gate"): [round(value, 5) for value in gate.tolist()]
            for name, gate in self.gates.items()
        }
        found = {"zero_gates": zeros, "mean_effective_rank": mean_rank, "updates": updates, "gates": values}
        return super().findings() | found

    @property
    def gates(self) -> dict[str, nn.Parameter]:
        """The gates, by name."""
        return {name: parameter for name, parameter in self.low_rank.items() if name.endswith("low_rank.gate")}

    @torch.inference_mode(False)
    def merge(self) -> nn.Module:
        """Return a copy of the network that predicts, a teacher where there is one, with updates folded into weights.

        Its batch norm is that of any model: it normalises by the running statistics the model came with.
        """
        return merge(super().merge())

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take a step with the penalty: l1 adds its subgradient, prox follows with a soft threshold."""
        gates = self.gates
        if self.config.penalty == "l1" and gates:
            # Added to gradients rather than to the loss: a method with two losses in a step pays the penalty once.
            weight = self.config.ratio_s / sum(gate.numel() for gate in gates.values())
            gradients = [
                gradient + weight * gates[name].detach().sign() if name in gates else gradient
                for name, gradient in zip(self.parameters_adapted, gradients, strict=True)
            ]
        super().apply_gradients(gradients)
        if self.config.penalty == "prox":
            with torch.no_grad():
                for name in gates.keys() - self.unreached:
                    gates[name].copy_(soft_threshold(gates[name], self.config.prox))

    def announce(self) -> None:
        """Say where the rank had to be clipped."""
        super().announce()
        ranks = {name: layer.low_rank.rank for name, layer in updated_layers(self.model).items()}
        clipped = {name: rank for name, rank in ranks.items() if rank < self.config.rank}
        if clipped:
            least = min(clipped, key=clipped.__getitem__)
            times = self.config.rank / clipped[least]
            harmless = times < HARMFUL or bool(self.decays())
            said = "Nothing needs to be done" if harmless else "Without a teacher this has done harm"
            warnings.warn(
                f"{self.info.name}: rank {self.config.rank} is more than {len(clipped)} of {len(ranks)} layers allow; "
                f"there it is their number of channels (down to {clipped[least]}, in {least or 'the model'!r}), and "
                f"what is learned counts up to {times:.3g} times. {said}; rank={clipped[least]} would fit all of them.",
                stacklevel=3,
            )

    def _select(self) -> dict[str, nn.Parameter]:
        refuse_half(self.info.name, self.model, dict(self.model.named_parameters()))
        chosen = super()._select()
        if self.config.freeze_base:
            self.model.requires_grad_(False)
            chosen = {}
        left_out = training_heads(self.model)  # no prediction depends on them
        left_out += [] if self.config.train_head else [self.classifier]
        left_out += self.never_updated()
        # Draws of its own: the method's generator starts as it does without the constraint.
        generator = torch.Generator().manual_seed(derive_seed("low-rank updates", self.options.seed))
        self.low_rank = add_updates(self.model, self.config.rank, self.config.initial_gates, generator, left_out)
        if not self.low_rank:
            raise ModelError(
                f"The method {self.info.name!r} updates convolutions and linear layers, and this model has none with a "
                "weight of its own" + ("." if self.config.train_head else " beside the classifier."),
                f"Use {self.method.info.name!r} without {SUFFIX}.",
            )
        return chosen | self.low_rank

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the method's own parameters, the low-rank updates and their gates, each with its step size."""
        config, gates, low_rank = self.config, self.gates, self.low_rank
        ratio_g = config.ratio_l if config.ratio_g is None else config.ratio_g
        return [
            {"params": [p for name, p in self.parameters_adapted.items() if name not in low_rank], "lr": config.lr},
            {"params": [p for name, p in low_rank.items() if name not in gates], "lr": config.ratio_l * config.lr},
            {"params": list(gates.values()), "lr": ratio_g * config.lr},
        ]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self.method,), self.__dict__


class ConstrainedStudent(Constrained):
    """Mixed into a method with a teacher, which may follow the updates at a pace of their own."""

    def decays(self) -> dict[str, float]:
        """Return how much the teacher keeps at a step of each adapted parameter, by name."""
        decays = super().decays()
        own = self.config.teacher_decay
        return decays if own is None else decays | dict.fromkeys(self.low_rank, own)


def takes_steps(method: type[Adapter]) -> bool:
    """Tell whether a method takes gradient steps, so that there is something to constrain."""
    return issubclass(method.config_class, StepConfig)


@METHODS.register_suffix(SUFFIX, applies=takes_steps)
@functools.cache
def constrained(method: type[Adapter]) -> type[Adapter]:
    """Return ``method`` under the sparsity constraint, as a class; a method without gradient steps has none."""
    info, config_class = method.info, cast("Any", method.config_class)
    if not takes_steps(method):
        raise ConfigError(
            f"The method {info.name!r} takes no gradient steps, so there is nothing to constrain.",
            f"Use {SUFFIX} behind a method that does, as in 'tent{SUFFIX}'.",
        )
    teacher = method.decays is not Adapter.decays
    alone = method.sparse_defaults.get("freeze_base", False)
    by, beside = ("by", "") if alone else ("also by", f"{info.adapts}; ")
    body = {
        "__doc__": f"{info.name} with gated low-rank updates.",
        "__module__": __name__,
        "method": method,
        "config_class": constrained_config(config_class, teacher, tuple(method.sparse_defaults.items())),
        "presets": _constrained_presets(method, teacher),
        "info": dataclasses.replace(
            info,
            name=info.name + SUFFIX,
            summary=f"{info.summary.removesuffix('.')}, {by} sparse low-rank updates of all weights.",
            paper=f"{info.paper}; Kong et al. 2024",
            adapts=f"{beside}gated low-rank updates of convolutions and linear layers",
        ),
    }
    mixin = ConstrainedStudent if teacher else Constrained
    return cast("type[Adapter]", abc.ABCMeta(f"Constrained{method.__name__}", (mixin, method), body))


def _constrained_presets(method: type[Adapter], teacher: bool) -> Preset:
    """Return the presets of a method with those of the constraint, and last what the method says for both together.

    What is published stays so where the method has defaults of its own; the preset for narrow networks is ours, and has
    those.
    """
    published = {name: getattr(Constraint, name) for name in method.sparse_defaults}
    ours = {name: published | PRESETS[name] | (TEACHER_PRESETS[name] if teacher else {}) for name in PRESETS}
    ours[NARROW] = method.sparse_defaults or ours[PUBLISHED]
    return {
        name: preset | ours.get(name, {}) | method.sparse_presets.get(name, {})
        for name, preset in method.presets.items()
    }


def _rebuild(method: type[Adapter]) -> Any:
    return constrained(method).__new__(constrained(method))
