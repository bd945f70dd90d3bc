"""Is this shift recoverable, asked of a deep network and images: how far, where, and of which kind; and its picture.

The theorems speak of a generating process that nobody knows for photographs, so their verdicts stay ``unknown`` here.
What is said instead is measured against source images that took no part in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from offsupport.core.errors import InputError, ModelError
from offsupport.core.files import atomic
from offsupport.core.ownership import MAKER, PNG_MARK
from offsupport.diagnosis.patches import BATCH, LEVEL, batched, judge_patches, own_rarity, patch_score, require_finite
from offsupport.monitor.shift import (
    ALLOWED_ALONE,
    PER_CLASS,
    CleanMoments,
    Evidence,
    class_weights,
    fold,
    image_evidence,
    off_support,
    seen_by_layers,
    shift_score,
)
from offsupport.nn.inspect import capture_input, device_and_dtype, find_head
from offsupport.nn.norm import capture_moments
from offsupport.nn.normalized import ROOM

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Regime = Literal["on support", "sparse", "dense near", "dense far"]
REGIMES: tuple[Regime, ...] = get_args(Regime)
"""From the mildest to the hardest."""
NEIGHBOURS = 5
"""Several, because a single nearest one hangs on one image; few, because farther ones say little of the distance."""
HALF = 0.5
"""From this share of off-support patches on, a shift is dense."""
FAR = 1.5
"""A dense shift is far when features lie so many times farther off than the source's own at :data:`LEVEL`."""
FEWEST = 40
MOST_SOURCE, MOST_TARGETS = 400, 200
"""What looks at folders of images takes so many of them: more hardly move a threshold, and cost minutes."""
ALIKE = 1e-2
"""Unseen source images that lie so close to the reference, in deviations of its features, are copies of it."""


