"""The base of methods that augment images: they must know what a pixel is."""

from __future__ import annotations

import torch
from torch import Tensor

from offsupport.core.errors import InputError, ModelError
from offsupport.methods.adapter import Adapter
from offsupport.methods.guard import plausible_rows

ROOM = 0.5
"""So far outside [0, 1] pixels may lie, as after sharpening or interpolation, before they count as another unit."""


class PixelAdapter(Adapter):
    """An adapter of classifiers of images in [0, 1]; what lies a little outside is clipped before every pass."""

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember whether images of the right unit were seen."""
        return {"in_unit": torch.zeros(())}

    def images(self, x: Tensor) -> Tensor:
        """Return ``x`` clipped to [0, 1] for a step; a stream that starts in another unit is refused."""
        self.expect_unit(x)
        self.memory["in_unit"] = torch.ones(())
        return x.clamp(0, 1)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` without a step."""
        self.expect_unit(x)
        return self.network(x)

    def expect_unit(self, x: Tensor) -> None:
        """Refuse what are no images in [0, 1], until such images have been seen: later on, a stream goes on."""
        if not self.memory["in_unit"]:
            self._require_unit(x)

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

    def _require_unit(self, x: Tensor) -> None:
        if x.dim() != 4:
            raise InputError(
                f"The method {self.info.name!r} augments images (N, C, H, W), and this batch is {tuple(x.shape)}.",
                "Use a method that does not augment, such as 'tent'.",
            )
        # A sample far beyond any unit is a broken one: the guard sees to it, and it says nothing about the others.
        known = x[plausible_rows(x)]
        if known.numel() and (known.min() < -ROOM or known.max() > 1 + ROOM):
            raise InputError(
                f"The method {self.info.name!r} augments pixels in [0, 1], and these lie in "
                f"[{known.min():.3g}, {known.max():.3g}].",
                "Give images in [0, 1] and put the normalisation into the model: "
                "offsupport.adapt(offsupport.nn.Normalized(model, mean, std), ...).",
            )
