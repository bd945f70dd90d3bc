"""Minimal change of statistics: batch norm's mean and variance move as far as the evidence goes, and no further.

The paper's principle, applied to what a network knows of the style ``s``. Clean source images have moments ``C`` at
every batch-norm layer, the stream has ``C + R``. A layer that normalised clean images by ``(mu, var)`` normalises those
of the stream as if they had been carried back: ``x -> C + (x - T) sqrt(var_C / var_T)``, where ``T`` lies between ``C``
and ``C + R``. How far depends on what else would explain ``R``: chance, because few images were seen, and the classes
among them, because in a sorted stream they are not those of the source.

One forward pass, no gradient. A group of images is predicted by what was known before it and then counted, so that the
size of a batch hardly matters, and no image has a say in its own prediction. Single images are gathered to such groups,
smaller ones at the start: the statistics move once per group. Where too little was known, at the start and after an
abrupt change, a batch is predicted once more, and layer after layer settles on what it is given when those before it
have moved: moments that were met with other statistics in force would have every layer repair the same shift again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from offsupport.core.errors import InputError, SourceStatsError
from offsupport.engine.config import MethodConfig, require
from offsupport.engine.statistics_policy import CountedStatistics, Predict, as_moments
from offsupport.functional import as_rows
from offsupport.nn.norm import NormStatistics

LARGEST_CLASSES = 64 * 2**20
"""Class means of more bytes are not kept: the share of a class in the moments is then only doubted, not taken out."""
FEWEST = 5
"""A class is described by at least so many source images on average."""
MOMENT_SHAPES = {"clean": "MC", "spread": "MC", "law": "K"}
"""What is always known of clean images, where anything is: a letter for each side."""
FLAT = 0.05
"""A variance never falls below this share of the source's: dividing by less would blow up noise."""
FADED = 0.001
"""The same for the first layer, which sees the contrast of the pictures themselves."""
SPOKEN_FOR = 8.0
"""A layer believes in a surplus of classes where at least one part in so many of what it would do is in the shift."""
ODD = math.e
"""Clean images have variances within this factor of the statistics that a network was trained with, and means within a
deviation; what goes beyond is not made good."""
OUTSIDE = 1.5
"""A change of the stream surprises the first layer at least one part in so many as much as the others."""
UNSURE = 0.03
"""By so much, squared and in units of the variance between images, clean images lie from the statistics that networks
were trained with: those of augmented images, mostly."""
DEAD = 1e-4
"""A channel of less than this share of its layer's mean variance counts as one of that variance."""
EVERY = slice(None)
"""All channels of all layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimalConfig(MethodConfig):
    """Hyper-parameters of the minimal change."""

    amount: float | None = None
    """How far statistics move where nothing speaks against it; None is 0.7 with source statistics, 0.25 without."""
    standardise: float = 0.25
    """How far a layer that moves is standardised by what it sees, as batch norm in training does, rather than carried
    back to how clean images looked to it; without source statistics these are the same."""
    doubt: float = 2.0
    """A layer moves only where its shift is more than so many times what chance and classes would explain."""
    wary: float = 16.0
    """How much that grows where a few classes fill the stream: times the squared surplus of their shares."""
    startle: float = 3.0
    """A group of images that lies so many times further off than groups usually do begins anew."""
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
    """From the first image on that was predicted when fewer than this had been seen a batch is predicted once more."""

    def __post_init__(self) -> None:
        require("amount", self.amount is None or 0 <= self.amount <= 1, "in [0, 1]")
        require("standardise", 0 <= self.standardise <= 1, "in [0, 1]")
        require("doubt", self.doubt >= 0, "at least 0")
        require("wary", self.wary >= 0, "at least 0")
        require("startle", self.startle > 1, "above 1")
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
    def of(known: Tensor, found: Mapping[str, Tensor], layer: Tensor) -> Reference:
        """Return the reference by source statistics, or what running statistics let one guess of it.

        Args:
            known: Means and variances that the layers came with, (2, channels).
            found: What clean images told.
            layer: The number of the layer that each channel belongs to.
        """
        mean, var = known
        # Trained networks have dead channels, which see the same of every image: nothing may be divided by that.
        var = torch.maximum(var, DEAD * mean_by_layer(var, layer)[layer])
        if not found:
            # Positions of an image agree about as much as pictures do: a quarter of the variance lies between images,
            # and of that a quarter between classes. Of Gaussian values squares vary by 2 var^2 + 4 mean^2 var.
            spread = 0.25 * torch.stack([var, 2 * var.square() + 4 * mean.square() * var])
            clean, within, between = as_moments(known), 0.75 * spread, 0.25 * spread
            return Reference(clean, within, between, spread.sqrt(), None, None)
        _require_moments(found, known)
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


@dataclasses.dataclass
class Counted:
    """What was known before the images of a batch, and how much they count in what is known by now."""

    shift: Tensor
    classes: Tensor
    weight: float = 0.0


class MinimalStatistics(CountedStatistics):
    """Follows the moments of the stream; moves away from the source as far as chance and classes do not explain them.

    Args:
        model: The model.
        norm_statistics: What its layers share.
        found: What :meth:`collect` returned of clean images; nothing where there were none.
        config: How far, and on what evidence.
        trusted: False where strangers may have sent the images: then everything is halved.
    """

    def __init__(
        self,
        model: nn.Module,
        norm_statistics: NormStatistics,
        found: Mapping[str, Tensor],
        config: MinimalConfig,
        trusted: bool = True,
    ) -> None:
        self.found, self.config, self.trusted = found, config, trusted
        self.group, self.young = config.group, config.young
        super().__init__(model, norm_statistics)

    def start(self, model: nn.Module) -> None:
        """Learn from ``model`` what it came with, and what clean images look like to it."""
        super().start(model)
        self.reference = Reference.of(self.known, self.found, self.layer)
        self._most = self._caution * self.config.clip * self.reference.spread[:, None]
        self._least = -self._most
        self._counted: Counted | None = None

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the shift of the moments, the classes seen, and how many images that rests on."""
        return {
            "shift": torch.zeros_like(self.known),
            "classes": torch.empty(0, device=self.known.device),
            # Images seen, and the sum of their squared weights: the variance of a weighted mean.
            "evidence": torch.zeros(2, dtype=torch.float64),
            # What is not yet counted, as sums: images, their predictions (K), how far their moments lie from what is
            # known (2 channels).
            "gathered": torch.empty(0, device=self.known.device),
            # How far groups of images usually lie from what is known, in units of chance.
            "surprise": torch.ones((), dtype=torch.float64),
        }

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something in a memory that no stream leaves there; None where there is nothing."""
        classes, gathered, law = memory["classes"], memory["gathered"], self.reference.law
        many = gathered.numel() - 1 - self.known.numel()
        known = len(law) if law is not None else classes.numel() or many
        fits = {
            "evidence": float(memory["evidence"].min()) >= 0,
            "surprise": float(memory["surprise"]) >= 0,
            # They are known from the first image on that was counted.
            "classes": bool(classes.numel()) == bool(memory["evidence"][0] > 0)
            and (not classes.numel() or (classes.shape == (known,) and _are_shares(classes, self.known.dtype))),
            "gathered": not gathered.numel()
            or (
                gathered.dim() == 1
                and gathered.dtype == self.known.dtype
                and many == known > 0
                and 0 <= float(gathered[0]) <= self.group
            ),
        }
        return next((name for name, good in fits.items() if not good), None)

    def images(self) -> float:
        """Return how many images were counted."""
        return float(self.memory["evidence"][0])

    def waiting(self) -> float:
        """Return how many wait for others to be counted with."""
        gathered = self.memory["gathered"]
        return float(gathered[0]) if gathered.numel() else 0.0

    def state(self) -> Tensor:
        """Return the shift of the moments."""
        return self.memory["shift"]

    def moments(self) -> Tensor:
        """Return those of clean images, shifted."""
        return self.reference.clean + self.memory["shift"]

    def unseen(self) -> Tensor:
        """Return the moments of clean images."""
        return self.reference.clean

    # What is known of the source -------------------------------------------------------------------------------------

    @torch.no_grad()
    def gather(self, x: Tensor, predict: Predict) -> tuple[Tensor, Tensor]:
        """Return the moments of clean images, (N, 2, channels), and their logits, (N, K)."""
        with self.norm_statistics.using("source"), self.norm_statistics.recording() as seen:
            rows = as_rows(predict(x))
        moments = seen.moments(as_moments(self.known)).transpose(0, 1)
        return moments, rows.view(len(x), -1, rows.shape[1]).mean(1)

    def describe(self, gathered: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return moments of clean images, how they vary within and between classes, and the shares of the classes."""
        moments, labels, classes = [], [], 0
        for each, rows in gathered:
            classes = rows.shape[1]
            moments.append(each)
            labels.append(rows.argmax(1))
        if not moments:
            return {}
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

    @property
    def _caution(self) -> float:
        """Half of everything where strangers may have sent the images."""
        return 1.0 if self.trusted else 0.5

    # One batch -------------------------------------------------------------------------------------------------------

    def serve(self, x: Tensor, predict: Predict) -> Tensor:
        """Predict group by group, each by what was known before it; where that was too little, let layers settle."""
        self._counted = Counted(self.memory["shift"], self.memory["classes"])
        try:
            return super().serve(x, predict)
        finally:
            self._counted = None

    def _predict_again(self, x: Tensor, predict: Predict, counted: Tensor) -> Tensor:
        """Predict images again, and count them anew as they look when the layers before have moved."""
        before = self._counted
        if before is None or not before.weight:
            return predict(x)
        shift, known = self.memory["shift"].clone(), self.reference.clean + before.shift
        whole = bool(counted.all())

        def settle(place: slice, moments: Tensor) -> tuple[Tensor, Tensor]:
            moments = moments if whole else moments[:, counted]
            away = (moments - known[:, None, place]).clamp(self._least[..., place], self._most[..., place]).mean(1)
            shift[:, place] = before.shift[:, place] + before.weight * away
            mean, var = self.moved(shift, place)
            return mean, var

        with self.norm_statistics.settling(settle):
            logits = predict(x)
        shares = as_rows(logits if whole else logits[counted]).softmax(1).mean(0)
        if math.isfinite(float(shift.sum() + shares.sum())):
            classes = before.classes if before.classes.numel() else self._law(shares)
            # Those of the batch that wait for others are among them.
            seen, squares = self.memory["evidence"].tolist()
            self.memory.update(
                {
                    "shift": shift,
                    "classes": classes.lerp(shares.to(classes), before.weight),
                    "evidence": torch.tensor([seen + self.waiting(), squares], dtype=torch.float64),
                    "gathered": torch.empty(0, device=shift.device),
                }
            )
        return logits

    # The mathematics -------------------------------------------------------------------------------------------------

    def _count(self, moments: Tensor, shares: Tensor) -> None:
        """Add the moments (2, N, channels) of N images and their mean prediction (K,) to the group that is under way.

        It is counted once it is large enough, or a quarter of all that was seen.
        """
        images, past, now = moments.shape[1], self.memory["gathered"], self.now
        # Around what is known, not around the source: a real shift is reached in steps, one mad image is a step.
        away = (moments - now.moments).clamp(self._least, self._most).sum(1)
        group = torch.cat([away.new_full((1,), images), shares.to(away) * images, away.view(-1)])
        group = past + group if past.numel() else group
        images = int(group[0])
        if images < min(self.group, 1 + now.images // 4):
            self.memory["gathered"] = group
        else:
            _, shares, away = torch.split(group / images, [1, len(shares), away.numel()])
            self._count_group(images, shares, away.view(2, -1))

    def _count_group(self, images: int, shares: Tensor, away: Tensor) -> None:
        """Count a group of images: their mean prediction (K,), and how far their moments lie from what is known."""
        seen, squares, usual = *self.memory["evidence"].tolist(), float(self.memory["surprise"])
        if seen >= 2 * self.config.group and self.trusted:
            surprise = self._surprise(images, shares, away, squares)
            if surprise > self.config.startle * max(1.0, usual):
                # An abrupt change: what was learnt before it would only be in the way.
                seen, squares, usual = 0.0, 1 / self.config.prior, 1.0
                self._counted = Counted(self.memory["shift"], self.memory["classes"]) if self._counted else None
            else:
                usual += 0.1 * (surprise - usual)
        fresh = self.config.haste * images
        gain = max(fresh / (self.config.prior + seen + fresh), 1 - (1 - 2 / self.config.memory) ** images)
        if self._counted:
            self._counted.weight += gain * (1 - self._counted.weight)
        classes = self.memory["classes"] if self.memory["classes"].numel() else self._law(shares)
        self.memory.update(
            {
                "shift": self.memory["shift"] + gain * away,
                "classes": classes.lerp(shares.to(classes), gain),
                "evidence": torch.tensor(
                    [seen + images, (1 - gain) ** 2 * squares + gain**2 / images], dtype=torch.float64
                ),
                "surprise": torch.tensor(usual, dtype=torch.float64),
                "gathered": torch.empty(0, device=away.device),
            }
        )

    def _law(self, shares: Tensor) -> Tensor:
        """Return the shares of the classes among clean images, (K,)."""
        if self.reference.law is None:
            return torch.full_like(shares, 1 / len(shares))
        if self.reference.law.shape != shares.shape:
            raise SourceStatsError(
                f"These source statistics are of {len(self.reference.law)} classes, and the model has {len(shares)}.",
                "Make them again.",
            )
        return self.reference.law

    def _surprise(self, images: int, shares: Tensor, away: Tensor, squares: float) -> float:
        """Return how far a group lies from what is known, in units of chance: about 1, whatever the shift.

        The median over layers: one layer may be surprised by anything. Those behind the first are also surprised when
        the statistics before them move; nothing before the first one does, so it must be surprised, too.
        """
        reference, surplus = self.reference, shares.to(away) - self.memory["classes"]
        away = self._without_classes(away, surplus)
        chance = reference.within * (1 / images + squares) + reference.between * self._doubted(surplus)
        first = slice(0, int((self.layer == 0).sum()))
        outside = float((away[:, first].square() / chance[:, first]).mean())
        return min(float(self._by_layer(away[0].square() / chance[0]).median()), OUTSIDE * outside)

    def _moved(self) -> Tensor:
        return self.moved()

    def moved(self, total: Tensor | None = None, place: slice = EVERY) -> Tensor:
        """Return the means and variances to normalise by, (2, channels), for what is known or another shift.

        Those of all layers side by side, or those of the layer whose channels stand in ``place``.
        """
        shift, score = self.shift(total, place)
        if score is None:
            return self.known[:, place]
        least = 0.7 if self.found else 0.25
        amount = least if self.config.amount is None else self.config.amount
        gate = self._gate(score)
        share = self._caution * amount * (gate[self.layer] if place == EVERY else gate.expand_as(shift[0]))
        clean, (mean, var) = self.reference.clean[:, place], self.known[:, place]
        # Networks were trained with statistics that clean images need not have. Some depend on the difference, others
        # bear a shift better without it. Where it is large, the statistics were never meant to be those of images.
        given_up, deviation = self.config.standardise * share, var.sqrt()
        mean = mean + given_up * (clean[0] - mean).clamp(-deviation, deviation)
        var = var + given_up * (_variance(clean).clamp(var / ODD, var * ODD) - var)
        ratio = _variance(clean + share * shift) / _variance(clean)
        ratio = ratio.clamp(min=FLAT)
        if place == EVERY or not place.start:
            total = self.memory["shift"][:, place] if total is None else total[:, place]
            shift, share, ratio = self._undo_fading(total, shift, share, ratio)
        # The layer was trained to subtract `mean`, not the clean mean: the difference shrinks or grows with the rest.
        return torch.stack([clean[0] + share * shift[0] - (clean[0] - mean) * ratio.sqrt(), var * ratio])

    def _undo_fading(self, total: Tensor, shift: Tensor, share: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return shifts, shares and ratios of variances, those of the first layer for a loss of contrast made good.

        Part of the way back is not enough there: a tenth of the variance, moved by half, is five times too much. No
        class looks like that, and before the first layer nothing has moved that could have brought it about. Nor do
        classes look there as they do among clean images: they have faded, too, so that taking them out as they were
        would leave no variance at all.
        """
        first = slice(0, int((self.layer == 0).sum()))
        clean, total = self.reference.clean[:, first], total[:, first]
        full = (_variance(clean + total) / _variance(clean)).clamp(min=FADED)
        lost = float(full.detach().log().mean()) + 1  # what a third of the variance explains is nothing out of the way
        if lost >= 0:
            return shift, share, ratio
        faded = 1 - math.exp(lost)
        score = float((total[1].detach().square() / self._chance(first)[1]).mean())
        plain = self._caution * max(0.0, 1 - self.config.doubt / score) if score > 0 else 0.0
        nearer = share[first].lerp(torch.full_like(share[first], plain), faded)
        smaller = torch.minimum(ratio[first], full.pow(nearer))
        rest = slice(first.stop, None)
        return (
            torch.cat([shift[:, first].lerp(total, faded), shift[:, rest]], 1),
            torch.cat([nearer, share[rest]]),
            torch.cat([smaller, ratio[rest]]),
        )

    def gate(self) -> Tensor:
        """Return for each layer how plainly it is shifted: 0 where chance and classes would explain it, 1 far off."""
        score = self.shift()[1]
        return torch.zeros(int(self.layer[-1]) + 1, device=self.layer.device) if score is None else self._gate(score)

    def plainness(self) -> float:
        """Return how plainly the stream as a whole is shifted: 0 on clean images, towards 1 far off."""
        if self.found:
            return float(self.gate().mean())
        # What clean images look like is not known, but that they are not quite what the network was trained on.
        distance, unsure = self.distance(), UNSURE + float(self.memory["evidence"][1])
        return max(0.0, 1 - (unsure / distance) ** 2) if distance > 0 else 0.0

    def distance(self) -> float:
        """Return how far the means have moved: the median layer's mean square, in units of the variance of images."""
        shift, score = self.shift()
        if score is None:
            return 0.0
        return float(self._by_layer(shift[0].square() / self.reference.within[0]).median())

    def _gate(self, score: Tensor) -> Tensor:
        # Where a few classes fill the stream, what is wrong about them is taken for a shift.
        doubt = self.config.doubt + self.config.wary * float(self._surplus().square().sum())
        return (1 - doubt / score.clamp(min=1e-12)).clamp(min=0)

    def shift(self, total: Tensor | None = None, place: slice = EVERY) -> tuple[Tensor, Tensor | None]:
        """Return the shift of the moments that the classes seen do not explain, and the score of each layer.

        A score is the mean square of a layer's shifts in units of what chance and classes would give: about 1 on clean
        images. None before the first image. The shift of all moments is what is remembered, or else ``total``.
        """
        shift = (self.memory["shift"] if total is None else total)[:, place]
        if not self.memory["classes"].numel():
            return shift, None
        shift = self._without_classes(shift, self._surplus(), place)
        return shift, self._by_layer(shift[0].square() / self._chance(place)[0], place)

    def _chance(self, place: slice) -> Tensor:
        """Return the variance of the shift that chance and doubt about classes would give, (2, channels)."""
        within, between = self.reference.within[:, place], self.reference.between[:, place]
        return within * float(self.memory["evidence"][1]) + between * self._doubted(self._surplus())

    def _surplus(self) -> Tensor:
        """Return by how much the share of each class exceeds that among clean images, (K,)."""
        classes, law = self.memory["classes"], self.reference.law
        return classes - (1 / len(classes) if law is None else law)

    def _doubted(self, surplus: Tensor) -> float:
        """Return what is in doubt of a surplus of classes (K,), squared."""
        rest = 1.0 if self.reference.class_means is None else 1 - self.config.trust
        return rest**2 * float(surplus.square().sum())

    def _without_classes(self, moments: Tensor, surplus: Tensor, place: slice = EVERY) -> Tensor:
        """Take what a surplus of classes (K,) explains out of moments (2, channels)."""
        if self.reference.class_means is None:
            return moments
        explained = torch.einsum("k,kmc->mc", surplus, self.reference.class_means[..., place])
        # Predictions may all be of one class because the network is lost. Then the moments do not speak for that class,
        # and taking it out would drive the statistics away from what they should be.
        within = self.reference.within[0, place]
        told = self._by_layer(moments[0] * explained[0] / within, place)
        whole = self._by_layer(explained[0].square() / within, place)
        belief = self.config.trust * (SPOKEN_FOR * told / whole.clamp(min=1e-12)).clamp(0, 1)
        return moments - (belief[self.layer] if place == EVERY else belief) * explained

    def _by_layer(self, values: Tensor, place: slice = EVERY) -> Tensor:
        """Return the mean of values (channels,) over the channels of each layer, or of the one that stands there."""
        if place != EVERY:
            return values.mean(0, keepdim=True)
        return mean_by_layer(values, self.layer)


def mean_by_layer(values: Tensor, layer: Tensor) -> Tensor:
    """Return the mean of values (channels,) over the channels of each layer, whose numbers ``layer`` has."""
    layers = int(layer[-1]) + 1
    return values.new_zeros(layers).index_add(0, layer, values) / torch.bincount(layer, minlength=layers)


def _are_shares(found: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether a tensor holds shares of classes, (K,): not below 0, and together 1."""
    return (
        found.dtype == dtype
        and found.dim() == 1
        and float(found.min()) >= 0
        and abs(float(found.double().sum()) - 1) < 1e-2
    )


def _require_moments(found: Mapping[str, Tensor], known: Tensor) -> None:
    """Refuse what :meth:`MinimalStatistics.describe` would not say of clean images of this network."""
    lacking = [name for name in (*MOMENT_SHAPES, *(["within"] if "class_means" in found else [])) if name not in found]
    if lacking:
        raise SourceStatsError(f"These source statistics lack {lacking[0]}.", "Make them again.")
    law = found["law"]
    shapes = dict.fromkeys(("clean", "spread", "within"), known.shape)
    shapes["class_means"] = torch.Size((*law.shape, *known.shape))
    odd = [name for name, shape in shapes.items() if name in found and found[name].shape != shape]
    odd += [name for name in ("spread", "within") if name in found and bool((found[name] < 0).any())]
    odd += [] if law.numel() and _are_shares(law, law.dtype) else ["law"]
    if odd:
        shape = tuple(found[odd[0]].shape)
        raise SourceStatsError(
            f"These source statistics hold {odd[0]} of shape {shape} as no images of this network give it.",
            "Make them again.",
        )


def _variance(moments: Tensor) -> Tensor:
    """Return the variance of first and second moments, (2, channels)."""
    return (moments[1] - moments[0].square()).clamp(min=1e-12)