@dataclass(frozen=True)
class ModelDiagnosis:
    """What a network and source images say about target images, one entry per image.

    Attributes:
        distance: (M,) mean distance of an image's features to the nearest source features, over the value that
            95 % of unseen source images stay below: above 1 is off the support.
        quantile: (M,) share of unseen source images that lie closer.
        off_patches: (M, h, w) whether a patch is off the support: rarer than all but 5 % of unseen source patches.
        patch_quantile: (M, h, w) where a patch stands among those of unseen source images at the same place, by the
            score in which it is most unusual; smoothed.
        share: (M,) share of off-support patches.
        shift: (M,) the shift score of each image: above 1 it is off the support, by the moments that the network's
            layers see of it, alone and together with the other targets, or by its patches. At most 5 % of clean images
            are.
        shift_alone: (M,) the same, were each image the only one.
        set_shift: The shift score of all targets together, as of :func:`offsupport.monitor.shift_score`: 1 on clean
            images.
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
    shift: Tensor
    shift_alone: Tensor
    set_shift: float
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
        tensors = ("distance", "quantile", "share", "shift", "shift_alone", "patch_quantile")
        words = ("set_shift", "regime", "measure", "source_images", "theorem1", "theorem2", "hardness")
        return {
            **{name: getattr(self, name).tolist() for name in tensors},
            **{name: getattr(self, name) for name in words},
        }

    def __str__(self) -> str:
        counts = {name: self.regime.count(name) for name in dict.fromkeys(self.regime)}
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        return (
            f"{len(self.regime)} images: {kinds}. Shift score {self.set_shift:.1f} (clean images: 1).\n"
            f"Features lie {self.hardness:.2f} times as far from the source as its 95 % quantile; "
            f"{float(self.share.mean()):.0%} of the patches are off the support ({self.measure}).\n"
            "Theorems 1 and 2: unknown, as a network is no generating process."
        )

    def plot(self, images: int = 4) -> Figure:
        """Draw the first images and the map of their off-support patches."""
        return draw_diagnosis(self, images)


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
    _check_model(model)
    images, x_tgt = _gather(source, model), _check_images(x_tgt, "target images", model)
    if x_tgt.shape[1:] != images.shape[1:]:
        raise InputError(
            f"The source images have shape {tuple(images.shape[1:])}, and the targets {tuple(x_tgt.shape[1:])}.",
            "Give images of the same size.",
        )
    # Module by module: some people freeze part of a network in evaluation mode and train the rest.
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        _check_takes(model, images[:1])
        return KnownSource(model, images).judge(x_tgt)
    finally:
        for module, training in modes.items():
            module.training = training


class KnownSource:
    """What a network makes of source images, so that several sets of targets can be judged by it.

    Args:
        model: A network in evaluation mode.
        images: The source images, (N, C, H, W).
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.model, self.count = model, len(images)
        # Every other one, not halves: source images may come sorted by class.
        reference, unseen = images[::2], images[1::2]
        self._seen = _look(model, images)
        self._features = _Distances(self._seen.features[::2])
        self._own = self._features(self._seen.features[1::2])
        self._limit = _limit(self._own)
        if not self._limit > ALIKE:
            raise InputError("The source images hardly differ under this network.", "Give different images.")
        self._score, self.measure = patch_score(model, reference)
        self._usual = batched(self._score, unseen)
        self._rarity = own_rarity(self._usual)
        means, widths = seen_by_layers([layer[..., 0] for layer in self._seen.layers], self._seen.logits)
        self._clean = CleanMoments.fit([(means, _enough(self._seen.logits, len(images)), widths)])

    def judge(self, x_tgt: Tensor) -> ModelDiagnosis:
        """Return the diagnosis of target images."""
        seen, usual = _look(self.model, x_tgt), self._seen
        far = self._features(seen.features)
        place, off, usual_off = judge_patches(batched(self._score, x_tgt), self._usual, self._rarity)
        share, usual_share = off.float().mean((1, 2)), usual_off.float().mean((1, 2))
        weights = class_weights(usual.logits, seen.logits)
        evidence = image_evidence(usual.layers, seen.layers, weights)
        patches = Evidence(usual_share, share, torch.ones(len(usual_share)), ALLOWED_ALONE)
        shift, alone = off_support([*evidence, patches]), off_support([evidence[0].alone(), patches])
        means, _ = seen_by_layers([layer[..., 0] for layer in seen.layers], seen.logits)
        difference = self._clean.difference(means, _enough(seen.logits, self.count))
        distance, quantile = far / self._limit, _place(far, self._own)
        rows = zip(shift.tolist(), distance.tolist(), share.tolist(), strict=True)
        return ModelDiagnosis(
            distance,
            quantile,
            off,
            place,
            share,
            shift,
            alone,
            shift_score(fold(torch.empty(0), difference), self._clean),
            [_regime(*row) for row in rows],
            self.measure,
            self.count,
            x_tgt.cpu(),
        )


def _regime(shift: float, distance: float, share: float) -> Regime:
    if shift <= 1:
        return "on support"
    if share < HALF:
        return "sparse"
    return "dense near" if distance <= FAR else "dense far"


@dataclass(frozen=True)
class _Seen:
    """What one pass over images showed: features (N, F), moments of each layer (N, C, 2), logits (N, K)."""

    features: Tensor
    layers: list[Tensor]
    logits: Tensor


@torch.no_grad()
def _look(model: nn.Module, x: Tensor) -> _Seen:
    head = find_head(model)[1]
    features, layers, logits = [], [], []
    for part in torch.split(x, BATCH):
        with capture_input(head) as given, capture_moments(model) as moments:
            model(part)
        # What a model returns may be anything; the classifier gives logits.
        out = head(given[-1].to(next(head.parameters()).dtype)).float().cpu()
        out = out.flatten(1, -2).mean(1) if out.dim() > 2 else out
        # Layers that see each image more than once (windows of a transformer, say) cannot be told apart by image.
        usable = [layer.float().cpu() for layer in moments if len(layer) == len(part)]
        layers.append(usable or [torch.stack([out, torch.zeros_like(out)], 2)])
        features.append(given[-1].flatten(1).float().cpu())
        logits.append(out)
    together = [torch.cat(parts) for parts in zip(*layers, strict=True)]
    return _Seen(
        require_finite(torch.cat(features)),
        [require_finite(layer) for layer in together],
        require_finite(torch.cat(logits)),
    )


