"""Corrupted images that many runs ask for: made once in a process, and kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from offsupport.data.corrupted import Corrupted
from offsupport.data.dataset import Dataset, Images, Rows

ROOM = 512 * 2**20
"""Bytes that are kept at most; beyond them the data that nobody has asked for the longest goes."""
_KEPT: OrderedDict[str, dict[int, Images]] = OrderedDict()
"""Images by row, of each data set by its hash; the one asked for last stands last."""


class Remembered(Dataset):
    """``made``, whose rows are corrupted the first time that anybody in this process asks for them.

    Making a corruption often takes longer than the network that looks at it, and a table shows the same images to one
    method after the other.
    """

    def __init__(self, made: Corrupted) -> None:
        super().__init__(made.name, made.labels, made.classes)
        self.made = made
        self.source = made.source

    def images(self, indices: Rows) -> Images:
        """Return these rows, corrupted."""
        rows = np.asarray(indices, dtype=np.int64)
        if not len(rows):
            return self.made.images(rows)
        kept = _KEPT.setdefault(self.sha256, {})
        _KEPT.move_to_end(self.sha256)
        new = np.array(sorted(set(rows.tolist()) - kept.keys()), dtype=np.int64)
        if len(new):
            kept.update(zip(new.tolist(), self.made.images(new), strict=True))
        found = np.stack([kept[row] for row in rows.tolist()])
        _make_room()
        return found

    def _hash(self) -> str:
        return self.made.sha256

    def facts(self) -> dict[str, Any]:
        """What a result must state about this data: that it is kept changes nothing."""
        return self.made.facts()


def _make_room() -> None:
    while sum(len(rows) * next(iter(rows.values())).nbytes for rows in _KEPT.values() if rows) > ROOM:
        _KEPT.popitem(last=False)
