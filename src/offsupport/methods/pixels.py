"""The base of methods that augment images: they must know what a pixel is."""

from __future__ import annotations

import torch
from torch import Tensor

from offsupport.core.errors import ModelError
from offsupport.methods.adapter import Adapter
from offsupport.methods.checks import require_images


class PixelAdapter(Adapter):
    """An adapter of classifiers of images in [0, 1]; what lies a little outside is clipped before every pass."""

    def images(self, x: Tensor) -> Tensor:
        """Return ``x`` clipped to [0, 1]; a stream that starts with anything but images is refused."""
        if self.passes["backward"] == 0:  # never in the middle of a stream
            require_images(x, self.info.name)
        return x.clamp(0, 1)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step."""
        return self.network(self.images(x))

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model on clipped images and return its logits, (N, K)."""
        logits = super().network(x.clamp(0, 1), tensors)
        if logits.dim() > 2:
            raise ModelError(
                f"The method {self.info.name!r} compares augmented copies of whole images, and this model predicts "
                f"every position: its logits have shape {tuple(logits.shape)}.",
                "Use 'tent' or 'sar' for dense predictions.",
            )
        return logits
