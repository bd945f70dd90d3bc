"""The images that source statistics are made of: counted, transformed, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from offsupport.augment import flip, random_resized_crop
from offsupport.core.errors import ConfigError, InputError, nearest
from offsupport.methods import guard
from offsupport.methods.checks import check_input

if TYPE_CHECKING:
    from offsupport.methods.adapter import Adapter

Transform = Literal["none", "crop"]

KNOWN = ("dataset", "split", "corruptions", "limit", "seed", "sha256")
"""What a stream says of itself that statistics keep."""


class SourceImages:
    """The images of a loader's batches, one batch at a time; ``samples`` counts them."""

    def __init__(self, loader: Iterable[Tensor | Sequence[Any]], transform: Transform) -> None:
        if transform not in get_args(Transform):
            raise ConfigError(f"Unknown transform {transform!r}.", nearest(transform, get_args(Transform)))
        self.loader = loader
        self.transform = transform
        self.samples = 0

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        for batch in self.loader:
            x = batch if isinstance(batch, Tensor) else batch[0]
            self.samples += len(x)
            if self.transform == "crop":
                x = flip(random_resized_crop(x, (0.2, 1.0), (3 / 4, 4 / 3), generator), generator)
            yield x

    def provenance(self) -> dict[str, Any]:
        """Return what is known of the images; a stream of :mod:`offsupport.data` describes itself."""
        about = self.loader.describe() if hasattr(self.loader, "describe") else {}
        return {name: about[name] for name in KNOWN if name in about} | {"transform": self.transform}


def collect(adapter: Adapter, images: Iterable[Tensor]) -> dict[str, Tensor]:
    """Let a method collect its statistics under the gradient mode and the batch-norm statistics of a step."""
    with torch.inference_mode(False), torch.enable_grad(), adapter.policy.using(adapter.statistics):
        try:
            return adapter.collect(check_input(adapter.brought(x), adapter.model) for x in images)
        except guard.StepRejected:
            raise InputError(
                "The source images give non-finite losses or gradients.", "Remove images with NaN or infinity."
            ) from None
