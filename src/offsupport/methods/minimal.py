"""Minimal change of statistics: batch norm's mean and variance move as far as the evidence goes, and no further.

The paper's principle, applied to what a network knows of the style ``s``. Clean source images have moments ``C`` at
every batch-norm layer, the stream has ``C + R``. A layer that normalised clean images by ``(mu, var)`` normalises those
of the stream as if they had been carried back: ``x -> C + (x - T) sqrt(var_C / var_T)``, where ``T`` lies between ``C``
and ``C + R``. How far depends on what else would explain ``R``: chance, because few images were seen, and the classes
among them, because in a sorted stream they are not those of the source.

One forward pass, no gradient. A group of images is predicted by what was known before it and then counted, so that the
size of a batch hardly matters, and no image has a say in its own prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from offsupport.core.errors import InputError, ModelError
from offsupport.engine.adapter import Adapter
from offsupport.engine.config import MethodConfig, MethodInfo, require
from offsupport.engine.registry import register_method
from offsupport.functional import as_rows
from offsupport.nn.norm import AdaptiveStatistics, Statistics

LARGEST_CLASSES = 64 * 2**20
"""Class means of more bytes are not kept: the share of a class in the moments is then only doubted, not taken out."""
FEWEST = 5
"""A class is described by at least so many source images on average."""
FLAT = 0.05
"""A variance never falls below this share of the source's: dividing by less would blow up noise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimalConfig(MethodConfig):
    """Hyper-parameters of the minimal change."""

    amount: float | None = None
    """How far statistics move where nothing speaks against it; None is 0.6 with source statistics, 0.25 without."""
    doubt: float = 2.0
    """A layer moves only where its shift is more than so many times what chance and classes would explain."""
    trust: float = 0.9
    """How far predictions are believed when the moments of their classes are taken out of the shift."""
    prior: float = 16.0
    """As how many images the source counts at the start."""
    haste: float = 2.0
    """How much more new images count than old ones; 1 is the plain mean of all."""
    memory: int = 400
    """Over how many images the shift is averaged at most."""
    clip: float = 4.0
    """An image counts as lying at most so many deviations of source images from what is known."""
    group: int = 16
    """Images that are predicted together; the next group knows of them."""
    young: int = 64
    """Images of a batch that were predicted when fewer than this had been seen are predicted once more."""

    def __post_init__(self) -> None:
        require("amount", self.amount is None or 0 <= self.amount <= 1, "in [0, 1]")
        require("doubt", self.doubt >= 0, "at least 0")
        require("trust", 0 <= self.trust <= 1, "in [0, 1]")
        require("prior", self.prior > 0, "above 0")
        require("haste", self.haste >= 1, "at least 1")
        require("memory", self.memory >= 2, "at least 2")
        require("clip", self.clip > 0, "above 0")
        require("group", self.group >= 1, "at least 1")
        require("young", self.young >= 0, "at least 0")


@dataclasses.dataclass(frozen=True)
class Reference:
    """What clean images look like to every channel: first and second moments, (2, channels), and how they vary."""

    clean: Tensor
    within: Tensor
    """Variance of an image's moments about those of its class."""
    between: Tensor
    """Variance of the moments of the classes."""
    spread: Tensor
    """Deviation of an image's moments."""
    class_means: Tensor | None
    """Moments of each class less those of all, (K, 2, channels); None where they are not known."""
    law: Tensor | None
    """Shares of the classes among clean images, (K,); None stands for equal ones."""

    @staticmethod
    def of(known: Tensor, found: Mapping[str, Tensor]) -> Reference:
        """Return the reference by source statistics, or what running statistics let one guess of it."""
        mean, var = known
        if not found:
            # Positions of an image agree about as much as pictures do: a quarter of the variance lies between images,
            # and of that a quarter between classes. Of Gaussian values squares vary by 2 var^2 + 4 mean^2 var.
            spread = 0.25 * torch.stack([var, 2 * var.square() + 4 * mean.square() * var])
            clean, within, between = as_moments(known), 0.75 * spread, 0.25 * spread
            return Reference(clean, within, between, spread.sqrt(), None, None)
        tensors = {name: tensor.to(known) for name, tensor in found.items()}
        means, spread = tensors.get("class_means"), tensors["spread"]
        within, between = 0.5 * spread, 0.5 * spread
        if means is not None:
            within = tensors["within"]
            between = torch.einsum("k,kmc->mc", tensors["law"], means.square())
        # A channel that never varies on clean images would turn any change into certainty.
        least = 1e-6 * torch.stack([var, var * (var + mean.square())])
        return Reference(
            tensors["clean"], within + least, between + least, (spread + least).sqrt(), means, tensors["law"]
        )


