"""Accuracy without labels: of the source model and of the adapted one, and whether adapting helps.

No estimate can be right for every shift, so each comes with an interval, and where nothing can be known nothing is
said. Three ways, by what the stream allows:

* In random order the source model is judged by transport (COTT): its predictions are matched with labels in the shares
  of the source. A shifted model favours classes, and that shows.
* The adapted model mostly has balanced classes by construction, so it is judged by how many images it is sure of
  (ATC), and the fall of that is made steeper as simulated shifts showed for this model and method. Steps that make a
  model sure can make it sure and wrong: it cannot be right on more images than the law of the classes has room for,
  nor, near the source, where it leaves a source model that is right.
* Where images of a class come together, neighbours are further views of the same label: a hidden Markov chain over the
  source model's predictions tells the labels, and both models are held against those. Batch statistics make a model
  sure and wrong there, and nothing in its own confidence tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import Tensor

from offsupport.core.errors import InputError, SourceStatsError
from offsupport.monitor.alarms import order_score, quarrel
from offsupport.monitor.calibration import Calibration, Floats, Scale, marks_of, rows_of
from offsupport.monitor.shift import fold, shift_score

Verdict = Literal["helps", "neutral", "harms", "unknown"]
Order = Literal["iid", "not iid", "unknown"]

WINDOW = 512
"""Images that an estimate is about: the last ones."""
FEWEST = 30
"""Fewer images give no estimate."""
ORDERED = 4.0
"""Deviations of repeats from which on a window is not taken for a random order; milder than an alarm."""
STAYS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Chances that the next image has the same label; the likeliest is taken."""
SOFTENED = 2.0
"""Confidence under a shift is too high: in the chain, logits are divided by this once more."""
MODEL_ERRORS = {"transport": (0.015, 0.05), "confidence": (0.02, 0.15), "chain": (0.008, 0.3)}
"""Standard error of each way, and how much it grows: with the fall of accuracy, for the chain with its doubt."""
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
        return _unknown(window, f"an estimate needs {FEWEST} images, and {n} were seen.", "unknown", bare=True)
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


def _judge(window: Window, calibration: Calibration) -> _Judged:
    assert calibration.source is not None  # noqa: S101 (asked before)
    if order_of(window) == "not iid":
        scale = (window.steady and calibration.adapted) or calibration.source
        chain = label_chain(window.witness, scale.temperature)
        if chain.stays >= 0.6:
            return _by_chain(window, chain)
    return _by_scores(window, calibration, calibration.source)


def _interval(value: float, error: float) -> Interval:
    value = min(1.0, max(0.0, value))
    return Interval(value, max(0.0, value - Z95 * error), min(1.0, value + Z95 * error))


def _root(*errors: float) -> float:
    return float(np.sqrt(sum(error * error for error in errors)))


def _binomial(share: float, n: int) -> float:
    # Never zero: even a sure answer is one of n.
    return float(np.sqrt(max(share * (1 - share), 1 / n) / n))


def _by_scores(window: Window, calibration: Calibration, source: Scale) -> _Judged:
    adapted = calibration.adapted or source
    n, law = window.images, calibration.law
    floor = 1 / len(law)
    differ = 1 - _agreement(window)
    before = max(floor / 2, source.transported(window.source, law))
    sure = max(floor / 2, adapted.sloped(window.adapted))
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
    return _Judged(
        _interval(before, _root(errors[0], _binomial(before, n))),
        _interval(after, _root(errors[1], _binomial(after, n))),
        _bounded(benefit, error, differ),
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


# Images of a class that come together.


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