def _enough(logits: Tensor, count: int) -> Tensor:
    """Return logits of one class for all, where there are too few source images to know what each class looks like."""
    return logits if count >= PER_CLASS * logits.shape[1] else torch.zeros(len(logits), 1)


def _limit(values: Tensor) -> Tensor:
    """Return what one more value exceeds in 5 of 100 cases; of few values that is nearer to the largest than 95 %."""
    n = len(values)
    return values.quantile(min(1.0, (LEVEL * (n + 1) - 1) / (n - 1)))


def _place(values: Tensor, among: Tensor) -> Tensor:
    """Return for each value (M,) which share of ``among`` (n,) lies below it; equal ones count half."""
    ordered = among.sort().values
    lower, upper = (torch.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (lower + upper) / (2 * len(among))


class _Distances:
    """Mean distances to the nearest reference features, each feature in units of its deviation.

    Args:
        base: Features of the reference, (N, F).
    """

    def __init__(self, base: Tensor) -> None:
        spread, self._mean = torch.std_mean(base, 0)
        if spread.mean() <= 1e-6 * base.abs().mean():
            raise InputError("The network sees no difference between the source images.", "Give different images.")
        # A feature that is dead on the source must not outweigh all others.
        self._spread = spread + 1e-3 * spread.mean()
        self._base = (base - self._mean) / self._spread

    def __call__(self, features: Tensor) -> Tensor:
        parts = [self._nearest(part) for part in torch.split(features, BATCH)]
        return torch.cat(parts)

    def _nearest(self, features: Tensor) -> Tensor:
        apart = torch.cdist((features - self._mean) / self._spread, self._base) / math.sqrt(self._base.shape[1])
        return apart.topk(NEIGHBOURS, largest=False).values.mean(1)


@runtime_checkable
class _Adapting(Protocol):
    """What an adapter declares; this room stands below the engine and knows adapters by no other sign."""

    parameters_adapted: Any


def _check_model(model: nn.Module) -> None:
    if isinstance(model, _Adapting):
        raise ModelError("This is an adapter, which would adapt to the source images.", "Pass adapted.model.")
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"diagnose_model() takes a torch.nn.Module, not {type(model).__name__}.", "Pass the network itself."
        )


@torch.no_grad()
def _check_takes(model: nn.Module, x: Tensor) -> None:
    """Refuse images of a size or number of channels that the model was not made for."""
    try:
        model(x)
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise InputError(
            f"The model does not take images of shape {tuple(x.shape[1:])} ({why}).",
            "Bring them to the size and channels it was trained on.",
        ) from error


def _check_images(x: Any, what: str, model: nn.Module) -> Tensor:
    """Return images where the model is and in its floating type; refuse what are no finite images in [0, 1]."""
    if not isinstance(x, Tensor):
        raise InputError(f"The {what} are {type(x).__name__}, not a tensor.", "Convert them: torch.as_tensor(x).")
    if x.dim() != 4 or not x.numel():
        raise InputError(f"The {what} have shape {tuple(x.shape)}.", "Give one image or more, as (N, C, H, W).")
    if not x.is_floating_point():
        raise InputError(f"The {what} are {x.dtype}.", "Convert them: x.float() / 255.")
    broken = int((~x.isfinite()).flatten(1).any(1).sum())
    if broken:
        raise InputError(f"{broken} of the {len(x)} {what} hold values that are not finite.", "Leave them out.")
    low, high = (float(end) for end in x.aminmax())
    if low < -ROOM or high > 1 + ROOM:
        raise InputError(
            f"Images are in [0, 1], and the {what} lie in [{low:.3g}, {high:.3g}].",
            "Divide by 255, or let the model standardise: offsupport.nn.Normalized(model, mean, std).",
        )
    return x.detach().to(*device_and_dtype(model))


