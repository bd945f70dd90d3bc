"""What clean source images teach about a model's confidence, once: how sure it is where it is right.

Collected by :func:`offsupport.source_stats` with ``monitor=True``, and kept with the source statistics. Labels are
optional; without them the layers' moments are known and shifts are seen, but no accuracy can be estimated.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment, minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binom
from torch import Tensor

from offsupport.core.errors import InputError, SourceStatsError
from offsupport.core.progress import steps
from offsupport.monitor.shift import CLEAN_NAMES, CleanMoments, are_clean_moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ENOUGH = 100
"""Fewer labelled clean images tell too little of an accuracy."""
SLACK = 0.5
"""By how many deviations the count of a class may exceed its share."""
BLOCK = 1000
"""Images that are assigned to labels at a time: the cost grows with the cube."""
USUAL_SLOPE, SLOPES = 1.5, (0.4, 4.0)
"""How much faster errors grow than confidence falls: simulated shifts tell, and are not trusted beyond these."""
FREE = np.linspace(0.0, 0.3, 31)
"""How far confidence may fall before errors grow at all: a method that takes the mean of two predictions under a shift,
and of one elsewhere, is less sure there and not wrong more often."""


def temperature(logits: Floats, labels: Ints) -> float:
    """Return the T for which softmax(logits / T) has the smallest negative log-likelihood of the labels."""
    rows = np.arange(len(labels))

    def loss(log_t: float) -> float:
        return float(-log_softmax(logits / np.exp(log_t), axis=1)[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-1.0, 1.5), method="bounded").x))


def negative_entropy(logits: Floats) -> Floats:
    """Return the sum of p log p of each row: the score of ATC-NE; larger is surer."""
    log_p = log_softmax(logits, axis=1)
    found: Floats = (np.exp(log_p) * log_p).sum(1)
    return found


def atc_threshold(scores: Floats, right: npt.NDArray[np.bool_]) -> float:
    """Return the score that as many images fall short of as are wrong (Garg et al., 2022)."""
    ordered = np.sort(scores)
    return float(ordered[min(int((~right).sum()), len(ordered) - 1)])


def capacities(law: Floats, n: int) -> Ints:
    """Return how many of ``n`` images each class may get by a law.

    Drawn from the law, counts scatter; half a deviation more for every class keeps that from reading as errors.
    """
    return np.ceil(law * n + SLACK * np.sqrt(n * law * (1 - law)) - 1e-9).astype(np.int64)


def crowded(law: Floats, n: int) -> float:
    """Return which share of ``n`` images drawn from a law exceeds the capacities, and is given labels of others."""
    counts, most = np.arange(n + 1)[:, None], capacities(law, n)
    found = binom.pmf(counts, n, law) * (counts - most).clip(min=0)
    return float(found.sum() / n)


def room(predictions: Ints, law: Floats) -> float:
    """Return for which share of predictions a law of the classes has room; the rest is wrong, whatever a model thinks.

    A model that was driven to be sure of itself is sure of a few classes: only their number tells.
    """
    n = len(predictions)
    counts = np.bincount(predictions, minlength=len(law))
    return min(1.0, float(np.minimum(counts, capacities(law, n)).sum() / n) + crowded(law, n))


def transport_costs(probabilities: Floats, law: Floats) -> Floats:
    """Return 1 - p of the label each image gets when labels are handed out by a law at the least total cost (COT)."""
    costs = np.empty(len(probabilities))
    for block in np.array_split(np.arange(len(probabilities)), -(-len(probabilities) // BLOCK)):
        labels = np.repeat(np.arange(len(law)), capacities(law, len(block)))
        cost = 1.0 - probabilities[block][:, labels]
        rows, columns = linear_sum_assignment(cost)
        costs[block[rows]] = cost[rows, columns]
    return costs


@dataclasses.dataclass(frozen=True)
class Scale:
    """How sure a model is where it is right, by labelled clean images.

    Args:
        temperature: What its logits are divided by.
        threshold: The negative entropy that ATC counts from.
        transport: The cost up to which COTT counts.
        accuracy: On the clean images.
        slope: How much faster the accuracy falls under a shift than :meth:`confident` says.
        samples: How many labelled images.
        free: How far :meth:`confident` falls before the accuracy does.
    """

    temperature: float
    threshold: float
    transport: float
    accuracy: float
    slope: float
    samples: int
    free: float = 0.0

    @staticmethod
    def fit(
        logits: Floats, labels: Ints, law: Floats, shifted: Sequence[tuple[Floats, Ints]] = (), mixed: bool = False
    ) -> Scale:
        """Fit a scale to logits (N, K) and labels (N,) of clean images, and of the same kind under simulated shifts.

        Args:
            logits: Of clean images.
            labels: Of the same.
            law: Shares of the classes.
            shifted: Logits and labels under each simulated shift.
            mixed: Whether under a shift they are the mean of several predictions.
        """
        right = logits.argmax(1) == labels
        t = temperature(logits, labels)
        costs = np.sort(transport_costs(softmax(logits / t, axis=1), law))
        threshold = atc_threshold(negative_entropy(logits / t), right)
        cost = float(costs[max(0, int(right.sum()) - 1)])
        plain = Scale(t, threshold, cost, float(right.mean()), USUAL_SLOPE, len(labels))
        if not shifted:
            return plain
        # Where classes given too often explain the loss, the ceiling says so, and confidence tells nothing.
        told = [each for each in shifted if plain.confident(each[0]) <= plain.ceiling(each[0], law)]
        slope, free = plain._slope(told, FREE if mixed else FREE[:1]) if told else (USUAL_SLOPE, 0.0)
        return dataclasses.replace(plain, slope=slope, free=free)

    def _slope(self, shifted: Sequence[tuple[Floats, Ints]], starts: Floats) -> tuple[float, float]:
        """Return how the accuracy falls with confidence on shifted images: slope, and where it begins."""
        fall = np.array([self.accuracy - self.confident(logits) for logits, _ in shifted])
        loss = np.array([self.accuracy - float((logits.argmax(1) == labels).mean()) for logits, labels in shifted])
        best = (np.inf, USUAL_SLOPE, 0.0)
        for free in starts:
            beyond = np.where(fall > 0, (fall - free).clip(min=0), fall)
            # Shifts that change nothing tell no slope: the usual one counts as much as a shift of five points, and that
            # errors begin at once as much as five points in twenty that are not explained.
            slope = (float(beyond @ loss) + USUAL_SLOPE * 0.05**2) / (float(beyond @ beyond) + 0.05**2)
            slope = float(np.clip(slope, *SLOPES))
            off = float(((loss - slope * beyond) ** 2).sum()) + (0.25 * free) ** 2
            best = min(best, (off, slope, float(free)))
        return best[1:]

    def confident(self, logits: Floats) -> float:
        """Return what ATC says of the accuracy: the share of images surer than the threshold."""
        return float((negative_entropy(logits / self.temperature) >= self.threshold).mean())

    def ceiling(self, logits: Floats, law: Floats) -> float:
        """Return the most that can be right: what the law of the classes has room for, as right as clean images are."""
        return self.accuracy * room(logits.argmax(1), law)

    def sloped(self, logits: Floats) -> float:
        """Return the accuracy by what ATC says, its fall made steeper as simulated shifts showed."""
        fall = self.accuracy - self.confident(logits)
        fall = max(0.0, fall - self.free) if fall > 0 else fall
        return self._shrunk(self.accuracy - self.slope * fall, self.slope)

    def _shrunk(self, value: float, slope: float = 1.0) -> float:
        """Believe half of what exceeds the accuracy on clean images: no shift makes a model better, chance may."""
        return value if value <= self.accuracy else self.accuracy + (value - self.accuracy) / (2 * slope)

    def transported(self, logits: Floats, law: Floats) -> float:
        """Return what COTT says of the accuracy: right where the labels' law is known (Lu et al., 2023)."""
        costs = transport_costs(softmax(logits / self.temperature, axis=1), law)
        share = float((costs <= self.transport).mean())
        # Of the images that are right, those that the law by chance has no room for look wrong.
        return self._shrunk(share * (1 + crowded(law, len(logits))))


