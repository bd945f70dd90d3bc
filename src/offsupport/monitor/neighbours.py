"""Labels of a stream whose images do not come in random order, told by their neighbours.

Two kinds of order, and a model of each. Sorted streams change class seldom: a hidden Markov chain, whose next label is
mostly the last one. Streams in bursts have another law of the classes from stretch to stretch, within which the order
is random: there the law of each image is that of its neighbours. Which of the two a window is, is told by which of them
predicts its images better.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from offsupport.monitor.calibration import Floats, Scale

if TYPE_CHECKING:
    from offsupport.monitor.calibration import Ints

STAYS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Chances that the next image has the same label; the likeliest is taken."""
SOFTENED = 2.0
"""Confidence under a shift is too high: in the chain, logits are divided by this once more."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Labels of a stream, told by neighbours.

    Args:
        posterior: Chance of each label for each image, (N, K).
        stays: The chance that the next image has the same label.
    """

    posterior: Floats
    stays: float


def label_chain(logits: Floats, temperature: float) -> Chain:
    """Return what a hidden Markov chain says of the labels behind a model's logits, (N, K).

    The next label is the same with chance ``stays``, else any. A prediction counts for a class as much as it exceeds
    what that class usually gets: a shifted model that sees frogs everywhere says little by one frog more.
    """
    p = softmax(logits / (SOFTENED * temperature), axis=1)
    classes = p.shape[1]
    likelihood = p / np.maximum(p.mean(0), 0.2 / classes)
    likelihood = np.maximum(likelihood / likelihood.max(1, keepdims=True), 1e-6)
    forward = [_forward(likelihood, stays) for stays in STAYS]
    best = max(range(len(STAYS)), key=lambda place: forward[place][1])
    posterior = forward[best][0] * _backward(likelihood, STAYS[best])
    return Chain(posterior / posterior.sum(1, keepdims=True), STAYS[best])


def _forward(likelihood: Floats, stays: float) -> tuple[Floats, float]:
    found, total = np.empty_like(likelihood), 0.0
    now = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    anew = (1 - stays) / likelihood.shape[1]
    for place, row in enumerate(likelihood):
        now = row * (stays * now + anew)
        size = float(now.sum())
        total += float(np.log(size))
        now = now / size
        found[place] = now
    return found, total


def _backward(likelihood: Floats, stays: float) -> Floats:
    found = np.ones_like(likelihood)
    anew = (1 - stays) / likelihood.shape[1]
    for place in range(len(likelihood) - 2, -1, -1):
        ahead = likelihood[place + 1] * found[place + 1]
        now = stays * ahead + anew * ahead.sum()
        found[place] = now / now.sum()
    return found


# Images that come in bursts of a few classes each.


REACH = (8.0, 30.0)
"""Images over which a neighbour's weight falls to a third; the likeliest is taken."""
FROM_NEIGHBOURS = 0.95
"""How much of an image's law comes from its neighbours; the rest is any class."""
RIGHT = 0.6
"""How often predictions are held to be right at the start."""
USUAL_ERRORS = (20.0, 60.0)
"""Predictions that the usual errors count for beside those of a class: where order alone tells, and with transport."""
ROUNDS = (20, 8, 8)
"""Steps of expectation and maximisation until transport is asked, and after each time it was."""
MOST = 100
"""Of more classes, those are looked at that are predicted most."""


@dataclasses.dataclass(frozen=True)
class Bursts:
    """Labels of a stream in bursts.

    Args:
        posterior: Chance of each label for each image, (N, K).
        evidence: Mean log-likelihood of an image, given its neighbours.
        chained: The same by the likeliest chain.
    """

    posterior: Floats
    evidence: float
    chained: float

    @property
    def law(self) -> Floats:
        """Shares of the classes in the window."""
        found: Floats = self.posterior.mean(0)
        return found


