"""Is this shift recoverable, asked of a deep network and images: how far, where, and of which kind.

The theorems speak of a generating process that nobody knows for photographs, so their verdicts stay ``unknown`` here.
What is said instead is measured against source images that took no part in the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from offsupport.core.errors import InputError
from offsupport.nn.inspect import capture_input, find_head
from offsupport.theory.patches import Score, patch_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Regime = Literal["on support", "sparse", "dense near", "dense far"]
NEIGHBOURS = 5
LEVEL = 0.95
"""What lies above this quantile of the source counts as off its support."""
HALF = 0.5
"""From this share of off-support patches on, a shift is dense."""
FAR = 1.5
"""A dense shift is far when features lie so many times farther off than the source's own at :data:`LEVEL`."""
FEWEST = 40
BATCH = 64


@dataclass(frozen=True)
class ModelDiagnosis:
    """What a network and source images say about target images, one entry per image.

    Attributes:
        distance: (M,) mean distance of an image's features to the nearest source features, over the value that
            95 % of unseen source images stay below: above 1 is off the support.
        quantile: (M,) share of unseen source images that lie closer.
        off_patches: (M, h, w) whether a patch is off the support.
        patch_quantile: (M, h, w) where a patch stands among those of unseen source images at the same place, by the
            score in which it is most unusual.
        share: (M,) share of off-support patches.
        regime: The kind of shift of each image.
        measure: What patches are scored by.
        source_images: Number of source images: half of them reference, half unseen.
        images: (M, C, H, W) the targets.
        theorem1: Always ``unknown``: a network is no generating process.
        theorem2: Always ``unknown``.
    """

    distance: Tensor
    quantile: Tensor
    off_patches: Tensor
    patch_quantile: Tensor
    share: Tensor
    regime: list[Regime]
    measure: str
    source_images: int
    images: Tensor = field(repr=False)
    theorem1: str = "unknown"
    theorem2: str = "unknown"

    @property
    def hardness(self) -> float:
        """One number to rank shifts by: the mean over images of the distance."""
        return float(self.distance.mean())

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the images as plain JSON values."""
        tensors = ("distance", "quantile", "share", "patch_quantile")
        words = ("regime", "measure", "source_images", "theorem1", "theorem2", "hardness")
        return {
            **{name: getattr(self, name).tolist() for name in tensors},
            **{name: getattr(self, name) for name in words},
        }

    def __str__(self) -> str:
        counts = {name: self.regime.count(name) for name in dict.fromkeys(self.regime)}
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        return (
            f"{len(self.regime)} images: {kinds}.\n"
            f"Features lie {self.hardness:.2f} times as far from the source as its 95 % quantile; "
            f"{float(self.share.mean()):.0%} of the patches are off the support ({self.measure}).\n"
            "Theorems 1 and 2: unknown, as a network is no generating process."
        )

    def plot(self, images: int = 4) -> Figure:
        """Draw the first images and the map of their off-support patches."""
        from offsupport.theory.patch_picture import draw

        return draw(self, images)


def diagnose_model(model: nn.Module, source: Tensor | Iterable[Any], x_tgt: Tensor) -> ModelDiagnosis:
    """Say how far target images are from a network's source support, where in the image, and which kind of shift it is.

    Args:
        model: A classifier of images in [0, 1]; put into evaluation mode for the time of the call.
        source: Source images (N, C, H, W), or batches of them (or of tuples that start with them); at least 40.
        x_tgt: Target images (M, C, H, W).

    Example:
        >>> from offsupport.nn import resnet18
        >>> found = diagnose_model(resnet18(width=8), torch.rand(40, 3, 32, 32), torch.rand(2, 3, 32, 32))
        >>> found.theorem1, len(found.regime)
        ('unknown', 2)
    """
    images = _gather(source)
    if x_tgt.dim() != 4 or x_tgt.shape[1:] != images.shape[1:]:
        raise InputError(
            f"The source images have shape {tuple(images.shape[1:])}, and the targets {tuple(x_tgt.shape)}.",
            "Give a batch of images of the same size.",
        )
    training = model.training
    model.eval()
    try:
        return _diagnose(model, images, x_tgt)
    finally:
        model.train(training)


def _diagnose(model: nn.Module, images: Tensor, x_tgt: Tensor) -> ModelDiagnosis:
    reference, unseen = images[::2], images[1::2]
    own, far = _feature_distances(model, reference, [unseen, x_tgt])
    limit = own.quantile(LEVEL)
    score, measure = patch_score(model, reference)
    usual, found = _batched(score, unseen), _batched(score, x_tgt)
    place, off = _unusual(_place(found, usual))
    share = off.float().mean((1, 2))
    usual_share = _unusual(_place_among_others(usual))[1].float().mean((1, 2)).quantile(LEVEL)
    distance, quantile = far / limit, _place(far, own)
    regime = [_regime(float(d), float(s), float(usual_share)) for d, s in zip(distance, share, strict=True)]
    return ModelDiagnosis(distance, quantile, off, place, share, regime, measure, len(images), x_tgt.detach().cpu())


def _regime(distance: float, share: float, usual_share: float) -> Regime:
    if distance <= 1 and share <= usual_share:
        return "on support"
    if share < HALF:
        return "sparse"
    return "dense near" if distance <= FAR else "dense far"


def _unusual(place: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most extreme of several places (N, S, ...), and whether it is off.

    Too high or too low: noise cannot be reconstructed, and a blurred patch only too well.
    """
    most = (place - 0.5).abs().argmax(1, keepdim=True)
    extreme = place.gather(1, most)[:, 0]
    return extreme, (extreme - 0.5).abs() > 0.5 - (1 - LEVEL) / 2 / place.shape[1]


def _place(values: Tensor, among: Tensor) -> Tensor:
    """Return for each value which share of the first axis of ``among`` lies below it; equal ones count half."""
    lower, upper = (among[None] < values[:, None]).float(), (among[None] <= values[:, None]).float()
    return ((lower + upper) / 2).mean(1)


def _place_among_others(values: Tensor) -> Tensor:
    """Return for each value its place among the other ones, as a new value would have it."""
    n = len(values)
    return (n * _place(values, values) - 0.5) / (n - 1)


@torch.no_grad()
def _feature_distances(model: nn.Module, reference: Tensor, others: list[Tensor]) -> list[Tensor]:
    """Return mean distances to the nearest reference features, each feature in units of its deviation."""
    head = find_head(model)[1]

    def features(x: Tensor) -> Tensor:
        with capture_input(head) as given:
            model(x)
        return given[-1].flatten(1).cpu()

    base = _batched(features, reference)
    spread, mean = torch.std_mean(base, 0)
    spread = spread + 1e-3 * spread.mean()
    base = (base - mean) / spread
    return [
        torch.cdist((_batched(features, x) - mean) / spread, base).topk(NEIGHBOURS, largest=False).values.mean(1)
        for x in others
    ]


def _batched(function: Score, x: Tensor) -> Tensor:
    return torch.cat([function(part) for part in torch.split(x, BATCH)])


def _gather(source: Tensor | Iterable[Any]) -> Tensor:
    batches = [source] if isinstance(source, Tensor) else source
    found = [batch if isinstance(batch, Tensor) else batch[0] for batch in batches]
    if not found or sum(map(len, found)) < FEWEST:
        raise InputError(
            f"There are {sum(map(len, found))} source images.", f"Give at least {FEWEST}; half of them set the scale."
        )
    return torch.cat(found)