def as_moments(known: Tensor) -> Tensor:
    """Return means and variances, (2, channels), as first and second moments."""
    mean, var = known
    return torch.stack([mean, var + mean.square()])


@register_method(
    MethodInfo(
        name="minimal",
        summary="Moves batch-norm statistics by the least change that explains the stream.",
        paper="ours, after Kong et al. 2024",
        adapts="batch-norm statistics",
        scored="before it is counted",
        norm="batch",
        source="optional",
        single="as any other batch",
        bounded=True,
    ),
    MinimalConfig,
)
class Minimal(Adapter):
    """Follows the moments of the stream; no parameter changes."""

    config: MinimalConfig
    statistics: ClassVar[Statistics] = "running"
    any_order: ClassVar[bool] = True
    source_shapes: ClassVar[dict[str, str]] = {"clean": "MC", "spread": "MC", "law": "K"}

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the shift of the moments, the classes seen, and how many images that rests on."""
        known = self.norm_statistics.follow(self.model)
        if not known.numel():
            raise ModelError(
                "The batch-norm layers of this model keep no running statistics: there is nothing to move away from.",
                "Use 'bn', or train with track_running_stats=True.",
            )
        self.known = known.clone()
        self.reference = Reference.of(self.known, self.source.tensors if self.source else {})
        layers = [layer for layer in self.model.modules() if isinstance(layer, AdaptiveStatistics)]
        # A layer without running statistics takes those of its batch, which a smaller group would change.
        self.splits = all(layer.place is not None for layer in layers)
        # Which layer a channel belongs to, in the order in which they stand side by side.
        places = sorted((layer.place.start, layer.place.stop) for layer in layers if layer.place is not None)
        owners = [torch.full((stop - start,), i) for i, (start, stop) in enumerate(places)]
        self.layer = torch.cat(owners).to(known.device)
        self._current: tuple[Tensor, Tensor] | None = None
        return {
            "shift": torch.zeros_like(known),
            "classes": torch.empty(0, device=known.device),
            # Images seen, and the sum of their squared weights: the variance of a weighted mean.
            "evidence": torch.zeros(2, dtype=torch.float64),
        }

    # What is known of the source -------------------------------------------------------------------------------------

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return moments of clean images, how they vary within and between classes, and the shares of the classes."""
        moments, labels, classes = [], [], 0
        for x in batches:
            with torch.no_grad(), self.norm_statistics.using("source"), self.norm_statistics.recording() as seen:
                rows = as_rows(self.network(x))
            classes = rows.shape[1]
            moments.append(self.norm_statistics.moments(seen, as_moments(self.known)).transpose(0, 1))
            labels.append(rows.view(len(x), -1, classes).mean(1).argmax(1))
        found, label = torch.cat(moments).double(), torch.cat(labels)
        if len(found) < 2 or not bool(found.isfinite().all()):
            raise InputError("Moments of source images need at least two finite images.", "Give more of them.")
        counts = torch.bincount(label, minlength=classes).double()
        clean = found.mean(0)
        tensors = {"clean": clean, "spread": found.var(0), "law": counts / counts.sum()}
        enough = len(found) >= FEWEST * int((counts > 0).sum()) and int((counts > 0).sum()) > 1
        if enough and classes * clean.numel() * 4 <= LARGEST_CLASSES:
            sums = found.new_zeros(classes, *clean.shape).index_add(0, label, found)
            means = sums / counts.clamp(min=1)[:, None, None] - clean
            means[counts == 0] = 0.0  # a class the source never shows says nothing of itself
            tensors["class_means"] = means
            tensors["within"] = (found - clean - means[label]).square().mean(0)
        return {name: tensor.to(self.known) for name, tensor in tensors.items()}

    # One batch -------------------------------------------------------------------------------------------------------

    def step(self, x: Tensor) -> Tensor:
        """Predict group by group, each by what was known before it; what was predicted too early is predicted again."""
        # The batch itself where it is one group: the base looks at its moments in the same pass.
        groups = torch.split(x, self.config.group) if self.splits and len(x) > self.config.group else (x,)
        logits, early = [], 0
        for group in groups:
            if self.memory["evidence"][0] < self.config.young:
                early += len(group)
            logits.append(self._predict_and_count(group))
        found = torch.cat(logits)
        if early and len(groups) > 1:
            found[:early] = self.predict(x[:early])
        return found

    @torch.no_grad()
    def _predict_and_count(self, x: Tensor) -> Tensor:
        with self.norm_statistics.recording() as seen:
            logits = self.network(x)
        if seen:
            self._count(self.norm_statistics.moments(seen, self.reference.clean), as_rows(logits).softmax(1).mean(0))
        return logits

    def network(self, x: Tensor, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """Run the model by the statistics that follow from what is known."""
        # Memory is replaced, never changed in place: the same tensor stands for the same statistics.
        if self._current is None or self._current[0] is not self.memory["shift"]:
            self._current = self.memory["shift"], self.moved()
        self.norm_statistics.running = self._current[1]
        return super().network(x, tensors)

    @property
    def _caution(self) -> float:
        """Half of everything where strangers may have sent the images."""
        return 1.0 if self.options.trusted else 0.5

    # The mathematics -------------------------------------------------------------------------------------------------

    def _count(self, moments: Tensor, shares: Tensor) -> None:
        """Add the moments (2, N, channels) of a group and its mean prediction (K,) to what is known."""
        images = moments.shape[1]
        seen, squares = self.memory["evidence"].tolist()
        fresh = self.config.haste * images
        gain = max(fresh / (self.config.prior + seen + fresh), 1 - (1 - 2 / self.config.memory) ** images)
        shift, reference = self.memory["shift"], self.reference
        # Around what is known, not around the source: a real shift is reached in steps, one mad image is a step.
        bound = self._caution * self.config.clip * reference.spread[:, None]
        away = (moments - (reference.clean + shift)[:, None]).clamp(-bound, bound).mean(1)
        law = torch.full_like(shares, 1 / len(shares)) if reference.law is None else reference.law
        classes = self.memory["classes"] if self.memory["classes"].numel() else law
        self.memory.update(
            {
                "shift": shift + gain * away,
                "classes": classes.lerp(shares.to(classes), gain),
                "evidence": torch.tensor(
                    [seen + images, (1 - gain) ** 2 * squares + gain**2 / images], dtype=torch.float64
                ),
            }
        )

    def moved(self, total: Tensor | None = None) -> Tensor:
        """Return the means and variances to normalise by, (2, channels), for a shift of the moments as in `shift`."""
        shift, score = self.shift(total)
        if score is None:
            return self.known
        least = 0.25 if self.source is None else 0.6
        amount = least if self.config.amount is None else self.config.amount
        share = self._caution * amount * (1 - self.config.doubt / score.clamp(min=1e-12)).clamp(min=0)[self.layer]
        clean = self.reference.clean
        target = clean + share * shift
        var_clean = (clean[1] - clean[0].square()).clamp(min=1e-12)
        ratio = ((target[1] - target[0].square()) / var_clean).clamp(min=FLAT)
        mean, var = self.known
        # The layer was trained to subtract `mean`, not the clean mean: the difference shrinks or grows with the rest.
        return torch.stack([target[0] - (clean[0] - mean) * ratio.sqrt(), var * ratio])

    def shift(self, total: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the shift of the moments that the classes seen do not explain, and the score of each layer.

        A score is the mean square of a layer's shifts in units of what chance and classes would give: about 1 on clean
        images. None before the first image. The shift of all moments is what is remembered, or else ``total``.
        """
        shift, classes, reference = self.memory["shift"], self.memory["classes"], self.reference
        shift = shift if total is None else total
        if not classes.numel():
            return shift, None
        surplus = classes - (1 / len(classes) if reference.law is None else reference.law)
        doubted = float(surplus.square().sum())
        if reference.class_means is not None:
            shift = shift - self.config.trust * torch.einsum("k,kmc->mc", surplus, reference.class_means)
            doubted *= (1 - self.config.trust) ** 2
        chance = reference.within * float(self.memory["evidence"][1]) + reference.between * doubted
        ratios = shift[0].square() / chance[0]
        layers = int(self.layer[-1]) + 1
        sums = ratios.new_zeros(layers).index_add(0, self.layer, ratios)
        return shift, sums / torch.bincount(self.layer, minlength=layers)
