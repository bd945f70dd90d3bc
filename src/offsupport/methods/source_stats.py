"""What a method keeps of the source data: a few tensors, tied to the model they were taken from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import SourceStatsError


@dataclasses.dataclass(frozen=True)
class SourceStats:
    """Statistics of source images for one method and one model. Made by :func:`offsupport.source_stats`.

    Args:
        method: The method they are for.
        model_sha256: The weights they were computed with.
        samples: How many images went in.
        tensors: The statistics.
    """

    method: str
    model_sha256: str
    samples: int
    tensors: dict[str, Tensor]

    def save(self, path: Path | str) -> None:
        """Write them to one safetensors file."""
        save_tensors(
            path, self.tensors, {"method": self.method, "model_sha256": self.model_sha256, "samples": self.samples}
        )

    @staticmethod
    @torch.inference_mode(False)
    def load(path: Path | str) -> SourceStats:
        """Read what :meth:`save` wrote."""
        tensors, manifest = load_tensors(path)
        if set(manifest) != {"method", "model_sha256", "samples"}:
            raise SourceStatsError(f"{path} holds no source statistics.", "Make them with offsupport.source_stats().")
        return SourceStats(tensors=tensors, **manifest)

    def require(self, method: str, model_sha256: str) -> None:
        """Refuse to serve another method or other weights."""
        if self.method != method:
            raise SourceStatsError(
                f"These source statistics are for {self.method!r}, not {method!r}.",
                f'Make them with offsupport.source_stats(model, loader, method="{method}").',
            )
        if self.model_sha256 != model_sha256:
            raise SourceStatsError(
                "These source statistics were computed with other weights.",
                "Make them again with the model that is adapted.",
            )
