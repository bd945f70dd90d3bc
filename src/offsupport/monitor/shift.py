"""One shift score: how far images lie from clean ones, by what the source model's own layers see of them.

For each channel of each norm layer, the mean of an image over its positions is compared with that of clean images of
the class it is taken for. On clean images the squared difference, in units of what chance gives, is 1. A shift moves
all images the same way, so it stands out the more the more images there are; to be comparable, the score is said for
:data:`REFERENCE` images however many were seen. A model without norm layers is looked at by its logits.

Of a single image two things tell whether it is off the support: how rare its moments are among those of clean images,
and, where it comes with others, whether it differs from clean images in the way these others do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from offsupport.core.errors import InputError

REFERENCE = 64
"""The score is what the test would give for so many images."""
LARGEST = 64 * 2**20
"""Class means of more bytes are kept for all classes together."""
FADE = 512
"""Images over which a stream's moments fade."""


def seen_by_layers(means: list[Tensor], logits: Tensor) -> tuple[Tensor, list[int]]:
    """Return channel means of all layers side by side, (N, C), and the width of each layer.

    Args:
        means: What :func:`offsupport.nn.norm.capture_means` collected in one pass.
        logits: The logits of the same pass.
    """
    # Layers that see each image more than once (windows of a transformer, say) cannot be told apart by image.
    usable = [mean.float() for mean in means if len(mean) == len(logits) and mean.dim() == 2]
    if not usable:
        rows = logits.float().flatten(2).mean(2) if logits.dim() > 2 else logits.float()
        usable = [rows]
    return torch.cat(usable, 1), [mean.shape[1] for mean in usable]


def weights_of(logits: Tensor) -> Tensor:
    """Return how much of each class an image is taken for, (N, K)."""
    probabilities = logits.float().softmax(1)
    return probabilities if probabilities.dim() == 2 else probabilities.flatten(2).mean(2)


@dataclasses.dataclass(frozen=True)
class CleanMoments:
    """What the layers of the source model see of clean images.

    Args:
        means: Mean of the channels for each class, (K, C); (1, C) where that would be too large.
        spread: Variance of an image's value about the mean of its class, (C,).
        widths: Channels of each layer.
        samples: How many images they are of.
    """

    means: Tensor
    spread: Tensor
    widths: tuple[int, ...]
    samples: int

    @staticmethod
    def fit(batches: Iterable[tuple[Tensor, Tensor, list[int]]]) -> CleanMoments:
        """Collect them from channel means (N, C), logits (N, K, ...) and widths, batch by batch."""
        values, labels, classes, widths = [], [], 1, [0]
        for value, logits, widths in batches:  # noqa: B007 (the widths are the same in every batch)
            values.append(value.cpu())
            labels.append(weights_of(logits).argmax(1).cpu())
            classes = logits.shape[1]
        if not values or sum(map(len, values)) < 2:
            raise InputError("A shift score needs at least two clean images.", "Give more of them.")
        x, y = torch.cat(values).double(), torch.cat(labels)
        if classes * x.shape[1] * 4 > LARGEST:
            classes, y = 1, torch.zeros_like(y)
        count = torch.bincount(y, minlength=classes).double()[:, None]
        total = x.new_zeros(classes, x.shape[1]).index_add(0, y, x)
        # A class without clean images is expected to look like all of them.
        means = torch.where(count > 0, total / count.clamp(min=1), x.mean(0))
        freedom = max(1, len(x) - int((count > 0).sum()))
        spread = (x - means[y]).square().sum(0) / freedom
        return CleanMoments(means.float(), _floored(spread, widths).float(), tuple(widths), len(x))

    def difference(self, values: Tensor, logits: Tensor) -> Tensor:
        """Return by how much images differ from clean ones of their class, (N, C)."""
        if len(self.means) == 1:
            return values.float() - self.means.to(values.device)
        return values.float() - weights_of(logits) @ self.means.to(values.device)

    def fits(self, values: Tensor) -> bool:
        """Tell whether values come from the same layers."""
        return values.shape[1] == self.means.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return them as tensors for a file."""
        return {
            "means": self.means,
            "spread": self.spread,
            "widths": torch.tensor(self.widths),
            "samples": torch.tensor(self.samples),
        }

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> CleanMoments:
        """Undo :meth:`tensors`."""
        widths = tuple(int(width) for width in tensors["widths"])
        return CleanMoments(tensors["means"], tensors["spread"], widths, int(tensors["samples"]))


CLEAN_NAMES = tuple(field.name for field in dataclasses.fields(CleanMoments))


def are_clean_moments(tensors: Mapping[str, Tensor], classes: int) -> bool:
    """Tell whether tensors could be those of :class:`CleanMoments`, of a network with so many classes."""
    means, spread, widths, samples = (tensors[name] for name in CLEAN_NAMES)
    sides = means.dim() == 2 and len(means) in (1, classes) and spread.shape == means.shape[1:]
    floats = means.is_floating_point() and spread.is_floating_point()
    if not (sides and floats and widths.dim() == 1 and widths.dtype == torch.long and not samples.dim()):
        return False
    whole = len(widths) > 0 and int(widths.min()) > 0 and int(widths.sum()) == len(spread)
    return whole and float(spread.min()) > 0 and float(samples) >= 1


def _floored(spread: Tensor, widths: Iterable[int]) -> Tensor:
    """Keep dead channels from dividing by zero: each gets a thousandth of its layer's mean."""
    return torch.cat([part + 1e-3 * part.mean() + 1e-12 for part in torch.split(spread, list(widths))])


