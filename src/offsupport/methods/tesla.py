"""TeSLA: a student learns from its slow teacher, on the views the teacher finds hardest."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.augment import Policy, weak_views
from offsupport.augment.policy import Rotation, adam
from offsupport.engine.adapter import PixelAdapter, StepRejected, all_finite, require_finite_loss
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.registry import register_method
from offsupport.engine.source_stats import feature_moments
from offsupport.engine.teacher import Teacher
from offsupport.functional import (
    Moments,
    distillation_loss,
    entropy,
    mean_prediction,
    precision,
    self_training_loss,
    symmetric_gaussian_kl,
    update_moments,
)
from offsupport.nn.inspect import capture_input, device_and_dtype
from offsupport.nn.norm import capture_means
from offsupport.nn.projected import encoder_parameters

# Pseudo-label refinement: predictions averaged over the nearest among recent samples of every class.


Queue = dict[str, Tensor]
"""``features`` (K, size, D) and ``log_q`` (K, size, K) of past samples by label, and how many came, ``count`` (K,)."""


def empty_queue(features: Tensor, log_q: Tensor, size: int) -> Queue:
    """Return a queue of ``size`` places per class for such features (N, D) and predictions (N, K)."""
    classes = log_q.shape[1]
    return {
        "features": features.new_zeros(classes, size, features.shape[1]),
        "log_q": log_q.new_zeros(classes, size, classes),
        "count": log_q.new_zeros(classes, dtype=torch.long),
    }


def push(queue: Queue, features: Tensor, log_q: Tensor) -> Queue:
    """Return the queue with a batch at the end of the queues of its labels, argmax q; the oldest samples leave."""
    size, classes = queue["features"].shape[1], log_q.shape[1]
    labels = log_q.argmax(1)
    # All samples at once: a sample's place follows from how many of its class stand before it in the batch.
    same = labels[:, None] == labels
    rank = same.tril(-1).sum(1)
    newest = same.triu(1).sum(1) < size
    place = (queue["count"][labels] + rank) % size
    # Where a batch holds more of a class than there are places, only the last of them are written.
    at = (labels[newest], place[newest])
    return {
        "features": queue["features"].index_put(at, features[newest]),
        "log_q": queue["log_q"].index_put(at, log_q[newest]),
        "count": queue["count"] + torch.bincount(labels, minlength=classes),
    }


def refined(queue: Queue, features: Tensor, neighbours: int) -> Tensor:
    """Return log of the mean prediction of the ``neighbours`` samples in the queue nearest in angle, (N, K)."""
    size = queue["features"].shape[1]
    filled = (torch.arange(size, device=features.device) < queue["count"][:, None]).flatten()
    past = nn.functional.normalize(queue["features"].flatten(0, 1)[filled], dim=1)
    cosine = nn.functional.normalize(features, dim=1) @ past.T
    nearest = cosine.topk(min(neighbours, len(past)), dim=1).indices
    found = queue["log_q"].flatten(0, 1)[filled][nearest]
    return found.logsumexp(1) - math.log(found.shape[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeslaConfig(StepConfig):
    """Hyper-parameters of TeSLA."""

    min_batch: int | None = None
    """Smaller batches are predicted without a step; None is 16 with any norm layers, as the marginal needs a batch."""
    decay: float = 0.99
    """How much of itself the teacher keeps at a step."""
    views: int = 4
    """Weak views beside the original, whose predictions the teacher averages."""
    lambda_kl: float = 1.0
    """Weight of the student's divergence from the teacher on the adversarial views."""
    lambda_norm: float = 1.0
    """Weight of the change of layer statistics in what selects sub-policies; magnitudes always weigh it 1."""
    queue: int = 0
    """Past samples per class that refine the teacher's predictions; 0 switches refinement off."""
    neighbours: int = 1
    """How many of them are averaged, the sample itself included."""
    policy_length: int = 2
    """Operations per augmentation."""
    policy_lr: float = 0.1
    """Step size of the augmentation policy."""
    rotation: Rotation = "constant"
    """Rotate by 30 degrees whatever the magnitude, as the published code, or by the ``full`` range."""
    sampling: Literal["uniform", "learned"] = "uniform"
    """Law of the sub-policies the policy learns from: ``uniform`` as published, or its own, which is unbiased."""
    bn_momentum: float = 0.1
    """How far the teacher's batch-norm statistics move towards those of each of its passes in a step."""
    score_stats: Literal["batch", "running"] = "batch"
    """Batch-norm statistics of the returned prediction: of the batch itself, or the teacher's running ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("decay", 0 <= self.decay <= 1, "in [0, 1]")
        require("bn_momentum", 0 <= self.bn_momentum <= 1, "in [0, 1]")
        require("views", self.views >= 0, "at least 0")
        require("lambda_kl", self.lambda_kl >= 0, "at least 0")
        require("lambda_norm", self.lambda_norm >= 0, "at least 0")
        require("queue", self.queue >= 0, "at least 0")
        require("neighbours", self.neighbours >= 1, "at least 1")
        require("policy_length", 1 <= self.policy_length <= 3, "1, 2 or 3")
        require("policy_lr", 0 <= self.policy_lr <= 10, "in [0, 10]")


@dataclasses.dataclass(frozen=True)
class Seen:
    """One pass of the teacher, kept for the second time it is needed.

    Args:
        x: The images.
        logits: What the teacher said.
        features: Their penultimate features.
        means: The mean inputs of norm layers, per image.
        before: The teacher's batch-norm statistics before the pass.
        after: And after it.
        kept: The share of them that the pass kept, by channel: ``1 - momentum`` for each time a layer was called.
    """

    x: Tensor
    logits: Tensor
    features: Tensor
    means: list[Tensor]
    before: Tensor
    after: Tensor
    kept: Tensor

    def pass_again(self, statistics: Tensor) -> None:
        """Move ``statistics`` as another pass would: it adds the same to what it keeps of them."""
        statistics.copy_(self.after + self.kept * (statistics - self.before))


@register_method(
    MethodInfo(
        name="tesla",
        summary="Follows its slow teacher's mean prediction over weak views, also on adversarial views.",
        paper="Tomar et al. 2023",
        adapts="every layer but the classifier",
        scored="after the step, by the teacher",
        norm="none",
        source="none",
        single="no step (the marginal needs a batch); batch norm: blended statistics",
        passes="9F 3B",
    ),
    TeslaConfig,
)
class Tesla(PixelAdapter):
    """One step per batch towards the teacher, which then follows; passes are in the published order."""

    config: TeslaConfig
    small_batch_without: ClassVar[int] = 16
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "decay": 0.99},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "decay": 0.99},
        "imagenet": {"lr": 1e-3, "optimizer": "sgd", "decay": 0.9},
        "cifar10-small": {"lr": 3e-3, "optimizer": "adam", "decay": 0.99},
    }
    # Under the constraint the published step size was the best of those tried on narrow networks, too.
    sparse_presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar10-small": {"lr": 1e-3}}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return every parameter but those of the classifier and of a projection head."""
        return encoder_parameters(self.model, self.classifier)

    def decays(self) -> dict[str, float]:
        """Return how much of itself the teacher keeps at a step, by the name of each adapted parameter."""
        return dict.fromkeys(self.parameters_adapted, self.config.decay)

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the teacher, the augmentation policy with its optimiser, and the queue."""
        device, dtype = device_and_dtype(self.model)
        logits = self.augmentation.logits().to(device, dtype)
        policy = {
            "policy": logits,
            "policy_moments": logits.new_zeros(2, *logits.shape),
            "policy_count": torch.zeros(()),
        }
        queue = {f"queue/{name}": torch.empty(0) for name in ("features", "log_q", "count")}
        statistics = self.norm_statistics.follow(self.model, self.config.bn_momentum)
        teacher = Teacher.of(self.parameters_adapted, statistics).remembered()
        return super().initial_memory() | policy | queue | teacher

    @functools.cached_property
    def augmentation(self) -> Policy:
        """The sub-policies that the adversarial augmentation chooses from."""
        return Policy(self.config.policy_length, self.config.rotation)

    def step(self, x: Tensor) -> Tensor:
        """Harden the augmentation, ask the teacher, take a step, let the teacher follow and predict."""
        x = self.images(x)
        teacher = self.teacher()
        views = [x, *weak_views(x, self.config.views, self.generator)]
        x_b = views[int(torch.randint(len(views), (), generator=self.generator))]
        # As published the teacher normalises by each batch and follows it; other statistics serve both networks.
        kind = self.statistics_policy.kind
        with self.norm_statistics.using("ema" if kind == "batch" else kind):
            seen = self._look(x_b, teacher)
            self._harden(x_b, teacher, seen.means)
            x_a = self._adversarial(x_b)
            log_q = self._ask(views, teacher, seen)
        # Two gradients that are added, not one of the sum: the first graph is gone before the second is built.
        gradients = self.gradients(self.agreement(x_b, log_q))
        on_hard = self.gradients(self.config.lambda_kl * distillation_loss(self.network(x_a), log_q))
        self.apply_gradients([a + b for a, b in zip(gradients, on_hard, strict=True)])
        teacher.follow(self.parameters_adapted, self.decays())
        self.memory.update(teacher.remembered())
        return self.predict(x)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the teacher's logits; small batches blend its running statistics with theirs."""
        x, teacher = self.images(x), self.teacher()
        running = self.config.score_stats == "running" and self.norm_statistics.kind == "batch"
        with self.norm_statistics.using("running" if running else self.norm_statistics.kind):
            return self.network(x, teacher.parameters)

    def teacher(self) -> Teacher:
        """Return the teacher as it is remembered; from here on batch norm follows the teacher's statistics."""
        teacher = Teacher.recall(self.memory)
        self.norm_statistics.running = teacher.statistics
        return teacher

    def predicting_parameters(self) -> dict[str, Tensor]:
        """Return the teacher's parameters."""
        return Teacher.recall(self.memory).parameters

    def agreement(self, x_b: Tensor, log_q: Tensor) -> Tensor:
        """Return the loss of the student on ``x_b`` given the teacher's prediction."""
        return self_training_loss(self.network(x_b), log_q)

    @torch.no_grad()
    def _look(self, x: Tensor, teacher: Teacher) -> Seen:
        """Run the teacher on the view that both the policy and the mean prediction need."""
        before = teacher.statistics.clone()
        counting = self.norm_statistics.counting_moves(self.model)
        with capture_input(self.classifier) as features, capture_means(self.model) as means, counting as moves:
            logits = self.network(x, teacher.parameters)
        kept = (1 - self.config.bn_momentum) ** moves
        return Seen(x, logits, features[0], means, before, teacher.statistics.clone(), kept)

    def _harden(self, x: Tensor, teacher: Teacher, clean: list[Tensor]) -> None:
        """Take one step of the policy towards what the teacher is unsure of without its layers seeing other inputs."""
        logits = self.memory["policy"].clone().requires_grad_()
        selection = logits[:, 0] if self.config.sampling == "learned" else None
        draw = self.augmentation.draw(len(x), self.generator, selection)
        rows = draw.rows.to(x.device)
        x_aug = self.augmentation.apply(x, draw, logits[rows, 1:].sigmoid())
        with capture_means(self.model) as means:
            h = entropy(self.network(x_aug, teacher.parameters))
        change = statistics_change(means, clean, h)
        # Minimised by magnitudes through the images, by selection as a score function.
        score = (self.config.lambda_norm * change - h).detach() * logits[:, 0].log_softmax(0)[rows]
        loss = (change - h).mean() + score.mean()
        require_finite_loss(loss)
        self.passes["backward"] += 1
        (gradient,) = torch.autograd.grad(loss, logits)
        if not all_finite([gradient]):
            raise StepRejected("bad_grad")
        moments, count = self.memory["policy_moments"], self.memory["policy_count"]
        after = adam(logits.detach(), gradient, moments, count, self.config.policy_lr)
        self.memory.update(dict(zip(("policy", "policy_moments", "policy_count"), after, strict=True)))

    @torch.no_grad()
    def _adversarial(self, x: Tensor) -> Tensor:
        """Augment by the learned policy."""
        logits = self.memory["policy"]
        draw = self.augmentation.draw(len(x), self.generator, logits[:, 0])
        return self.augmentation.apply(x, draw, logits[draw.rows.to(x.device), 1:].sigmoid())

    @torch.no_grad()
    def _ask(self, views: list[Tensor], teacher: Teacher, seen: Seen) -> Tensor:
        """Return log of the teacher's mean prediction over the views, the original last; a queue refines it."""
        logits: list[Tensor] = []
        # Only the queue compares features; no view may be left to look at, where the one seen is all there is.
        watching: contextlib.AbstractContextManager[list[Tensor]] = contextlib.nullcontext([])
        if self.config.queue:
            watching = capture_input(self.classifier, optional=True)
        with watching as features:
            for view in reversed(views):
                # The published code runs the teacher on this view twice. The answer is the same, so only its
                # statistics move a second time.
                if view is seen.x:
                    seen.pass_again(teacher.statistics)
                    logits.append(seen.logits)
                else:
                    logits.append(self.network(view, teacher.parameters))
        log_q = mean_prediction(logits)
        if not self.config.queue:
            return log_q
        z = torch.stack([seen.features, *features]).mean(0).flatten(1)
        queue = {name: self.memory[f"queue/{name}"] for name in ("features", "log_q", "count")}
        if not queue["features"].numel():
            queue = empty_queue(z, log_q, self.config.queue)
        queue = push(queue, z, log_q)
        self.memory.update({f"queue/{name}": tensor for name, tensor in queue.items()})
        return refined(queue, z, self.config.neighbours)


