"""Hyper-parameters of the sparsity constraint, beside those of whatever method it constrains."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal

from offsupport.methods.config import MethodConfig, require
from offsupport.nn.lora import Gates

Preset = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constraint:
    """Hyper-parameters of the sparsity constraint; those of the constrained method stand beside them."""

    base: ClassVar[type[MethodConfig]]

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
        return _rebuild_config, (self.base, isinstance(self, TeacherConstraint), dataclasses.asdict(self))


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
def constrained_config(base: Any, teacher: bool) -> Any:
    """Return the hyper-parameters of a method with those of the constraint, as one dataclass."""
    ours = TeacherConstraint if teacher else Constraint
    combined = type(f"Constrained{base.__name__}", (ours, base), {"__module__": __name__, "base": base})
    return dataclasses.dataclass(frozen=True, kw_only=True)(combined)


def _rebuild_config(base: Any, teacher: bool, values: dict[str, Any]) -> Any:
    return constrained_config(base, teacher)(**values)