def fold(state: Tensor, differences: Tensor) -> Tensor:
    """Return faded sums after one more batch: the weights, their squares, then the differences, (2 + C,)."""
    new = torch.cat([differences.new_full((2,), float(len(differences))), differences.sum(0)])
    if state.numel() == 0:
        return new
    keep = math.exp(-len(differences) / FADE)
    fade = state.new_full(state.shape, keep)
    fade[1] = keep * keep
    return state.to(new.device) * fade.to(new.device) + new


def shift_score(state: Tensor, clean: CleanMoments) -> float:
    """Return the score of what :func:`fold` summed up: 1 on clean images, more the further off they are."""
    weight, squares = float(state[0]), float(state[1])
    chance = squares / weight**2 + 1 / clean.samples
    scaled = (state[2:].cpu().double() / weight).square() / clean.spread.cpu().double()
    layers = [part.mean() for part in torch.split(scaled, list(clean.widths))]
    # Early layers see every change, later ones those that matter: they follow the error more closely.
    mean = float(torch.stack(layers[len(layers) // 2 :]).mean())
    return 1.0 + REFERENCE * max(0.0, mean - chance)


# Each image by itself: is it off the support?


SHRINK = 0.1
"""Share of the identity in a covariance of standardised moments: there are more of them than images."""
FOLDS = 5
"""Clean images are judged by the others: parts that are left out in turn."""
PER_CLASS = 10
"""So many clean images per class are needed to weigh classes, and so many count for the usual ones."""
COMPANY = 4
"""So many images at least tell in which way they differ together."""
MOST_COMPANY = 400
"""The way is found from so many of them, and as many clean ones; the rest is only judged by it."""
ALLOWED_ALONE, ALLOWED_TOGETHER = 0.0075, 0.025
"""Shares of clean images that are called off the support by either kind of evidence, where there are both."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One kind of evidence that images are off the support, the more the larger.

    Args:
        clean: Of clean images, (n,).
        images: Of the images in question, (M,).
        weights: Of the clean images, (n,).
        allowed: Share of clean images that may exceed the limit.
    """

    clean: Tensor
    images: Tensor
    weights: Tensor
    allowed: float

    def alone(self) -> Evidence:
        """Return the same where there is no company: classes of other images do not count, and all is allowed."""
        allowed = ALLOWED_ALONE + ALLOWED_TOGETHER
        return dataclasses.replace(self, weights=torch.ones_like(self.weights), allowed=allowed)

    @property
    def limit(self) -> float:
        """What one more clean image exceeds in that share of cases; of few images that is their largest."""
        values, order = self.clean.double().sort()
        share = self.weights[order] / self.weights.sum()
        # The one more counts as much as an average one.
        below = share.cumsum(0) / (1 + share.square().sum())
        return float(values[min(int((below < 1 - self.allowed).sum()), len(values) - 1)])


def class_weights(clean: Tensor, images: Tensor) -> Tensor:
    """Return weights of clean images under which their classes come as often as those of other images, mean 1, (n,).

    Other classes than usual are no reason to call images off the support.

    Args:
        clean: Logits of the clean images, (n, K, ...).
        images: Logits of the others, (M, K, ...).
    """
    taken, others = weights_of(clean).double().cpu(), weights_of(images).double().cpu()
    usual, classes = taken.mean(0), taken.shape[1]
    if len(clean) < PER_CLASS * classes:
        return torch.ones(len(clean), dtype=torch.float64)
    found = (others.sum(0) + PER_CLASS * usual) / (len(images) + PER_CLASS)
    weights = taken @ (found / (usual + 1e-3 / classes))
    return weights / weights.mean()


def image_evidence(clean: list[Tensor], images: list[Tensor], weights: Tensor) -> list[Evidence]:
    """Return what speaks against each image: its own moments, and what it has in common with the other ones.

    Args:
        clean: What :func:`offsupport.nn.norm.capture_moments` collected of clean images, (n, C, 2) for each layer.
        images: The same of the images in question, (M, C, 2) for each layer.
        weights: Of the clean images, (n,), as :func:`class_weights` gives them.
    """
    some = _evenly(torch.arange(len(clean[0])), MOST_COMPANY)
    clean, weights = [layer[some] for layer in clean], weights[some]
    n, layers = len(some), len(clean)
    with_all = torch.arange(n + len(images[0]))
    company = torch.cat([with_all[:n], _evenly(with_all[n:], MOST_COMPANY)])
    alone: list[Tensor] = []
    kernel = torch.zeros(len(with_all), len(company), dtype=torch.float64)
    for layer, others in zip(clean, images, strict=True):
        x = _standardised(layer, others)
        products = x @ x[company].T
        alone.append(_rarity(products, x.square().sum(1), n, x.shape[1]))
        kernel += products / (x.shape[1] * layers)
    rarity = torch.stack(alone, 1)
    spread, mean = torch.std_mean(rarity[:n], 0)
    own = ((rarity - mean) / (spread + 1e-12)).amax(1)
    if len(images[0]) < COMPANY:
        return [Evidence(own[:n], own[n:], weights, ALLOWED_ALONE).alone()]
    shared = _shared_way(kernel, company, weights)
    return [
        Evidence(own[:n], own[n:], weights, ALLOWED_ALONE),
        Evidence(shared[:n], shared[n:], weights, ALLOWED_TOGETHER),
    ]


def off_support(evidence: list[Evidence]) -> Tensor:
    """Return for each image one number from all evidence, (M,): above 1 it is off the support.

    Of clean images as many are above 1 as all kinds of evidence allow together, or fewer.
    """
    beyond = [(kind.images.double() - kind.limit) / (kind.clean.double().std() + 1e-12) for kind in evidence]
    # The unit is the spread of clean images; far beyond it only the order matters, and numbers stay finite.
    return torch.stack(beyond, 1).amax(1).clamp(max=50).exp().float()


def _evenly(rows: Tensor, most: int) -> Tensor:
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).long()]


def _standardised(clean: Tensor, images: Tensor) -> Tensor:
    """Return means and logarithms of deviations of all images in units of the clean ones, (n + M, 2 C)."""
    floor = 1e-3 * clean[..., 1].double().mean() + 1e-12
    x = torch.cat([clean, images]).double().cpu()
    x = torch.cat([x[..., 0], (x[..., 1] + floor).log()], 1)
    spread, mean = torch.std_mean(x[: len(clean)], 0)
    return (x - mean) / (spread + 1e-3 * spread.mean() + 1e-12)


def _rarity(products: Tensor, squares: Tensor, n: int, width: int) -> Tensor:
    """Return the logarithm of each image's Mahalanobis distance from clean ones, which do not count for themselves.

    By products of images alone, (n + M, n + ...), as there are fewer images than moments.
    """
    rows = torch.arange(len(products))
    fold = torch.where(rows < n, rows % FOLDS, FOLDS)
    found = torch.empty(len(products), dtype=torch.float64)
    for part in range(FOLDS + 1):
        base, judged = rows[:n][fold[:n] != part], rows[fold == part]
        if not len(judged):
            continue
        to_mean = products[:, base].mean(1)
        middle = to_mean[base].mean()
        among = products[base][:, base] - to_mean[base, None] - to_mean[base] + middle
        towards = products[judged][:, base] - to_mean[judged, None] - to_mean[base] + middle
        own = squares[judged] - 2 * to_mean[judged] + middle
        share = (1 - SHRINK) / (len(base) - 1)
        inner = torch.linalg.solve(SHRINK * torch.eye(len(base)).to(among) + share * among, towards.T).T
        squared = (own - share * (towards * inner).sum(1)) / (SHRINK * width)
        found[judged] = squared.clamp(min=1e-12).log() / 2
    return found


def _shared_way(kernel: Tensor, company: Tensor, weights: Tensor) -> Tensor:
    """Return how much each image goes the way in which the others differ from clean ones, (n + M,).

    Ridge regression of +1 (in question) on -1 (clean), both sides of equal weight. No image counts in its own answer:
    what is left out of a ridge regression is known in closed form.
    """
    among = kernel[company]
    scale = float(among.diagonal().mean())
    n, m = len(weights), len(company) - len(weights)
    weight = torch.cat([weights / weights.sum(), torch.full((m,), 1 / m).double()]) * (n + m) / 2
    side = torch.cat([torch.full((n,), -1.0), torch.full((m,), 1.0)]).double()
    root = weight.sqrt()
    # A large constant in the kernel is an intercept that is not shrunk.
    weighted = root[:, None] * (among + 10 * scale) * root
    inverse = torch.linalg.inv(weighted + scale * torch.eye(len(company)).to(among))
    dual = inverse @ (root * side)
    answers: Tensor = (kernel + 10 * scale) @ (root * dual)
    answers[company] = side - dual / (inverse.diagonal() * root)
    return answers