def statistics_change(means: list[Tensor], clean: list[Tensor], like: Tensor) -> Tensor:
    """Return how far each image moved the mean inputs (N, C) of norm layers: squared, mean over channels and layers."""
    gaps = [(a - b).square().mean(1) for a, b in zip(means, clean, strict=True) if len(a) == len(like)]
    return torch.stack(gaps).mean(0) if gaps else torch.zeros_like(like)


# TeSLA-s: TeSLA that also keeps the distribution of its features near that of the source.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeslaSConfig(TeslaConfig):
    """Hyper-parameters of TeSLA-s."""

    align_weight: float = 0.05
    """Weight of the symmetric divergence between the Gaussians of source and target features."""
    moment_window: int = 1280
    """A target feature counts as at least one part in so many in the running moments."""
    ridge: float = 1 / 30
    """This share of the largest source covariance is added to the diagonal of both covariances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("align_weight", self.align_weight >= 0, "at least 0")
        require("moment_window", self.moment_window >= 1, "at least 1")
        require("ridge", self.ridge > 0, "above 0")


_MOMENTS = ("moments/mean", "moments/cov", "moments/count")


class Source(NamedTuple):
    """The Gaussian of the source's features: (D,), (D, D) with the ridge, its inverse, and the ridge (D, D)."""

    mean: Tensor
    cov: Tensor
    precision: Tensor
    ridge: Tensor


