"""What the check of a folder finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from offsupport.data.dataset import Images

Sample: TypeAlias = Callable[[int], Images]
"""Reads one picture (height, width, 3): the n-th of its kind."""


@dataclass
class Finding:
    """One data set in a folder.

    Args:
        kind: What it was recognised as.
        path: Where it is.
        present: The parts that are there and whole.
        missing: The parts that should be there.
        damaged: What is wrong, by file.
        notes: Remarks for people.
        samples: For contact sheets: how to read a picture of a corruption and severity.
    """

    kind: str
    path: Path
    present: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, dict[int, Sample]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.missing and not self.damaged

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "complete": self.complete,
            "present": self.present,
            "missing": self.missing,
            "damaged": self.damaged,
            "notes": self.notes,
        }
