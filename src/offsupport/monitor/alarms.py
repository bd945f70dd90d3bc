"""What goes wrong with a stream and shows in the predictions: an order, a collapse, a quarrel with the source model.

Every method that shares anything between images supposes that they come in random order, and that what it learns from
its own predictions does not feed on itself. Neither is promised, so each answer is looked at, without another pass:

* ``order``: predictions repeat more often than their shares would give, or images that look alike come together. The
  second is needed because batch statistics of one class blur the predictions until no order is left in them.
* ``collapse``: nearly all predictions fall into one class, or one class's share has grown far beyond its usual one.
* ``disagreement``: the adapted model leaves the source model although the source model sees nothing new, or where the
  source model looks right (only where the source model's predictions are known).

Whatever is remembered is a few small tensors in the memory of the adapter; names there are names in saved files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from offsupport.functional import as_rows

Alarm = Literal["collapse", "order", "disagreement"]
ALARMS: tuple[Alarm, ...] = get_args(Alarm)

RECENT = 256
"""Predictions in which repeats are counted."""
MOST_CLASSES = 1 << 20
"""More classes than any network tells apart; what a file calls a label is below it."""
LAGS = 16
"""How far apart two images of a repeat may be: batch statistics blur runs of single images, not stretches of them."""
GRID = 4
"""Looks of images are compared on a grid of this many colours a side."""
FEWEST = 96
"""Fewer predictions say nothing of their order."""
UNLIKELY = 6.0
"""In deviations of a random order; the null distribution has a longer tail than the normal one."""
USUAL = 2048
"""Predictions over which the usual share of a class is averaged."""
GROWTH = 0.15
"""A class's share is expected to stay within this of its usual one."""
EVERY = 64
"""The order is looked at once per this many images."""
TOGETHER = 16
"""Answers of smaller batches wait for each other: to look at each image costs as much as a small network."""


@dataclasses.dataclass(frozen=True)
class CollapseMonitor:
    """Notices that nearly all recent predictions fall into one class.

    Predictions are averaged with weights that fade over about ``window`` samples. A collapse is a largest class share
    above ``share`` together with a marginal entropy below ``entropy`` of its maximum ln K.
    """

    window: int = 256
    share: float = 0.95
    entropy: float = 0.25

    def observe(self, state: Tensor, logits: Tensor) -> Tensor:
        """Return the faded sums of probabilities and of votes, (2, K), after one more batch; empty at the start."""
        rows = as_rows(logits).float()
        votes = torch.bincount(rows.argmax(1), minlength=rows.shape[1]).to(rows.dtype)
        seen = torch.stack([rows.softmax(1).sum(0), votes]) * (len(logits) / len(rows))
        return seen if state.numel() == 0 else state * math.exp(-len(logits) / self.window) + seen

    def collapsed(self, state: Tensor) -> bool:
        """Tell whether what was observed is a collapse; never before most of a window was seen."""
        weight = float(state[1].sum())
        if weight < 0.7 * self.window:
            return False
        marginal = state[0] / weight
        entropy = float(torch.special.entr(marginal).sum())
        return float(state[1].max()) > self.share * weight and entropy < self.entropy * math.log(len(marginal))

    def growth(self, state: Tensor, usual: Tensor) -> float:
        """Return how far the largest share exceeds the largest usual one, in units of what is still plausible.

        1 is an alarm. ``usual`` are votes that fade slowly, (K,): while they hold little more than the recent ones,
        nothing is said. The largest is compared with the largest, so that the end of a collapse is none.
        """
        weight, before = float(state[1].sum()), float(usual.sum())
        if weight < 0.7 * self.window or before < 2 * self.window:
            return 0.0
        now, share = float(state[1].max()) / weight, float(usual.max()) / before
        return (now - share) / max(GROWTH, UNLIKELY * math.sqrt(share * (1 - share) / self.window))


def labels_of(logits: Tensor) -> Tensor:
    """Return the predicted class of each image, (N,); of dense predictions the most frequent one."""
    labels = logits.argmax(1)
    return labels if labels.dim() == 1 else labels.flatten(1).mode(1).values


def are_labels(found: Tensor) -> bool:
    """Tell whether a tensor holds predicted classes, (N,): counting any other numbers could take all memory."""
    if found.dim() != 1 or found.dtype != torch.long:
        return False
    return not len(found) or (int(found.min()) >= 0 and int(found.max()) < MOST_CLASSES)


