"""What a method keeps of the source data: a few tensors, tied to the model they were taken from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import SourceStatsError

_MANIFEST = ("method", "model_sha256", "samples")


@dataclasses.dataclass(frozen=True)
class SourceStats:
    """Statistics of source images for one method and one model. Made by :func:`offsupport.source_stats`.

    Args:
        method: The method they are for.
        model_sha256: The weights they were computed with.
        samples: How many images went in.
        tensors: The statistics.
        provenance: What is known of the images: data set, split, hash, and how they were transformed.
        head: The layer whose inputs are the features, for statistics of features; empty where it is not known.
    """

    method: str
    model_sha256: str
    samples: int
    tensors: dict[str, Tensor]
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head: str = ""

    def to(self, device: torch.device) -> SourceStats:
        """Return them on a device."""
        return dataclasses.replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})

    def save(self, path: Path | str) -> None:
        """Write them to one safetensors file."""
        manifest = {name: getattr(self, name) for name in _MANIFEST}
        save_tensors(path, self.tensors, manifest | {"provenance": dict(self.provenance), "head": self.head})

    @staticmethod
    @torch.inference_mode(False)
    def load(path: Path | str) -> SourceStats:
        """Read what :meth:`save` wrote."""
        tensors, manifest = load_tensors(path)
        if set(manifest) - {"provenance", "head"} != set(_MANIFEST):
            raise SourceStatsError(f"{path} holds no source statistics.", "Make them with offsupport.source_stats().")
        return SourceStats(tensors=tensors, **manifest)

    def require(self, method: str, model_sha256: str, head: str) -> None:
        """Refuse to serve another method, other weights, or the features of another layer."""
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
        if self.head and self.head != head:
            raise SourceStatsError(
                f"These source statistics are of the inputs of {self.head!r}, and the classifier here is {head!r}.",
                f'Pass head="{self.head}" to adapt() as well, or make them again.',
            )
