"""Adaptation without choosing: minimal change first, gradient steps beside it only where evidence says so.

Two predictions, of which the second is asked only where it can be trusted:

* The calm one moves batch-norm statistics by the least change that explains the stream, with the weights as they came:
  one pass, any batch size, any order. Without batch norm it is the model alone.
* The bold one lets weights and batch statistics follow: it ascends the mutual information of input and prediction, as
  SHOT does. It supposes batches of many classes in random order, far from the source.

Their mean is the answer: two views of a shifted image err on different images, so that the mean is often better than
either, and on an image near the source the calm one is sure and outvotes the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from offsupport.core.errors import ModelError, SourceStatsError
from offsupport.core.progress import steps
from offsupport.engine.adapter import Adapter, StepRejected, all_finite, require_finite_loss
from offsupport.engine.config import MethodInfo, require
from offsupport.engine.minimal_statistics import MinimalConfig, MinimalStatistics
from offsupport.engine.registry import register_method
from offsupport.engine.statistics_policy import StatisticsPolicy
from offsupport.functional import as_rows, mutual_information
from offsupport.monitor.alarms import RECENT, are_labels, labels_of, order_score
from offsupport.monitor.calibration import BATCH, SIMULATED, simulated_shifts
from offsupport.nn.inspect import HALF
from offsupport.nn.projected import encoder_parameters

SHARES = (0.0, 0.33, 0.5, 0.67)
"""How much the bold prediction may count."""
SLIGHT = 0.003
"""A smaller gain in accuracy is none: the smaller change is taken."""
UNKNOWN_SHARE = 0.5
"""How much the bold prediction counts where no clean images tell."""
ORDERED = 4.0
"""Deviations of repeated predictions from which on an order is not taken for random; milder than an alarm."""
DIVERSE = 0.5
"""A batch shows at least this share of the classes that it would in random order."""
FAINT = 0.05
"""A bold prediction that would count less is not asked."""
PLAIN = 4.0
"""A shift score that is not yet plain, for models without batch statistics."""
UNSCALED = 0.5
"""What is left of a step where no batch norm takes the scale out of the weights before it."""
WATCHED = 4
"""Of so many batches one is given to the source model, for the estimate; no step is taken on it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoConfig(MinimalConfig):
    """Hyper-parameters of ``auto``: those of the minimal change, and of the steps beside it."""

    share: float | None = None
    """How much the bold prediction counts where the shift is large; None is what simulated shifts told. 0: no steps."""
    least: int = 16
    """The smallest batch that the bold prediction is asked for."""
    lr: float = 2e-2
    """Step size of SGD for batches of 64 images and more; smaller ones, and models without batch norm, take less."""
    momentum: float = 0.9
    """Momentum of SGD."""
    pull: float = 0.002
    """How far each step pulls the weights back to the source."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("share", self.share is None or 0 <= self.share < 1, "in [0, 1)")
        require("least", self.least >= 2, "at least 2")
        require("lr", 0 <= self.lr <= 1e6, "in [0, 1e6]")
        require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        require("pull", 0 <= self.pull <= 1, "in [0, 1]")


@register_method(
    MethodInfo(
        name="auto",
        summary="Moves statistics by the least change, and takes steps beside that only where evidence says so.",
        paper="ours, after Kong et al. 2024 and Liang et al. 2020",
        adapts="batch-norm statistics; in random order and far from the source every layer but the classifier",
        scored="before it is counted, and before the step",
        norm="none",
        source="optional",
        single="statistics as in any other batch, no step",
        passes="1F, with steps 2F 1B",
        bounded=True,
    ),
    AutoConfig,
)
class Auto(Adapter):
    """The model's own weights stay as they came; the bold ones are memory."""

    config: AutoConfig
    any_order: ClassVar[bool] = True
    counts_itself: ClassVar[bool] = True
    steps_at_will: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    watches: ClassVar[int] = WATCHED
    source_shapes: ClassVar[dict[str, str]] = {"law": "K"}

    def choose_statistics(self) -> StatisticsPolicy:
        """Return the minimal change, or where there is no batch norm that keeps statistics, those of the source."""
        found = dict(self.source.tensors) if self.source else {}
        share = found.pop("share", torch.tensor(UNKNOWN_SHARE))
        if share.dim() or not 0 <= float(share) < 1:
            raise SourceStatsError("These source statistics hold a share outside [0, 1).", "Make them again.")
        self.share = float(share)
        try:
            return MinimalStatistics(self.model, self.norm_statistics, found, self.config, self.options.trusted)
        except ModelError:
            return StatisticsPolicy("source", self.norm_statistics)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the bold weights and their momentum, side by side, and the last calm predictions."""
        return {
            "weights": torch.empty(0),
            "velocity": torch.empty(0),
            "calm": torch.empty(0, dtype=torch.long),
        }

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something in a memory that no stream leaves there; None where there is nothing."""
        whole = torch.cat([torch.empty(0), *(weight.flatten() for weight in self.encoder.values())])
        steps = {name: memory[name] for name in ("weights", "velocity") if memory[name].numel()}
        odd = (name for name, each in steps.items() if (each.shape, each.dtype) != (whole.shape, whole.dtype))
        return next(odd, None if are_labels(memory["calm"]) else "calm") or super().misfit(memory)

    @property
    def encoder(self) -> dict[str, Tensor]:
        """The weights that steps move, as they came; none without a classifier layer, or in half precision."""
        try:
            found = encoder_parameters(self.model, self.classifier)
        except ModelError:
            return {}
        coarse = any(weight.dtype in HALF for weight in found.values())
        return {} if coarse else {name: weight.detach() for name, weight in found.items()}

    # One batch -------------------------------------------------------------------------------------------------------

    def step(self, x: Tensor) -> Tensor:
        """Predict calmly; where the evidence allows, boldly too, and return the mean of both."""
        before = self._images()
        calm = self.serve(x)
        if self._images() < before + len(x):
            self._forget()  # an abrupt change: the statistics began anew, so must the weights
        share = self._bold_share(calm)
        if share < FAINT:
            return calm
        bold = self._bold(x, learns=not self.watched)
        # In logarithms: probabilities too small for the type would come out as minus infinity.
        return torch.logaddexp(calm.log_softmax(1) + math.log1p(-share), bold.log_softmax(1) + math.log(share))

    def _bold_share(self, calm: Tensor) -> float:
        """Return how much the bold prediction of this batch counts."""
        recent = torch.cat([self.memory["calm"].to(calm.device), labels_of(calm)])[-RECENT:]
        self.memory["calm"] = recent
        if len(calm) < self.config.least or not self.encoder or not self.options.trusted:
            return 0.0
        if not self._diverse(calm) or order_score(recent) > ORDERED:
            self._forget()  # what the weights learnt may have come from the same order
            return 0.0
        share = self.share if self.config.share is None else self.config.share
        return share * self._evidence()

    def _diverse(self, calm: Tensor) -> bool:
        """Tell whether a batch shows about as many classes as it would in random order."""
        shares = calm.softmax(1).transpose(0, 1).flatten(1).mean(1)
        classes = float(torch.special.entr(shares).sum().exp())
        law = self.source.tensors["law"] if self.source and "law" in self.source.tensors else None
        usual = calm.shape[1] if law is None else float(torch.special.entr(law).sum().exp())
        enough = law is not None or len(calm) >= 2 * calm.shape[1]
        return enough and classes >= DIVERSE * min(usual, len(calm))

    def _evidence(self) -> float:
        """Return how plainly the stream is shifted: 0 on clean images, towards 1 far off."""
        policy = self.statistics_policy
        if isinstance(policy, MinimalStatistics):
            return policy.plainness()
        # Without batch statistics only the monitor sees a shift, and only beside clean images.
        score = self.answers.window(self.memory).shift if self.options.monitor else None
        return 0.0 if score is None else max(0.0, 1 - PLAIN / score)

    def _images(self) -> float:
        """Return how many images the statistics rest on."""
        policy = self.statistics_policy
        return policy.images() + policy.waiting() if isinstance(policy, MinimalStatistics) else math.inf

    def _forget(self) -> None:
        """Let the bold weights begin anew from the source."""
        self.memory.update({"weights": torch.empty(0), "velocity": torch.empty(0)})

    def _bold(self, x: Tensor, learns: bool) -> Tensor:
        """Predict by weights and statistics that follow the batches, and let the weights follow this one."""
        with (
            torch.set_grad_enabled(learns),
            self.norm_statistics.using("batch" if self.norm_statistics.layers else "source"),
        ):
            leaves = {name: weight.detach().requires_grad_(learns) for name, weight in self._weights().items()}
            logits = self.network(x, leaves)
        if learns:
            try:
                self._learn(-mutual_information(as_rows(logits)), leaves, self._length(x))
            except StepRejected as rejected:
                self.count(rejected.event)  # the predictions stand: they were made before the step
        return logits.detach()

    def _length(self, x: Tensor) -> float:
        """Return which share of a whole step a batch is worth."""
        return min(1.0, len(x) / BATCH) * (1.0 if self.norm_statistics.layers else UNSCALED)

    def _learn(self, loss: Tensor, leaves: dict[str, Tensor], length: float) -> None:
        """Let the bold weights follow the gradient of a loss."""
        require_finite_loss(loss)
        self.passes["backward"] += 1
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        self._follow(torch.cat([gradient.flatten() for gradient in found]), length)

    def _follow(self, gradient: Tensor, length: float) -> None:
        """Take one step of SGD with momentum, and pull the weights back to the source a little."""
        if not all_finite([gradient]):
            raise StepRejected("bad_grad")
        source = torch.cat([weight.flatten() for weight in self.encoder.values()])
        weights, velocity = self.memory["weights"], self.memory["velocity"]
        velocity = gradient + self.config.momentum * velocity if velocity.numel() else gradient
        weights = (weights if weights.numel() else source) - length * self.config.lr * velocity
        weights = weights.lerp(source, self.config.pull)
        if not all_finite([weights]):
            raise StepRejected("bad_param")
        self.memory.update({"weights": weights, "velocity": velocity})

    def _weights(self) -> dict[str, Tensor]:
        """Return the bold weights by name."""
        flat, source = self.memory["weights"], self.encoder
        parts = torch.split(flat, [weight.numel() for weight in source.values()]) if flat.numel() else source.values()
        return {name: part.view_as(weight) for part, (name, weight) in zip(parts, source.items(), strict=True)}

    # What is known of the source -------------------------------------------------------------------------------------

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return what the minimal change must know of clean images; nothing without batch norm."""
        policy = self.statistics_policy
        if isinstance(policy, MinimalStatistics):
            return policy.describe(policy.gather(x, self.network) for x in batches)
        shares = [as_rows(self.predict(x)).softmax(1).mean(0) for x in batches]
        return {"law": torch.stack(shares).mean(0)} if shares else {}

    @torch.inference_mode(False)
    def tune(self, x: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return how much the bold prediction should count, by simulated shifts.

        Without labels the model's own predictions of the clean images stand in for them.
        """
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SIMULATED].to(x.device)
        x = x[order]
        source = self._source_logits(x)
        if source.dim() > 2 or not self.encoder:
            return {}
        truth = source.argmax(1) if labels is None else labels.to(x.device)[order]
        trials = [self._trial(each) for each in steps("Simulating shifts", [*simulated_shifts(x)])]
        self.reset()
        right = {
            share: sum(float((calm.lerp(bold, share).argmax(1) == truth).double().mean()) for calm, bold in trials)
            for share in SHARES
        }
        best = max(right.values())
        return {"share": torch.tensor(min(w for w, each in right.items() if each >= best - SLIGHT * len(trials)))}

    def _trial(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the calm and the bold probabilities of a stream, from the start."""
        self.reset()
        with torch.inference_mode(False), torch.enable_grad(), self.norm_statistics.using(self.statistics_policy.kind):
            pairs = [(self.serve(batch), self._bold(batch, learns=True)) for batch in torch.split(x, BATCH)]
        calm, bold = (torch.cat(each).softmax(1) for each in zip(*pairs, strict=True))
        return calm, bold

    def summary(self) -> str:
        """Say in a sentence what is done and why, then what every adapter says."""
        return f"{self._account()}\n{super().summary()}"

    def _account(self) -> str:
        policy = self.statistics_policy
        if isinstance(policy, MinimalStatistics):
            first = f"{policy.images():.0f} images seen; the statistics of batch norm moved by the least change"
            first += (
                "" if self.source is None else f", and {100 * self._evidence():.0f} % of the way is plainly a shift"
            )
        else:
            first = "This model keeps no batch statistics, so its own predictions are the calm ones"
        if self.memory["weights"].numel():
            return f"{first}; steps are taken beside them, because batches are large, in random order and shifted."
        why = {
            not self.options.trusted: "strangers may send images",
            not self.encoder: "the model has no classifier layer to keep, or computes in half precision",
            (self.share if self.config.share is None else self.config.share)
            < FAINT: "simulated shifts spoke against it",
        }
        said = next((reason for holds, reason in why.items() if holds), "no large, diverse, shifted batch has come yet")
        return f"{first}; no steps are taken: {said}."
