"""Accuracy without labels: of the source model and of the adapted one, and whether adapting helps.

No estimate can be right for every shift, so each comes with an interval, and where nothing can be known nothing is
said. Ways, by what the stream allows:

* In random order the source model is judged by transport (COTT): its predictions are matched with labels in the shares
  of the source. A shifted model favours classes, and that shows.
* The adapted model mostly has balanced classes by construction, so it is judged by how many images it is sure of
  (ATC), and the fall of that is made steeper as simulated shifts showed for this model and method. Steps that make a
  model sure can make it sure and wrong: it cannot be right on more images than the law of the classes has room for,
  nor, near the source, where it leaves a source model that is right. A model that no order confuses balances nothing:
  it is judged by both, transport and confidence.
* Where images of a class come together, neighbours are further views of the same label: a hidden Markov chain over the
  source model's predictions tells the labels, and both models are held against those. Batch statistics make a model
  sure and wrong there, and nothing in its own confidence tells.
* Where images come in bursts of a few classes each, neighbours tell the law of the window, and transport goes by that.
  The less plainly they do, the more the law of the source counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offsupport.core.errors import InputError, SourceStatsError
from offsupport.monitor.alarms import order_score, quarrel
from offsupport.monitor.calibration import Calibration, Floats, Scale, marks_of, rows_of
from offsupport.monitor.neighbours import Bursts, Chain, label_bursts, label_chain
from offsupport.monitor.shift import fold, shift_score

Verdict = Literal["helps", "neutral", "harms", "unknown"]
Order = Literal["iid", "not iid", "unknown"]

WINDOW = 512
"""Images that an estimate is about: the last ones."""
FEWEST = 30
"""Fewer images give no estimate."""
ORDERED = 4.0
"""Deviations of repeats from which on a window is not taken for a random order; milder than an alarm."""
MODEL_ERRORS = {"transport": (0.02, 0.1), "confidence": (0.02, 0.2), "chain": (0.008, 0.3), "bursts": (0.015, 0.3)}
"""Standard error of each way, and how much it grows: with the fall of accuracy; for the chain with its doubt; in bursts
with what transport and neighbours say differently."""
TOLD_APART = 100
"""Images in bursts tell as much as so many in random order."""
PLAIN = (0.1, 0.3)
"""Log-likelihoods that neighbours add to an image's: up to the first no bursts are believed, from the second on they
are."""
BEYOND = 0.05
"""By so much they must add more than a chain does for all that to be believed."""
DOUBTED = 0.3
"""Standard error of the law of a window, in units of what it changes."""
NEAR_CLEAN = 0.006
"""What is known of clean images is believed up to this error per unit of the shift score."""
SMALL = 0.03
"""A benefit that surely lies within this is neutral."""
Z95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimated value and where it lies in 95 of 100 cases."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What can be said of the last images without labels; a field is None where nothing can.

    Args:
        source: Accuracy of the source model.
        adapted: Accuracy of the adapted one.
        benefit: Adapted minus source; never beyond the share of images they disagree on, which is proven.
        n: How many images it is about.
        agreement: Share of them that both models give the same class.
        shift: 1 on clean images, more the further off they are.
        order: Whether images come in random order, as far as predictions tell.
        verdict: ``helps`` or ``harms`` where the whole interval of the benefit says so, ``neutral`` where it is small.
        reason: Why so, in a sentence.
    """

    source: Interval | None
    adapted: Interval | None
    benefit: Interval | None
    n: int
    agreement: float | None
    shift: float | None
    order: Order
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}"]
        lines += [f"source model: {self.source}"] if self.source else []
        lines += [f"adapted model: {self.adapted}"] if self.adapted else []
        about = [f"the last {self.n} images"]
        about += [f"agreement {100 * self.agreement:.0f} %"] if self.agreement is not None else []
        about += [f"shift score {self.shift:.1f}"] if self.shift is not None else []
        about += [f"order {self.order}"]
        return "\n".join([*lines, ", ".join(about)])