def _gather(source: Any, model: nn.Module) -> Tensor:
    """Return the source images as one tensor; refuse too few, and such that differ in nothing."""
    found = [_check_images(x, "source images", model) for x in _batches(source)]
    if len({x.shape[1:] for x in found}) > 1:
        shapes = ", ".join(sorted({str(tuple(x.shape[1:])) for x in found}))
        raise InputError(f"The source images have several shapes: {shapes}.", "Bring them to one size.")
    count = sum(map(len, found))
    if count < FEWEST:
        raise InputError(f"There are {count} source images.", f"Give at least {FEWEST}; half of them set the scale.")
    images = torch.cat(found)
    if (images == images[:1]).all():
        raise InputError(f"All {count} source images are the same.", "Give different images.")
    return images


def _batches(source: Any) -> Iterator[Any]:
    """Yield what should be batches of images, without the labels beside them."""
    try:
        batches = iter([source] if isinstance(source, Tensor) else source)
    except TypeError as error:
        raise InputError(
            f"The source is {type(source).__name__}.", "Give images (N, C, H, W), or batches of them."
        ) from error
    for batch in batches:
        x = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if isinstance(x, Tensor) and x.dim() != 4:
            raise InputError(
                f"A batch of the source has shape {tuple(x.shape)}.",
                "Give images (N, C, H, W) without labels, or batches: torch.utils.data.DataLoader(dataset, 64).",
            )
        yield x


# The picture of a network's diagnosis: each image beside the map of its off-support patches.


def draw_diagnosis(found: ModelDiagnosis, images: int) -> Figure:
    """Draw the first ``images`` targets in the upper row, and below how unusual each patch is."""
    from matplotlib.figure import Figure

    count = min(images, len(found.regime))
    figure = Figure(figsize=(2.2 * count + 0.8, 5.0), layout="constrained")
    axes = figure.subplots(2, count, squeeze=False)
    for i in range(count):
        top, below = axes[0, i], axes[1, i]
        pixels = found.images[i].float().clamp(0, 1).permute(1, 2, 0).numpy()
        top.imshow(pixels.squeeze(), cmap="gray", interpolation="nearest")
        numbers = f"shift {float(found.shift[i]):.2g}, distance {float(found.distance[i]):.2f}"
        top.set_title(f"{found.regime[i]}\n{numbers}", fontsize=9)
        shown = below.imshow(found.patch_quantile[i].numpy(), vmin=0, vmax=1, cmap="PuOr", interpolation="nearest")
        for row, column in found.off_patches[i].nonzero().tolist():
            # What is off lies at an end of the scale, where its colours are dark.
            below.plot(column, row, marker="x", color="white", markersize=5, markeredgewidth=1.5)
        below.set_title(f"{float(found.share[i]):.0%} of patches off", fontsize=9)
        for axis in (top, below):
            axis.set_axis_off()
    figure.colorbar(shown, ax=axes[1, :].tolist(), label="place among source patches", shrink=0.8)
    figure.suptitle(f"Off-support patches (crosses), by {found.measure}", fontsize=10)
    return figure


_METADATA: dict[str, dict[str, str | None]] = {"png": {"Software": MAKER}, "svg": {"Creator": MAKER, "Date": None}}
FIGURE_MARKS = (PNG_MARK, f"<dc:title>{MAKER}</dc:title>".encode())
"""By these a figure that :func:`save_figure` wrote is known as ours."""


def figure_files(path: Path) -> list[Path]:
    """Return the files that :func:`save_figure` writes."""
    # Not with_suffix, which would take what follows a dot in the name for one.
    return [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as ``path.png`` and ``path.svg``, each whole or not at all, marked as made by us."""
    for place in figure_files(path):
        kind = place.suffix[1:]
        with atomic(place) as file:
            figure.savefig(file, format=kind, dpi=120, metadata=_METADATA[kind])