@register_method(
    MethodInfo(
        name="tesla-s",
        summary="TeSLA with its features held to the mean and covariance of the source.",
        paper="Tomar et al. 2023",
        adapts="every layer but the classifier",
        scored="after the step, by the teacher",
        norm="none",
        source="required",
        single="no step (the marginal needs a batch); batch norm: blended statistics",
        passes="9F 3B",
    ),
    TeslaSConfig,
)
class TeslaS(Tesla):
    """TeSLA plus the symmetric Gaussian divergence of global feature moments."""

    config: TeslaSConfig
    source_shapes: ClassVar[dict[str, str]] = {"feature_mean": "D", "feature_cov": "DD"}
    _cached: Source | None = None

    def initial_memory(self) -> dict[str, Tensor]:
        """Remember the running moments of the target's features too."""
        return super().initial_memory() | {name: torch.empty(0) for name in _MOMENTS}

    def agreement(self, x_b: Tensor, log_q: Tensor) -> Tensor:
        """Return the loss of the student on ``x_b``, its features' distance from the source included."""
        with capture_input(self.classifier) as features:
            loss = super().agreement(x_b, log_q)
        z = features[0].flatten(1)
        target, source = self._follow(z), self._source_gaussian(z)
        distance = symmetric_gaussian_kl(
            source.mean, source.cov, target.mean, target.cov + source.ridge, precision_a=source.precision
        )
        return loss + self.config.align_weight * distance

    def _follow(self, z: Tensor) -> Moments:
        """Let the running moments follow the features of this batch, and return them with their gradients."""
        past = [self.memory[name] for name in _MOMENTS]
        start = Moments(*past) if past[0].numel() else Moments.none(z.shape[1], like=z)
        moments = update_moments(start, z, self.config.moment_window)
        self.memory.update(dict(zip(_MOMENTS, (moments.mean, moments.cov, moments.count), strict=True)))
        return moments

    def _source_gaussian(self, like: Tensor) -> Source:
        """Return the Gaussian of the source's features in the type of ``like``; its inverse is computed once."""
        if self._cached is None or self._cached.mean.dtype != like.dtype or self._cached.mean.device != like.device:
            assert self.source is not None  # noqa: S101 (adapt() refuses this method without source statistics)
            mean, cov = (self.source.tensors[name].to(like) for name in ("feature_mean", "feature_cov"))
            ridge = self.config.ridge * cov.max() * torch.eye(len(mean)).to(like)
            self._cached = Source(mean, cov + ridge, precision(cov + ridge), ridge)
        return self._cached

    def collect(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the mean and the unbiased covariance of the source's features, of the model as it came."""
        return feature_moments(self.source_features(batches))