SCALE_NUMBERS = len(dataclasses.fields(Scale))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What is known of a model, and of a method on it, from clean source images.

    Args:
        source: How sure the source model is where it is right; None without labels.
        adapted: The same of the adapted model, in random order; None without labels.
        method: The method of ``adapted``.
        law: Shares of the classes, (K,): of the labels, or without them of the predictions.
        benefit: By how much the adapted model was right more often on the clean images, and the error of that.
        entropies: Quantiles 0, 1, ..., 100 % of the source model's entropies.
        clean: What the source model's layers see of clean images.
        marks: A hash of each image, to notice it among the targets.
        size: Shape of an image.
    """

    source: Scale | None
    adapted: Scale | None
    method: str
    law: Floats
    benefit: tuple[float, float]
    entropies: Floats
    clean: CleanMoments | None
    marks: Ints
    size: tuple[int, ...]

    @staticmethod
    def fit(logits: npt.ArrayLike | Tensor, labels: npt.ArrayLike | Tensor) -> Calibration:
        """Calibrate by logits (N, K) and labels (N,) of clean images alone, for :func:`estimate_accuracy`."""
        rows, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        if rows.ndim != 2 or truth.shape != rows.shape[:1]:
            raise InputError(
                f"Logits of shape {rows.shape} and labels of shape {truth.shape} do not belong together.",
                "Give logits (images, classes) and one label for each image.",
            )
        law = checked_law(rows, truth)
        scale = Scale.fit(rows, truth, law)
        nothing = np.empty(0, dtype=np.int64)
        return Calibration(scale, None, "source", law, (0.0, 0.0), _entropies(rows), None, nothing, ())

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the method's name as tensors, for a file."""
        scales = {"source": self.source, "adapted": self.adapted}
        numbers = {
            name: torch.tensor(dataclasses.astuple(scale), dtype=torch.float64)
            for name, scale in scales.items()
            if scale
        }
        moments = {} if self.clean is None else {f"clean/{key}": value for key, value in self.clean.tensors().items()}
        return {
            **numbers,
            **moments,
            "law": torch.from_numpy(self.law),
            "benefit": torch.tensor(self.benefit, dtype=torch.float64),
            "entropies": torch.from_numpy(self.entropies),
            "marks": torch.from_numpy(self.marks),
            "size": torch.tensor(self.size, dtype=torch.long),
        }

    @staticmethod
    def of(tensors: Mapping[str, Tensor], method: str) -> Calibration | None:
        """Undo :meth:`tensors`; None where there are none."""
        if not tensors:
            return None
        _require_calibration(tensors)
        scales = {name: _scale(tensors[name]) if name in tensors else None for name in ("source", "adapted")}
        clean = {name.removeprefix("clean/"): t for name, t in tensors.items() if name.startswith("clean/")}
        return Calibration(
            source=scales["source"],
            adapted=scales["adapted"],
            method=method,
            law=tensors["law"].cpu().numpy(),
            benefit=(float(tensors["benefit"][0]), float(tensors["benefit"][1])),
            entropies=tensors["entropies"].cpu().numpy(),
            clean=CleanMoments.of(clean) if clean else None,
            marks=tensors["marks"].cpu().numpy(),
            size=tuple(int(side) for side in tensors["size"]),
        )


