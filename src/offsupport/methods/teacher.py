"""A teacher: the moving average of a student's parameters, with batch-norm statistics of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor, nn

from offsupport.methods.state import Memory
from offsupport.nn.norm import batch_norm_buffers

_PARAMETERS, _BUFFERS = "teacher/parameters/", "teacher/buffers/"


@dataclasses.dataclass
class Teacher:
    """Tensors to run the student's network with; between batches they live in the memory of the adapter.

    Args:
        parameters: The averages of the adapted parameters, by name. They need no gradient.
        buffers: The teacher's running statistics, by name; a pass under ``ema`` statistics changes them in place.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @staticmethod
    def of(model: nn.Module, parameters: Mapping[str, Tensor]) -> Teacher:
        """Return a teacher that equals its student."""
        return Teacher(_copied(parameters), _copied(batch_norm_buffers(model)))

    @staticmethod
    def recall(memory: Memory) -> Teacher:
        """Return the teacher that an adapter remembers; its buffers are copies, as they change in place."""
        parameters = {name.removeprefix(_PARAMETERS): memory[name] for name in memory if name.startswith(_PARAMETERS)}
        buffers = {name.removeprefix(_BUFFERS): memory[name] for name in memory if name.startswith(_BUFFERS)}
        return Teacher(parameters, _copied(buffers))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that differs from the student, by name."""
        return self.parameters | self.buffers

    def remembered(self) -> dict[str, Tensor]:
        """Return its tensors under the names they have in the memory of the adapter."""
        named = {_PARAMETERS + name: tensor for name, tensor in self.parameters.items()}
        return named | {_BUFFERS + name: tensor for name, tensor in self.buffers.items()}

    def follow(self, student: Mapping[str, Tensor], decays: Mapping[str, float]) -> None:
        """Move each parameter towards the student's: of its old value it keeps the share ``decays[name]``."""
        self.parameters = {
            name: student[name].detach().lerp(average, decays[name]) for name, average in self.parameters.items()
        }


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