@dataclasses.dataclass(frozen=True)
class Window:
    """The last answers of a stream, in its order.

    Args:
        source: Logits of the source model, (rows, K).
        adapted: Logits of the adapted one for the same images.
        images: How many images the rows are of: fewer than rows for dense predictions.
        shift: The shift score, where it is known.
        copies: How many of the images are among those the calibration was made of.
        resized: How many have another size than those.
        steady: Whether the order of images does not change what the adapted model makes of them: then it is the better
            witness of that order under a shift, in which the source model takes all images for a few classes.
    """

    source: Floats
    adapted: Floats
    images: int
    shift: float | None = None
    copies: int = 0
    resized: int = 0
    steady: bool = False

    @property
    def witness(self) -> Floats:
        """Logits of the model whose predictions tell the order."""
        return self.adapted if self.steady else self.source


def estimate_accuracy(logits: npt.ArrayLike | Tensor, calibration: Calibration) -> Interval:
    """Return the accuracy of the model a calibration is of, on images whose logits (N, K) these are.

    The images should come in the order they were taken in, at best a random one, with classes in about the shares that
    the clean images had.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 600)
        >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(600, 3))
        >>> found = estimate_accuracy(logits[300:], Calibration.fit(logits[:300], labels[:300]))
        >>> found.low < float((logits[300:].argmax(1) == labels[300:]).mean()) < found.high
        True
    """
    rows = np.asarray(logits, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(calibration.law) or not np.isfinite(rows).all():
        raise InputError(
            f"Logits of shape {rows.shape} are not finite rows of {len(calibration.law)} classes.",
            "Give those of the model that was calibrated, (images, classes).",
        )
    if calibration.source is None:
        raise InputError("This calibration was made without labels.", "Make it again with labels.")
    if reason := _nothing_to_say(Window(rows, rows, len(rows)), calibration):
        raise InputError(reason, "Give more images, or a calibration with all classes.")
    return _judge(Window(rows, rows, len(rows)), calibration).source


def estimate(window: Window, calibration: Calibration | None) -> Estimate:
    """Return what can be said of the last answers of a stream."""
    n = window.images
    if n < FEWEST:
        reason = f"an estimate needs {FEWEST} images that the source model saw, too; so far it saw {n}."
        return _unknown(window, reason, "unknown", bare=True)
    order = order_of(window)
    if calibration is None:
        return _unknown(
            window,
            "no clean source images are known. Pass source=source_stats(model, clean, method, labels=labels).",
            order,
        )
    if calibration.source is None:
        return _unknown(window, "the clean source images came without labels.", order)
    if reason := _nothing_to_say(window, calibration):
        return _unknown(window, reason, order)
    judged = _judge(window, calibration)
    agreement = _agreement(window)
    verdict, reason = _verdict(judged.benefit, agreement)
    return Estimate(judged.source, judged.adapted, judged.benefit, n, agreement, window.shift, order, verdict, reason)


def order_of(window: Window) -> Order:
    """Return whether the images come in random order, as far as either model's predictions tell."""
    if len(window.source) > window.images:
        return "unknown"
    told = (window.adapted,) if window.steady else (window.source, window.adapted)
    scores = [order_score(torch.from_numpy(rows.argmax(1))) for rows in told]
    return "not iid" if max(scores) > ORDERED else "iid"


def _agreement(window: Window) -> float:
    return float((window.source.argmax(1) == window.adapted.argmax(1)).mean())


def _unknown(window: Window, reason: str, order: Order, bare: bool = False) -> Estimate:
    agreement = None if bare or not len(window.source) else _agreement(window)
    shift = None if bare else window.shift
    return Estimate(None, None, None, window.images, agreement, shift, order, "unknown", reason)


def _nothing_to_say(window: Window, calibration: Calibration) -> str:
    """Return why there is no estimate, if there is none."""
    if window.images < FEWEST:
        return f"an estimate needs {FEWEST} images, and {window.images} were given."
    if 20 * window.copies > window.images:
        return (
            f"{window.copies} of the last {window.images} images are among the clean ones the calibration was made of."
        )
    if 2 * window.resized > window.images:
        return f"the images have another size than the clean ones, {calibration.size}."
    if len(np.unique(window.source.argmax(1))) < 2:
        return "the source model gives all the last images one class, which no calibration covers."
    return ""


@dataclasses.dataclass(frozen=True)
class _Judged:
    source: Interval
    adapted: Interval
    benefit: Interval


Told = tuple[float, float]
"""A value and its standard error."""


@dataclasses.dataclass(frozen=True)
class _Said:
    """What one way of telling says of both accuracies and of their difference."""

    source: Told
    adapted: Told
    benefit: Told

    def judged(self, window: Window) -> _Judged:
        return _Judged(
            _interval(*self.source), _interval(*self.adapted), _bounded(*self.benefit, 1 - _agreement(window))
        )

    def mixed(self, other: _Said, weight: float) -> _Said:
        """Return the mean and the error of two, of which this one is true with chance ``weight``."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return _Said(*(_mixture(*pair, weight) for pair in pairs))


def _mixture(one: Told, other: Told, weight: float) -> Told:
    value = weight * one[0] + (1 - weight) * other[0]
    squares = weight * one[1] ** 2 + (1 - weight) * other[1] ** 2
    return value, float(np.sqrt(squares + weight * (1 - weight) * (one[0] - other[0]) ** 2))


def _judge(window: Window, calibration: Calibration) -> _Judged:
    assert calibration.source is not None  # noqa: S101 (asked before)
    if order_of(window) == "not iid":
        scale = (window.steady and calibration.adapted) or calibration.source
        bursts = label_bursts(window.witness, scale)
        if bursts.evidence > bursts.chained:
            return _by_bursts(window, calibration, calibration.source, bursts).judged(window)
        chain = label_chain(window.witness, scale.temperature)
        if chain.stays >= 0.6:
            return _by_chain(window, chain)
    return _by_scores(window, calibration, calibration.source).judged(window)


def _interval(value: float, error: float) -> Interval:
    value = min(1.0, max(0.0, value))
    return Interval(value, max(0.0, value - Z95 * error), min(1.0, value + Z95 * error))


def _root(*errors: float) -> float:
    return float(np.sqrt(sum(error * error for error in errors)))


def _binomial(share: float, n: int) -> float:
    # Never zero: even a sure answer is one of n.
    return float(np.sqrt(max(share * (1 - share), 1 / n) / n))


def _by_scores(window: Window, calibration: Calibration, source: Scale) -> _Said:
    adapted = calibration.adapted or source
    n, law = window.images, calibration.law
    floor = 1 / len(law)
    differ = 1 - _agreement(window)
    before = max(floor / 2, source.transported(window.source, law))
    sure = _steady(window, adapted, law) if window.steady else adapted.sloped(window.adapted)
    sure = max(floor / 2, sure)
    # What its confidence does not tell: classes it gives too often, and that it leaves a source model that is right.
    after = min(sure, max(floor / 2, adapted.ceiling(window.adapted, law)))
    if window.shift is not None:
        after = min(after, 1 - max(0.0, before - NEAR_CLEAN * (window.shift - 1)) + 1 - differ)
    # Where both say the same, both are right.
    after = max(after, before - differ)
    errors = [
        _root(constant, grows * max(0.0, scale.accuracy - value), _binomial(scale.accuracy, scale.samples))
        for (constant, grows), scale, value in (
            (MODEL_ERRORS["transport"], source, before),
            (MODEL_ERRORS["confidence"], adapted, after),
        )
    ]
    # Shares of classes scatter by chance; transport takes part of that for errors.
    errors[0] = _root(errors[0], 0.15 * float(np.sqrt(law * (1 - law) / n).sum()))
    if _same(window):
        after, errors[1] = before, errors[0]
    paired = float(np.sqrt(max(differ, 1 / n) / n))
    benefit, error = after - before, _root(*errors, paired)
    if calibration.adapted is not None and window.shift is not None:
        known, doubt = calibration.benefit
        # A method that is sure and wrong is not what it was when it was calibrated.
        doubt = _root(doubt, paired, NEAR_CLEAN * (window.shift - 1), sure - after)
        weight = error**2 / (error**2 + doubt**2)
        benefit, error = (1 - weight) * benefit + weight * known, error * doubt / _root(error, doubt)
    return _Said(
        (before, _root(errors[0], _binomial(before, n))),
        (after, _root(errors[1], _binomial(after, n))),
        (benefit, error),
    )


def _same(window: Window) -> bool:
    return bool((window.source.argmax(1) == window.adapted.argmax(1)).all())


def _bounded(benefit: float, error: float, differ: float) -> Interval:
    """Return the benefit within the share of images on which the models differ: beyond, it cannot lie."""
    low, high = (float(np.clip(benefit + sign * Z95 * error, -differ, differ)) for sign in (-1, 1))
    return Interval(float(np.clip(benefit, -differ, differ)), low, high)


def _verdict(benefit: Interval, agreement: float) -> tuple[Verdict, str]:
    bound = f"they disagree on {100 * (1 - agreement):.0f} % of the images"
    if benefit.low > 0:
        return "helps", f"the adapted model is right more often by {benefit}; {bound}."
    if benefit.high < 0:
        return "harms", f"the adapted model is right less often, by {benefit}; {bound}. Use the source model."
    if benefit.low > -SMALL and benefit.high < SMALL:
        return "neutral", f"both models are right about equally often; {bound}."
    return "unknown", f"the difference of the models may have either sign, {benefit}; {bound}."


def _by_chain(window: Window, chain: Chain) -> _Judged:
    n, rows = window.images, np.arange(len(window.source))
    chances = [chain.posterior[rows, logits.argmax(1)] for logits in (window.source, window.adapted)]
    constant, grows = MODEL_ERRORS["chain"]
    doubt = 1 - float(chain.posterior.max(1).mean())
    model = constant + grows * doubt
    errors = [_root(model, float(np.sqrt(max((c * (1 - c)).mean(), 1 / n) / n))) for c in chances]
    gain = chances[1] - chances[0]
    differ = 1 - _agreement(window)
    return _Judged(
        _interval(float(chances[0].mean()), errors[0]),
        _interval(float(chances[1].mean()), errors[1]),
        _bounded(float(gain.mean()), _root(model, float(np.sqrt(max(differ, 1 / n) / n))), differ),
    )


def _by_bursts(window: Window, calibration: Calibration, source: Scale, bursts: Bursts) -> _Said:
    """Judge by transport with the law of the window itself, and by the labels that neighbours tell.

    A shift that comes and goes also orders the predictions: less plainly, or in long stretches of one class, which a
    chain describes as well. Then the law is still that of the source.
    """
    scored = _by_scores(window, calibration, source)
    low, high = PLAIN
    plain, better = (bursts.evidence - low) / (high - low), (bursts.evidence - bursts.chained) / BEYOND
    weight = float(np.clip(min(plain, better), 0.0, 1.0))
    if weight == 0:
        return scored
    n, rows, law = window.images, np.arange(len(window.source)), bursts.law
    differ = 1 - _agreement(window)
    told = [float(bursts.posterior[rows, logits.argmax(1)].mean()) for logits in (window.source, window.adapted)]
    before = source.transported(window.source, law)
    if _same(window):
        after = before
    elif window.steady:
        after = _steady(window, calibration.adapted or source, law)
    else:
        # Batch statistics of a burst make a model sure and wrong: neighbours alone know by how much.
        after = before + told[1] - told[0]
    floor = 1 / (2 * len(law))
    before, after = max(floor, before), min(1.0, max(floor, after, before - differ))
    constant, grows = MODEL_ERRORS["bursts"]
    # Images of a burst are right and wrong together: they tell no more than fewer ones.
    count = min(n, TOLD_APART)
    # What the law of the source calls errors may be some, as far as the shift score does not vouch for the model.
    doubt = abs(before - source.transported(window.source, calibration.law))
    if window.shift is not None:
        doubt = min(doubt, NEAR_CLEAN * (window.shift - 1))
    errors = [
        _root(
            constant,
            grows * (value - by),
            DOUBTED * doubt,
            _binomial(value, count),
            _binomial(source.accuracy, source.samples),
        )
        for value, by in zip((before, after), told, strict=True)
    ]
    paired = float(np.sqrt(max(differ, 1 / n) / count))
    return _Said((before, errors[0]), (after, errors[1]), (after - before, paired)).mixed(scored, weight)


def _steady(window: Window, scale: Scale, law: Floats) -> float:
    """Return the accuracy of a model that no order confuses: the mean of what transport and confidence say.

    It does not balance its classes, as batch statistics do: those it favours show, as in the source model. Confidence
    tells too little of some networks and transport of others, seldom both.
    """
    return (scale.transported(window.adapted, law) + scale.sloped(window.adapted)) / 2


# The last answers of an adapter: what estimates and the alarm of disagreement are made of.


@dataclasses.dataclass(frozen=True)
class LastAnswers:
    """Keeps the last answers of both models in the memory of an adapter."""

    calibration: Calibration | None = None
    steady: bool = False
    """Whether the order of images does not change what the adapted model makes of them."""

    @staticmethod
    def initial() -> dict[str, Tensor]:
        """Return what is remembered, at the start: logits of both models, marks of images, moments, positions."""
        return {
            "answers": torch.empty(0),
            "marked": torch.empty(0, dtype=torch.long),
            "moments": torch.empty(0),
        }

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something that :meth:`add` leaves in no stream; None where there is nothing."""
        answers, marked, moments = (memory[name] for name in self.initial())
        clean = None if self.calibration is None else self.calibration.clean
        width = moments.numel() if clean is None else 2 + sum(clean.widths)
        fits = {
            "answers": not answers.numel() or (answers.dim() == 3 and answers.shape[1] == 2),
            "marked": marked.dim() == 1,
            # The first two are the weights of the images, and the sum of their squares.
            "moments": not moments.numel() or (moments.shape == (width,) and float(moments[:2].min()) > 0),
        }
        return next((name for name, good in fits.items() if not good), None)

    def add(
        self, memory: Mapping[str, Tensor], x: Tensor, adapted: Tensor, source: Tensor, seen: Tensor, widths: list[int]
    ) -> dict[str, Tensor]:
        """Return what to remember after one more batch: its images, both models' logits, what the layers saw."""
        new = torch.stack([rows_of(source), rows_of(adapted)], 1).float()
        per_image = len(new) // len(x)
        past = memory["answers"].to(new.device)
        answers = torch.cat([past, new])[-WINDOW * per_image :] if past.shape[1:] == new.shape[1:] else new
        marked = torch.cat([memory["marked"].cpu(), self._marked(x)])[-WINDOW:]
        if self.calibration is not None and len(self.calibration.law) != new.shape[2]:
            raise SourceStatsError(
                f"These source statistics are of {len(self.calibration.law)} classes, and the model has "
                f"{new.shape[2]}.",
                "Make them again.",
            )
        moments, clean = memory["moments"], None if self.calibration is None else self.calibration.clean
        if clean is not None and clean.fits(seen) and list(clean.widths) == widths:
            moments = fold(moments, clean.difference(seen, source))
        return {"answers": answers, "marked": marked, "moments": moments}

    def _marked(self, x: Tensor) -> Tensor:
        """Return 1 for an image the calibration was made of, 2 for one of another size, else 0."""
        known = self.calibration
        if known is None or not len(known.marks):
            return torch.zeros(len(x), dtype=torch.long)
        if tuple(x.shape[1:]) != known.size:
            return torch.full((len(x),), 2)
        return torch.from_numpy(np.isin(marks_of(x), known.marks).astype(np.int64))

    def window(self, memory: Mapping[str, Tensor]) -> Window:
        """Return the last answers."""
        marked, answers = memory["marked"], memory["answers"]
        both = answers.cpu().double().numpy() if answers.numel() else np.zeros((0, 2, 2))
        known = self.calibration
        has = memory["moments"].numel() > 0 and known is not None and known.clean is not None
        shift = shift_score(memory["moments"], known.clean) if has and known and known.clean else None
        copies, resized = (int((marked == each).sum()) for each in (1, 2))
        return Window(both[:, 0], both[:, 1], len(marked), shift, copies, resized, self.steady)

    def estimate(self, memory: Mapping[str, Tensor]) -> Estimate:
        """Return what can be said of the last answers."""
        return estimate(self.window(memory), self.calibration)

    def quarrel(self, memory: Mapping[str, Tensor]) -> bool:
        """Tell whether the adapted model leaves the source model without a reason."""
        answers = memory["answers"]
        return len(answers) >= WINDOW and quarrel(answers[:, 1], answers[:, 0])