def _require_calibration(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that no calibration gives, as a file may hold them."""
    lacking = [name for name in ("law", "benefit", "entropies", "marks", "size") if name not in tensors]
    scales = [tensors[name] for name in ("source", "adapted") if name in tensors]
    clean = {name.removeprefix("clean/"): t for name, t in tensors.items() if name.startswith("clean/")}
    lacking += [f"clean/{name}" for name in CLEAN_NAMES if clean and name not in clean]
    if lacking:
        raise SourceStatsError(f"These source statistics lack calibration//{lacking[0]}.", "Make them again.")
    law, whole = tensors["law"], (tensors["marks"], tensors["size"])
    good = {
        "law": law.dim() == 1
        and law.numel() > 0
        and float(law.min()) >= 0
        and abs(float(law.double().sum()) - 1) < 0.01,
        "benefit": tensors["benefit"].shape == (2,),
        "entropies": tensors["entropies"].dim() == 1 and tensors["entropies"].numel() > 1,
        "marks and size": all(each.dim() == 1 and each.dtype == torch.long for each in whole),
        # Temperature and slope divide; files of before have one number less.
        "scales": all(
            each.shape in ((SCALE_NUMBERS,), (SCALE_NUMBERS - 1,)) and float(each[[0, 4, 5]].min()) > 0
            for each in scales
        ),
        "clean": not clean or are_clean_moments(clean, law.numel()),
    }
    odd = [name for name, fits in good.items() if not fits]
    if odd:
        raise SourceStatsError(
            f"The calibration in these source statistics has {odd[0]} that no images give.", "Make them again."
        )


def _scale(numbers: Tensor) -> Scale:
    names = [field.name for field in dataclasses.fields(Scale)]
    # Files of before have no `free`.
    values = dict(zip(names, (float(number) for number in numbers), strict=False))
    samples = int(values.pop("samples"))
    return Scale(**values, samples=samples)


def _entropies(rows: Floats) -> Floats:
    found: Floats = np.quantile(-negative_entropy(rows), np.linspace(0, 1, 101))
    return found


def checked_law(rows: Floats, labels: Ints) -> Floats:
    """Return the shares of the labels; too few images, or labels that cannot be theirs, are refused."""
    classes = rows.shape[1]
    if len(rows) < ENOUGH:
        raise InputError(
            f"An accuracy is calibrated on {ENOUGH} labelled clean images or more, and these are {len(rows)}.",
            "Give more of them, or none and no labels.",
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"Labels reach from {labels.min()} to {labels.max()}, and the model knows classes 0 to {classes - 1}.",
            "Give the class numbers the model was trained with.",
        )
    counts = np.bincount(labels, minlength=classes)
    if (counts > 0).sum() < 2:
        raise InputError("The clean images show one class only.", "Give images of all classes, in any order.")
    law: Floats = counts / counts.sum()
    return law


# Collecting it: the images are run once by the source model, and with labels a few times by the method.


POSITIONS = 16
"""Of dense predictions, this many positions of each image are looked at."""
BATCH = 64
"""Clean images are given to the method in batches of this many."""
SIMULATED = 256
"""Images of each simulated shift."""


def rows_of(logits: Tensor) -> Tensor:
    """Return logits as rows (N, K); of dense ones a few positions of each image, (N * P, K)."""
    if logits.dim() == 2:
        return logits
    flat = logits.flatten(2)
    return flat[:, :, _places(flat.shape[2])].transpose(1, 2).flatten(0, 1)


def _places(count: int) -> Tensor:
    return torch.linspace(0, count - 1, min(count, POSITIONS)).round().long()


def marks_of(x: Tensor) -> Ints:
    """Return a hash of each image, (N,)."""
    data = x.detach().cpu().contiguous().flatten(1)
    digests = [hashlib.blake2b(row.view(torch.uint8).numpy().tobytes(), digest_size=8).digest() for row in data]
    marks: Ints = np.frombuffer(b"".join(digests), dtype=np.int64).copy()
    return marks


def simulated_shifts(x: Tensor) -> Iterator[Tensor]:
    """Yield images under shifts of two kinds and two strengths: noise that grows with the value, and blur."""
    low, high = x.amin(), x.amax()
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(x)
    for strength in (0.25, 0.5):
        yield (x + strength * x * noise).clamp(low, high)
    if x.dim() == 4:
        for strength in (0.8, 1.6):
            yield _blur(x, strength * max(1.0, x.shape[-1] / 32))


def _blur(x: Tensor, sigma: float) -> Tensor:
    reach = min(int(3 * sigma + 0.5), min(x.shape[-2:]) - 1)
    place = torch.arange(-reach, reach + 1, device=x.device, dtype=torch.float32)
    kernel = torch.exp(-(place**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(x.dtype)
    channels = x.shape[1]
    for shape, pad in (((1, 1, -1, 1), (0, 0, reach, reach)), ((1, 1, 1, -1), (reach, reach, 0, 0))):
        weight = kernel.reshape(shape).repeat(channels, 1, 1, 1)
        x = torch.nn.functional.conv2d(torch.nn.functional.pad(x, pad, mode="reflect"), weight, groups=channels)
    return x


class Subject(Protocol):
    """A model and a method on it, as calibration sees them."""

    @property
    def mixes(self) -> bool:
        """Whether the method answers by the mean of several predictions where images are shifted, and else by one."""

    def look(self, x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Return logits of the source model, what its layers see (N, C), and the layers' widths."""

    def answer(self, x: Tensor) -> Tensor:
        """Return the logits of the method, from its start, for images that come in batches of :data:`BATCH`."""


def calibrate(subject: Subject, method: str, x: Tensor, labels: Tensor | None) -> Calibration:
    """Calibrate a model, and a method on it, by clean source images and, if there are any, their labels."""
    seen = [subject.look(batch) for batch in torch.split(x, BATCH)]
    logits = torch.cat([found[0] for found in seen])
    clean = CleanMoments.fit((value, out, widths) for out, value, widths in seen)
    source = _numbers(logits)
    shares = np.bincount(source.argmax(1), minlength=source.shape[1]) / len(source)
    plain = Calibration(
        None, None, method, shares, (0.0, 0.0), _entropies(source), clean, marks_of(x), tuple(x.shape[1:])
    )
    if labels is None:
        return plain
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))  # a loader may be sorted
    x, labels, logits = x[order], labels[order], logits[order]
    truth, source = _truth(labels, logits), _numbers(logits)
    law = checked_law(source, truth)
    adapted = _numbers(subject.answer(x))
    few = [*simulated_shifts(x[:SIMULATED])]
    parts = truth[: len(truth) * min(SIMULATED, len(x)) // len(x)]
    looked = [
        (_numbers(torch.cat([subject.look(batch)[0] for batch in torch.split(each, BATCH)])), parts) for each in few
    ]
    answered = [(_numbers(subject.answer(each)), parts) for each in steps("Calibrating", few)]
    gain = (adapted.argmax(1) == truth).astype(float) - (source.argmax(1) == truth)
    return dataclasses.replace(
        plain,
        source=Scale.fit(source, truth, law, looked),
        adapted=Scale.fit(adapted, truth, law, answered, subject.mixes),
        law=law,
        benefit=(float(gain.mean()), float(gain.std() / np.sqrt(len(x)))),
    )


def _numbers(logits: Tensor) -> Floats:
    rows: Floats = rows_of(logits.detach()).cpu().double().numpy()
    return rows


def _truth(labels: Tensor, logits: Tensor) -> Ints:
    if labels.shape != (len(logits), *logits.shape[2:]):
        raise InputError(
            f"The labels have shape {tuple(labels.shape)}, and the logits {tuple(logits.shape)}.",
            "Give one label for each prediction: (images,), or (images, height, width) for dense ones.",
        )
    flat = labels.flatten(1)[:, _places(labels[0].numel())].flatten() if labels.dim() > 1 else labels
    truth: Ints = flat.cpu().numpy().astype(np.int64)
    return truth
