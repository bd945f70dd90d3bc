"""Images that a method keeps of a stream, few and chosen, beside what it found them to be.

A bank is part of an adapter's memory: one entry for each place, so that a newcomer costs a copy of one image and not of
all. Which images stay is the method's own rule; the bank knows only their places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from offsupport.engine.state import Memory

_PLACE, _LABELS, _SCORES, _BORN, _SEEN = "bank/", "bank_labels", "bank_scores", "bank_born", "bank_seen"


@dataclasses.dataclass
class Item:
    """An image in the bank.

    Args:
        place: Where it is.
        label: The class it was predicted as.
        score: What the method's rule compares.
        born: How many images had been seen before it.
    """

    place: int
    label: int
    score: float
    born: int


class Bank:
    """The items of a bank, in the order they came; taken out of an adapter's memory and put back after a batch.

    Args:
        memory: The memory of the adapter.
        capacity: How many images there is room for.
    """

    def __init__(self, memory: Memory, capacity: int) -> None:
        self.capacity = capacity
        self.seen = int(memory[_SEEN])
        lists = [memory[name].tolist() for name in (_LABELS, _SCORES, _BORN)]
        held = [
            Item(place, label, score, born)
            for place, (label, score, born) in enumerate(zip(*lists, strict=True))
            if label >= 0
        ]
        self.items = sorted(held, key=lambda item: item.born)
        self._free = sorted(set(range(capacity)) - {item.place for item in held}, reverse=True)
        self._memory = memory
        self._new: dict[int, Tensor] = {}

    @staticmethod
    def initial(capacity: int) -> dict[str, Tensor]:
        """Return an empty bank, as an adapter remembers it."""
        places = {f"{_PLACE}{place}": torch.empty(0) for place in range(capacity)}
        empty = torch.full((capacity,), -1)
        scores = torch.zeros(capacity, dtype=torch.float64)
        return places | {
            _LABELS: empty,
            _SCORES: scores,
            _BORN: empty.clone(),
            _SEEN: torch.zeros((), dtype=torch.long),
        }

    def counts(self) -> Mapping[int, int]:
        """Return how many items each class has that has any."""
        found: dict[int, int] = {}
        for item in self.items:
            found[item.label] = found.get(item.label, 0) + 1
        return found

    def put(self, image: Tensor, label: int, score: float, leaving: Item | None = None) -> None:
        """Keep an image, in the place of one that leaves, or in a free one."""
        if leaving is not None:
            self.items.remove(leaving)
            self._free.append(leaving.place)
        place = self._free.pop()
        self._new[place] = image
        self.items.append(Item(place, label, score, self.seen))

    def images(self) -> Tensor:
        """Return the images in the order they came, (n, C, H, W)."""
        # Of a batch that is kept a view would hold all of it.
        return torch.stack([self._at(item.place) for item in self.items])

    def ages(self) -> Tensor:
        """Return how many images were seen since each came, itself included, (n,)."""
        return torch.tensor([self.seen - item.born for item in self.items], dtype=torch.float64)

    def fits(self, x: Tensor) -> bool:
        """Tell whether images of this size can join those in the bank."""
        return not self.items or self._at(self.items[0].place).shape == x.shape[1:]

    def clear(self) -> None:
        """Forget all images: those of another size cannot share a batch."""
        self._free = list(range(self.capacity))[::-1]
        self.items, self._new = [], {}

    def remembered(self) -> dict[str, Tensor]:
        """Return what changed, under the names it has in the memory of the adapter."""
        labels, born = torch.full((self.capacity,), -1), torch.full((self.capacity,), -1)
        scores = torch.zeros(self.capacity, dtype=torch.float64)
        for item in self.items:
            labels[item.place], scores[item.place], born[item.place] = item.label, item.score, item.born
        images = {f"{_PLACE}{place}": image.clone() for place, image in self._new.items()}
        images |= {f"{_PLACE}{place}": torch.empty(0) for place in self._free}
        return images | {_LABELS: labels, _SCORES: scores, _BORN: born, _SEEN: torch.tensor(self.seen)}

    def _at(self, place: int) -> Tensor:
        return self._new.get(place, self._memory[f"{_PLACE}{place}"])
