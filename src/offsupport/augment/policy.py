"""The adversarial augmentation policy of TeSLA (Tomar et al., 2023): which operations to chain, and how strongly.

A sub-policy is a set of operations applied in the order of :data:`OPERATIONS`; there are 91 pairs. What is learned is
one table of logits with a row per sub-policy: a selection logit, then one logit per operation whose sigmoid is its
magnitude.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Literal

import torch
from torch import Tensor

from offsupport.augment.operations import ANGLE, OPERATIONS, Operation, rotate

Rotation = Literal["constant", "full"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """One sub-policy and one sign per operation for each image, on the CPU.

    Args:
        rows: Index of the sub-policy, (N,).
        signs: Plus or minus one, (N, length).
    """

    rows: Tensor
    signs: Tensor


@dataclasses.dataclass(frozen=True)
class Policy:
    """The sub-policies of one length.

    Args:
        length: Operations per sub-policy.
        rotation: ``constant`` turns by 30 degrees whatever the magnitude, as in the published code, whose range
            has equal ends; ``full`` turns by up to 30 degrees.
    """

    length: int = 2
    rotation: Rotation = "constant"

    @functools.cached_property
    def members(self) -> Tensor:
        """The operations of each sub-policy, (sub-policies, length), ascending."""
        return torch.tensor(list(itertools.combinations(range(len(OPERATIONS)), self.length)))

    @functools.cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations with the ranges of their values."""
        if self.rotation == "full":
            return OPERATIONS
        constant = Operation(rotate, -ANGLE, -ANGLE, signed=True)
        return tuple(constant if each.apply is rotate else each for each in OPERATIONS)

    def logits(self) -> Tensor:
        """Return the table at its start: every sub-policy equally likely, every magnitude one half."""
        return torch.zeros(len(self.members), 1 + self.length)

    def draw(self, count: int, generator: torch.Generator, selection: Tensor | None = None) -> Draw:
        """Draw a sub-policy for each of ``count`` images, from softmax(``selection``) or else uniformly, and signs."""
        size = len(self.members)
        # In double precision on the CPU: the same draws on any device and for any type of image.
        law = torch.full((size,), 1 / size) if selection is None else selection.detach().double().softmax(0).cpu()
        rows = torch.multinomial(law, count, replacement=True, generator=generator)
        signs = 2 * torch.randint(2, (count, self.length), generator=generator) - 1
        return Draw(rows, signs)

    def apply(self, x: Tensor, draw: Draw, magnitudes: Tensor) -> Tensor:
        """Augment each image of ``x`` (N, C, H, W) as drawn, with magnitudes in [0, 1], (N, length).

        Images are grouped by operation: as sub-policies ascend, one application of each operation in order serves all.
        """
        members, out = self.members[draw.rows], x.clamp(0, 1)
        for index, operation in enumerate(self.operations):
            images, slots = (members == index).nonzero(as_tuple=True)
            if not len(images):
                continue
            signs = draw.signs[images, slots].to(x)
            images, slots = images.to(x.device), slots.to(x.device)
            changed = operation(out[images], magnitudes[images, slots], signs)
            # Not in place: gradients by magnitudes go back through the operations before this one.
            out = out.index_copy(0, images, changed)
        return out


def random_augment(x: Tensor, policy: Policy, generator: torch.Generator) -> Tensor:
    """Augment each image by a sub-policy and magnitudes drawn uniformly.

    Example:
        >>> random_augment(torch.rand(5, 3, 8, 8), Policy(), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 8, 8])
    """
    draw = policy.draw(len(x), generator)
    magnitudes = torch.rand(len(x), policy.length, generator=generator, dtype=torch.float64)
    return policy.apply(x, draw, magnitudes.to(x))


def adam(value: Tensor, gradient: Tensor, moments: Tensor, step: Tensor, lr: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``value``, its two ``moments`` (2, ...) and the number of steps after one step of Adam."""
    # Not torch's optimiser: its state would be its own, and all state of an adapter is in its memory.
    count = float(step) + 1
    first = 0.9 * moments[0] + 0.1 * gradient
    second = 0.999 * moments[1] + 0.001 * gradient.square()
    scale = (second / (1 - 0.999**count)).sqrt() + 1e-8
    return value - lr / (1 - 0.9**count) * first / scale, torch.stack([first, second]), step + 1