def label_bursts(logits: Floats, scale: Scale) -> Bursts:
    r"""Return what neighbours tell of the labels behind a model's logits, (N, K).

    The model sees class j in image t with chance :math:`p_{tj}`, and where the label is k it does so in a share
    :math:`C_{kj}` of the images: errors of a shifted model have favourites. So the image speaks for k by
    :math:`l_{tk} = \sum_j C_{kj} p_{tj} / \bar p_j`. Labels before that are distributed as those of the neighbours.
    Both the labels and C are found by expectation and maximisation. No image is told by itself: an even one asks odd
    neighbours, which have asked odd ones.

    Order alone does not tell errors from classes that are few in a burst. Transport does, once it knows the law of the
    window; so the two are asked in turn, and C is right as often as transport says.
    """
    n, classes = logits.shape
    p = softmax(logits / scale.temperature, axis=1)
    looked = np.sort(np.argsort(-p.sum(0), kind="stable")[:MOST])
    p = p[:, looked]
    usual = np.maximum(p.mean(0), 0.02 / classes)
    seen = p / usual
    # An image that is surely none of these speaks for none of them.
    seen[p.sum(1) < np.finfo(p.dtype).tiny] = 1
    found = [_bursts(seen, usual / usual.sum(), logits, looked, scale, reach) for reach in REACH]
    posterior, likelihood, evidence = max(found, key=lambda each: each[2])
    chained = max(_forward(likelihood, stays)[1] for stays in STAYS) / n
    return Bursts(_spread(posterior, looked, classes), evidence, chained)


def _bursts(
    seen: Floats, usual: Floats, logits: Floats, looked: Ints, scale: Scale, reach: float
) -> tuple[Floats, Floats, float]:
    """Return labels, likelihoods and evidence for one reach."""
    place = np.arange(len(seen))
    side = place % 2
    near = np.exp(-np.abs(place[:, None] - place) / reach)
    np.fill_diagonal(near, 0)
    # The laws of all images from those with an odd place, and from those with an even one.
    kernels = [near * (side == other) for other in (1, 0)]
    kernels = [kernel / kernel.sum(1, keepdims=True) for kernel in kernels]
    confusion = _usual_confusion(RIGHT, usual)
    likelihood = seen @ confusion.T
    halves = [likelihood / likelihood.sum(1, keepdims=True)] * 2
    right: float | None = None
    for rounds in ROUNDS:
        for _ in range(rounds):
            laws = [_mixed(kernel @ labels) for kernel, labels in zip(kernels, halves, strict=True)]
            halves = [likelihood * law for law in laws]
            halves = [labels / labels.sum(1, keepdims=True) for labels in halves]
            law, labels = (np.where(side[:, None] == 0, *pair) for pair in (laws, halves))
            confusion = _confusion(confusion, labels / np.maximum(likelihood, 1e-300), seen, right)
            likelihood = seen @ confusion.T
        # Transport adds what a law has no room for by chance, and may so come to more than all images.
        right = min(1.0, scale.transported(logits, _spread(labels, looked, logits.shape[1]).mean(0)))
    return labels, likelihood, float(np.log((likelihood * law).sum(1)).mean())


def _mixed(law: Floats) -> Floats:
    found: Floats = (1 - FROM_NEIGHBOURS) / law.shape[1] + FROM_NEIGHBOURS * law
    return found


def _spread(labels: Floats, looked: Ints, classes: int) -> Floats:
    found = np.zeros((len(labels), classes))
    found[:, looked] = labels
    return found


def _usual_confusion(right: float, errors: Floats) -> Floats:
    """Return the confusion of a model that errs alike in all classes."""
    found: Floats = right * np.eye(len(errors)) + (1 - right) * errors
    return found


def _confusion(confusion: Floats, weights: Floats, seen: Floats, right: float | None) -> Floats:
    """Return how often each label is seen as each class, (K, K), by one step of maximisation.

    Few images of a class tell little of it: the usual errors, and how often predictions are right, are added.
    """
    counts = (weights.T @ seen) * confusion
    total, diagonal = counts.sum(), np.trace(counts)
    errors = (counts.sum(0) - counts.diagonal() + 1) / (total - diagonal + len(counts))
    by_chance = float(counts.sum(1) @ errors / total)
    share = diagonal / total if right is None else right
    prior = _usual_confusion(max(0.0, (float(share) - by_chance) / (1 - by_chance)), errors)
    strength = USUAL_ERRORS[right is not None]
    found: Floats = (counts + strength * prior) / (counts.sum(1, keepdims=True) + strength)
    return found
