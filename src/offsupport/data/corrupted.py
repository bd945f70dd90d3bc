"""Corrupted data that is stored nowhere: a clean data set whose images are corrupted when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offsupport.core.files import canonical_json, sha256_bytes, sha256_file
from offsupport.data.corruptions import CORRUPTIONS, corrupt
from offsupport.data.dataset import Dataset, Images, Rows, Source
from offsupport.data.pictures import decode_image, encode_jpeg


class Corrupted(Dataset):
    """``base`` under one corruption, computed on the fly; row i is always the same pixels, however it is read.

    The hash is over how it is made (hash of the base, corruption, severity, seed, block, frost textures), so it costs
    no more than that of the base.

    Args:
        base: The clean data.
        corruption: One of :func:`offsupport.data.list_corruptions`.
        severity: 1 to 5; impulse noise to 10.
        seed: Of the corruption's own random draws; ``data make`` with the same seed writes the same pixels.
        block: Corrupt only a square of this side at a random place of each image; None for the whole image.
        frost_dir: Folder of the official frost textures; None for synthetic ones.
        jpeg: Pass the result through a JPEG of this quality, as the 224-pixel release does; None for raw pixels.
        name: What it is called in results.
    """

    source: Source = "generated"

    def __init__(
        self,
        base: Dataset,
        corruption: str,
        severity: int,
        seed: int = 0,
        *,
        block: int | None = None,
        frost_dir: Path | str | None = None,
        jpeg: int | None = None,
        name: str = "",
    ) -> None:
        super().__init__(name or f"{base.name}-c", base.labels, base.classes)
        self.base = base
        self.corruption = corruption
        self.severity = severity
        self.seed = seed
        self.block = block
        self.frost_dir = frost_dir
        self.jpeg = jpeg
        self.images([0])  # so that an option that cannot be is an error here, not in the middle of a stream

    def images(self, indices: Rows) -> Images:
        """Return these rows, corrupted."""
        rows = np.asarray(indices, dtype=np.int64)
        images = corrupt(
            np.ascontiguousarray(self.base.images(rows)),  # sums over pixels must not depend on memory order
            self.corruption,
            self.severity,
            self.seed,
            block=self.block,
            index=rows,
            frost_dir=self.frost_dir,
        )
        return images if self.jpeg is None else np.stack([decode_image(encode_jpeg(i, self.jpeg)) for i in images])

    def _hash(self) -> str:
        return sha256_bytes(canonical_json([self.base.sha256, self._settings(), self._frost()]).encode())

    def _settings(self) -> dict[str, Any]:
        """Everything but the data that decides about the pixels; the keys are those of stored results."""
        settings: dict[str, Any] = {
            "corruption": self.corruption,
            "severity": self.severity,
            "block": self.block,
            "seed": self.seed,
        }
        if self.jpeg is not None:
            settings["jpeg"] = self.jpeg
        found = CORRUPTIONS[self.corruption]
        if not found.published:
            # The constants of published corruptions never change; those of anybody else's may.
            settings["constants"] = repr(found.arguments(self.image_size[0], self.severity))
        return settings

    def facts(self) -> dict[str, Any]:
        """What a result must state about this data, and how it is made."""
        return {**super().facts(), "recipe": {**self._settings(), "frost": self._frost(), "base": self.base.facts()}}

    def _frost(self) -> str | None:
        return frost_source(self.frost_dir) if CORRUPTIONS[self.corruption].takes_frost_dir else None


def frost_source(frost_dir: Path | str | None) -> str:
    """Return which frost textures are used: ``synthetic``, or the hash of those in a folder."""
    if frost_dir is None:
        return "synthetic"
    files = [[file.name, sha256_file(file)] for file in sorted(Path(frost_dir).glob("frost[1-6].*"))]
    return sha256_bytes(canonical_json(files).encode())
