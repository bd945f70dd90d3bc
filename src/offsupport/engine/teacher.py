"""A teacher: the moving average of a student's parameters, with batch-norm statistics of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from offsupport.engine.state import Memory

_PREFIX, _STATISTICS = "teacher/", "teacher_statistics"


@dataclasses.dataclass
class Teacher:
    """What to run the student's network with; between batches it lives in the memory of the adapter.

    Args:
        parameters: The averages of the adapted parameters, by name. They need no gradient.
        statistics: Its batch-norm statistics, as :meth:`NormStatistics.follow` lays them out. While the teacher
            predicts, they are what the layers follow, and passes under ``ema`` change them in place.
    """

    parameters: dict[str, Tensor]
    statistics: Tensor

    @staticmethod
    def of(parameters: Mapping[str, Tensor], statistics: Tensor) -> Teacher:
        """Return a teacher that equals its student."""
        return Teacher({name: p.detach().clone() for name, p in parameters.items()}, statistics.clone())

    @staticmethod
    def recall(memory: Memory) -> Teacher:
        """Return the teacher that an adapter remembers; the statistics are a copy, as they change in place."""
        parameters = {name.removeprefix(_PREFIX): memory[name] for name in memory if name.startswith(_PREFIX)}
        return Teacher(parameters, memory[_STATISTICS].clone())

    def remembered(self) -> dict[str, Tensor]:
        """Return its tensors under the names they have in the memory of the adapter."""
        return {_PREFIX + name: tensor for name, tensor in self.parameters.items()} | {_STATISTICS: self.statistics}

    def follow(self, student: Mapping[str, Tensor], decays: Mapping[str, float]) -> None:
        """Move each parameter towards the student's: of its old value it keeps the share ``decays[name]``."""
        self.parameters = {
            name: student[name].detach().lerp(average, decays[name]) for name, average in self.parameters.items()
        }