def repeats(labels: Tensor, lags: int = LAGS) -> float:
    """Return by how many deviations equal labels stand close together more often than in a random order.

    Counted are the pairs at most ``lags`` apart that are equal. Mean and variance are those over all orders of the
    same labels, exactly: so a share of 90 % of one class is no order, and no model of the labels is needed.
    """
    n = len(labels)
    lags = min(lags, n // 4)
    if lags < 1:
        return 0.0
    # Each label beside those that follow it; nothing equals what follows the last.
    after = torch.cat([labels, labels.new_full((lags,), -1)]).unfold(0, lags + 1, 1)
    equal = float((after[:, 1:] == after[:, :1]).sum())
    place = torch.arange(n, dtype=torch.float64)
    partners = place.clamp(max=lags) + (n - 1 - place).clamp(max=lags)
    pairs, touching = float(partners.sum()) / 2, float((partners * (partners - 1)).sum())
    count = torch.bincount(labels.cpu()).double()
    two = count * (count - 1)
    one_pair = float(two.sum()) / (n * (n - 1))
    sharing = float((two * (count - 2)).sum()) / (n * (n - 1) * (n - 2))
    apart = float((two * (count - 2) * (count - 3)).sum() + two.sum() ** 2 - two.square().sum())
    apart /= n * (n - 1) * (n - 2) * (n - 3)
    mean = pairs * one_pair
    variance = mean + touching * sharing + (pairs * pairs - pairs - touching) * apart - mean * mean
    # One class alone has one order: nothing to be seen, but for rounding.
    return (equal - mean) / math.sqrt(variance) if variance > 1e-9 * mean * mean + 1e-9 else 0.0


def order_score(labels: Tensor) -> float:
    """Return :func:`repeats` of labels without the class that grows most through them.

    One class that takes over makes its own label repeat in the end; that is a collapse, and no order. What is left is
    in random order whenever all was.
    """
    half = len(labels) // 2
    classes = int(labels.max()) + 1 if len(labels) else 1
    early, late = (torch.bincount(part, minlength=classes) for part in (labels[:half], labels[half:]))
    left = labels[labels != (late - early).argmax()]
    return repeats(left) if len(left) >= FEWEST // 2 else 0.0


def looks_of(x: Tensor) -> Tensor:
    """Return what images roughly look like, (N, D): four by four colours. Of anything else, nothing: (N, 0)."""
    if x.dim() != 4:
        return x.new_zeros(len(x), 0, dtype=torch.float32)
    return torch.nn.functional.adaptive_avg_pool2d(x.float(), GRID).flatten(1)


def standardised(looks: Tensor) -> Tensor:
    """Return looks, each standardised by itself: a change of light, contrast or noise is none of what is seen."""
    if not looks.shape[1]:
        return looks
    centred = looks - looks.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True).sqrt() + 1e-3)


def gathering(looks: Tensor, lags: int = LAGS) -> float:
    """Return by how many deviations images that look alike stand close together, more than in a random order.

    Summed are the products of standardised looks of all pairs at most ``lags`` apart. In a random order a pair's has
    mean -D / (n - 1), and its variance is the sum of the squared correlations of the D values.
    """
    n, width = looks.shape
    lags = min(lags, n // 4)
    if lags < 1 or not width:
        return 0.0
    centred = looks.double() - looks.double().mean(0)
    deviation = centred.square().mean(0).sqrt()
    centred = centred[:, deviation > 1e-6] / deviation[deviation > 1e-6]
    if not centred.shape[1]:
        return 0.0
    pairs = lags * n - lags * (lags + 1) // 2
    # The sum over the images that follow each one, by differences of cumulative sums.
    total = torch.cat([centred.new_zeros(1, centred.shape[1]), centred.cumsum(0)])
    place = torch.arange(n, device=looks.device)
    following = total[(place + lags + 1).clamp(max=n)] - total[place + 1]
    alike = float((centred * following).sum()) + pairs * centred.shape[1] / (n - 1)
    return alike / math.sqrt(pairs * float((centred.T @ centred / n).square().sum()))


@dataclasses.dataclass(frozen=True)
class Alarms:
    """Looks at every answer of an adapter and says when an alarm begins; its state is the adapter's."""

    collapse: CollapseMonitor = dataclasses.field(default_factory=CollapseMonitor)

    @staticmethod
    def initial() -> dict[str, Tensor]:
        """Return what is remembered, at the start; ``fired`` is a sum of a power of two per alarm that is on."""
        return {
            "collapse": torch.empty(0),
            "fired": torch.zeros(()),
            "recent": torch.empty(0, dtype=torch.long),
            "looks": torch.empty(0),
            "usual": torch.empty(0),
            "looked": torch.zeros((), dtype=torch.long),
            "waiting": torch.empty(0),
        }

    @staticmethod
    def misfit(state: Mapping[str, Tensor]) -> str | None:
        """Return the name of something that :meth:`observe` leaves in no stream; None where there is nothing."""
        seen, usual = state["collapse"], state["usual"]
        fits = {
            "collapse": not seen.numel() or (seen.dim() == 2 and len(seen) == 2 and float(seen.min()) >= 0),
            "usual": not usual.numel() or (usual.shape == seen.shape[1:] and float(usual.min()) >= 0),
            "recent": are_labels(state["recent"]),
            "looks": state["looks"].dim() == 2 or not state["looks"].numel(),
            "waiting": state["waiting"].dim() == 2 or not state["waiting"].numel(),
        }
        return next((name for name, good in fits.items() if not good), None)

    def observe(
        self,
        state: Mapping[str, Tensor],
        logits: Tensor,
        x: Tensor,
        disagreement: Callable[[], bool] = lambda: False,
    ) -> tuple[dict[str, Tensor], list[Alarm]]:
        """Take one more batch; it is looked at once there are :data:`TOGETHER` images.

        Args:
            state: What :meth:`initial` or an earlier call returned.
            logits: The answers, (N, K) or (N, K, ...).
            x: The images.
            disagreement: Tells whether the adapted model and the source model quarrel (:func:`quarrel`).

        Returns:
            What to remember, and the alarms that are on.
        """
        looks = _joined(state["looks"], looks_of(x))[-RECENT:]
        if logits.dim() == 2:
            logits = _joined(state["waiting"], logits)
            if len(logits) < TOGETHER:
                before = on(state["fired"])
                kept = {name: state[name] for name in self.initial()}
                return kept | {"looks": looks, "waiting": logits}, [alarm for alarm in ALARMS if alarm in before]
        labels = labels_of(logits)
        recent = torch.cat([state["recent"].to(logits.device), labels])[-RECENT:]
        seen = self.collapse.observe(state["collapse"], logits)
        votes = torch.bincount(labels, minlength=logits.shape[1]).to(seen.dtype)
        fade = math.exp(-len(logits) / USUAL)
        usual = votes if state["usual"].numel() == 0 else state["usual"] * fade + votes
        looked = state["looked"] + len(logits)
        before = on(state["fired"])
        now = before & {"order"}
        if int(looked) // EVERY > int(state["looked"]) // EVERY and len(recent) >= FEWEST:
            # Once on, it stays on until the order is plainly random again: one alarm per episode.
            score = max(order_score(recent), gathering(standardised(looks)))
            now = {"order"} if score > (UNLIKELY / 2 if now else UNLIKELY) else set()
        if self.collapse.collapsed(seen) or self._grows(seen, usual, now, before):
            now |= {"collapse"}
        now |= {"disagreement"} if disagreement() else set()
        fired = torch.tensor(float(sum(1 << ALARMS.index(alarm) for alarm in now)))
        kept = {"recent": recent, "looks": looks, "usual": usual, "looked": looked, "waiting": torch.empty(0)}
        return {"collapse": seen, "fired": fired} | kept, [alarm for alarm in ALARMS if alarm in now]

    def _grows(self, seen: Tensor, usual: Tensor, now: set[Alarm], before: set[Alarm]) -> bool:
        """Tell whether a class takes over; in a sorted stream classes do so in turn, and the order is told."""
        return "order" not in now and self.collapse.growth(seen, usual) > (0.5 if "collapse" in before else 1.0)


def _joined(past: Tensor, new: Tensor) -> Tensor:
    """Return rows behind past ones, or alone where those are of another width."""
    return torch.cat([past.to(new), new]) if past.shape[1:] == new.shape[1:] else new


def on(fired: Tensor) -> set[Alarm]:
    """Return the alarms that are on."""
    bits = int(fired)
    return {alarm for place, alarm in enumerate(ALARMS) if bits >> place & 1}


def quarrel(adapted: Tensor, source: Tensor) -> bool:
    """Tell whether the adapted model leaves the source model although that sees nothing new.

    The newer half of the last answers is held against the older one: the models differ more often, and the source
    model is as sure as before. Then it is not the images that changed.

    Args:
        adapted: Logits of the adapted model, (N, K), in the order of the stream.
        source: Those of the source model for the same images.
    """
    half = len(adapted) // 2
    if half < RECENT // 2:
        return False
    differ = (adapted.argmax(1) != source.argmax(1)).double()
    sure = source.double().softmax(1).amax(1)
    old, new = float(differ[:half].mean()), float(differ[half:].mean())
    error = math.sqrt(max(old * (1 - old), 1 / half) * 2 / half)
    rise = float(sure[half:].mean() - sure[:half].mean())
    noise = math.sqrt(float(sure.var()) * 2 / half) + 1e-6
    return new - old > max(0.05, 4.5 * error) and abs(rise) < 3 * noise


TOLD: dict[Alarm, str] = {
    "collapse": "one class takes over the last {window} predictions: the adaptation may have collapsed. {advice}",
    "order": (
        "the last images do not come in random order: those of one class seem to come together, and what is learnt "
        "from a batch suits that class only. Shuffle the images where you can, or use a method that "
        'does not depend on their order, such as "source".'
    ),
    "disagreement": (
        "the adapted model leaves the source model where nothing speaks for it. Call reset(), lower lr, or look at "
        "estimate() and at the latest images."
    ),
}
"""What a person is told when an alarm begins, and what to do."""


def tell(alarm: Alarm, method: str, window: int, reset: bool) -> str:
    """Return the sentence for an alarm of a method."""
    advice = "It is reset." if reset else 'Lower lr, or pass collapse="reset".'
    return f"{method}: {TOLD[alarm].format(window=window, advice=advice)}"
