"""MAE test-time training: reconstruct the test image from parts of it, and then be certain about the whole of it.

Every image is an episode: the source weights learn to reconstruct it, predict it, and are put back. Different images
may also share an episode, a batch at a time: being certain then has to leave room for all classes.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment.views import flip, random_resized_crop
from offsupport.core.errors import ConfigError
from offsupport.engine import state
from offsupport.engine.adapter import Adapter, StepRejected, all_finite, draws_for, require_graph
from offsupport.engine.config import MethodInfo, StepConfig, require
from offsupport.engine.guard import blank
from offsupport.engine.registry import register_method
from offsupport.functional import entropy, marginal_entropy, mutual_information
from offsupport.nn.mae import Inside, draw_masks, visible_patches
from offsupport.nn.norm import Statistics, affine_parameters

Views = Literal["copies", "crops"]
Rule = Literal["adam", "sgd"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeTttConfig(StepConfig):
    """Hyper-parameters of MAE test-time training."""

    lr: float = 5e-3
    """Step size."""
    optimizer: Rule = "sgd"
    """Update rule; ``adam`` has decoupled weight decay and a second moment decay of 0.95."""
    weight_decay: float = 0.0
    """Pull of the weights to zero."""
    steps: int = 20
    """Iterations per image (per batch with ``together`` or ``online``)."""
    masks: int = 128
    """Masked versions of the image (of the batch: at least one of each image) in a reconstruction step."""
    mask_ratio: float = 0.75
    """Share of the patches that is removed."""
    tune: Literal["encoder", "encoder-without-tokens", "all"] = "encoder"
    """What reconstruction may change; the encoder counts class token and mask token in unless it is said without."""
    recon_views: Views = "copies"
    """Whether all masks lie over the image itself or each over a random crop of it."""
    online: bool = False
    """Treat each batch as one episode that goes on from the last one, instead of each image as one of its own."""
    together: bool = False
    """Treat each batch as one episode, and put everything back after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("weight_decay", self.weight_decay >= 0, "at least 0")
        require("steps", self.steps >= 1, "at least 1")
        require("masks", self.masks >= 1, "at least 1")
        require("mask_ratio", 0 < self.mask_ratio < 1, "above 0 and below 1")
        if self.online and self.together:
            raise ConfigError(
                "online=True goes on after a batch and together=True puts everything back.", "Leave one of them out."
            )

    @property
    def by_batch(self) -> bool:
        """Whether the images of a batch share an episode."""
        return self.online or self.together

    @property
    def independent(self) -> bool:
        """Whether an image is predicted by that image alone: each is an episode, unless a batch is one."""
        return not self.by_batch

    def make_optimizer(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimiser of these hyper-parameters."""
        lr, decay = self.lr, self.weight_decay
        if self.optimizer == "adam":
            betas = (self.momentum, 0.95)
            return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay, foreach=True)
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=decay, foreach=True)


@register_method(
    MethodInfo(
        name="mae-ttt",
        summary="Learns to reconstruct each image from parts of it, predicts it, and forgets it again.",
        paper="Gandelsman et al. 2022",
        adapts="the encoder of a masked autoencoder",
        scored="after the last step",
        norm="none",
        source="none",
        needs="a masked autoencoder",
        single="each image is an episode of its own, whatever the batch; with together or online, the batch is",
        passes="per image 20 times 1F 1B, and 1F",
    ),
    MaeTttConfig,
)
class MaeTtt(Adapter):
    """Reconstruction steps on random masks of one image, then a prediction of the whole image; then all is put back."""

    config: MaeTttConfig
    statistics: ClassVar[Statistics] = "source"
    small_batch_with_norm: ClassVar[int] = 1
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"steps": 10, "masks": 32},
        "cifar100": {"steps": 10, "masks": 32},
        "imagenet": {},
    }

    @property
    def trains_classifier(self) -> bool:
        """Whether the classifier adapts, too."""
        return False

    @property
    def inside(self) -> Inside:
        """The autoencoder in the model, and how images reach it."""
        return Inside(self.model, self.info.name)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the encoder's parameters, and those of whatever else is to be tuned."""
        inside, tune = self.inside, self.config.tune
        visible_patches(inside.mae.config.patches, self.config.mask_ratio)  # refuses a ratio that leaves none
        left_out: tuple[str, ...] = () if tune == "all" else ("decoder",)
        left_out += ("cls_token", "mask_token") if tune == "encoder-without-tokens" else ()
        left_out += () if self.trains_classifier else ("classifier",)
        return {
            inside.prefix + name: parameter
            for name, parameter in inside.mae.named_parameters()
            if not name.startswith(left_out)
        }

    def never_updated(self) -> list[nn.Module]:
        """Return the modules that a sparsity constraint must leave alone, too: what is not tuned here."""
        mae, kept = self.inside.mae, [] if self.config.tune == "all" else ["decoder"]
        kept += [] if self.trains_classifier else ["classifier"]
        return [module for name, module in mae.named_children() if name.startswith(tuple(kept))]

    def step(self, x: Tensor) -> Tensor:
        """Adapt to each image by itself and predict it, or to the batch as a whole."""
        if not self.config.online:
            episodes = [x] if self.config.together else torch.split(x, 1)
            return torch.cat([self._episode(images) for images in episodes])
        for _ in self.iterations(x, self.generator):
            pass
        return self.predict(x)

    def iterations(self, x: Tensor, generator: torch.Generator) -> Iterator[None]:
        """Adapt to ``x``; yields after each iteration, so that one may look on."""
        for _ in range(self.config.steps):
            self.reconstruct(x, generator)
            self.after_reconstruction(x, generator)
            yield
        self._require_finite_parameters()

    def reconstruct(self, x: Tensor, generator: torch.Generator) -> None:
        """Take the reconstruction step of an iteration."""
        self.descend(self._reconstruction(x, generator))

    def after_reconstruction(self, x: Tensor, generator: torch.Generator) -> None:
        """Do what else belongs to an iteration; nothing here."""

    def generator_for(self, x: Tensor) -> torch.Generator:
        """Return the random draws of an image's episode; methods with entropy steps and without share them."""
        return draws_for(x, "mae-ttt", self.options.seed)

    @torch.no_grad()
    def restart(self) -> None:
        """Put the weights back to the source and forget all momentum."""
        for name, parameter in self.parameters_adapted.items():
            parameter.copy_(self.source_parameters[name])
        if self.optimizer is not None:
            self.optimizer.state.clear()

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return gradients, and remember what the loss does not depend on: not even momentum may move that."""
        if not torch.isfinite(loss):
            self._require_finite_parameters()
            raise StepRejected("bad_loss")
        require_graph(loss)
        self.passes["backward"] += 1
        asked = self.movable()
        gradients = torch.autograd.grad(loss, list(asked.values()), allow_unused=True)
        found = {name: g for name, g in zip(asked, gradients, strict=True) if g is not None}
        self.unreached = self.parameters_adapted.keys() - found.keys()
        if not all_finite(list(found.values())):
            raise StepRejected("bad_grad")
        return [found.get(name, p.new_zeros(()).expand_as(p)) for name, p in self.parameters_adapted.items()]

    def movable(self) -> dict[str, nn.Parameter]:
        """Return what the stage that goes on may move: here everything that adapts."""
        return self.parameters_adapted

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take a step with what was reached; parameters are looked at when the episode ends or its loss breaks."""
        assert self.optimizer is not None  # noqa: S101 (a method with a step declares trainable parameters)
        for (name, parameter), gradient in zip(self.parameters_adapted.items(), gradients, strict=True):
            parameter.grad = None if name in self.unreached else gradient
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _set_up_batches(self) -> None:
        super()._set_up_batches()
        if not self.config.by_batch and self.min_batch > 1:
            raise ConfigError(
                "Each image is an episode of its own, so batches need no least size.",
                "Leave min_batch out, or pass together=True or online=True.",
            )

    def _require_finite_parameters(self) -> None:
        if not all_finite([parameter.detach() for parameter in self.parameters_adapted.values()]):
            raise StepRejected("bad_param")

    def _episode(self, x: Tensor) -> Tensor:
        """Adapt to ``x``, predict it, put everything back; an episode that fails predicts with source weights."""
        if blank(x):
            self.count("empty_selection")
            return self.predict(x)
        try:
            for _ in self.iterations(x, self.generator_for(x)):
                pass
            return self.predict(x)
        except StepRejected as rejected:
            self.count(rejected.event)
            self.restart()
            return self.predict(x)
        finally:
            self.restart()

    def _reconstruction(self, x: Tensor, generator: torch.Generator) -> Tensor:
        each = max(1, self.config.masks // len(x))
        count = each * len(x)
        if self.config.recon_views == "crops":
            x = crops(x.repeat_interleave(each, 0), generator)
        inside = self.inside
        masks = draw_masks(count, inside.mae.config.patches, self.config.mask_ratio, generator)
        self.passes["forward"] += 1
        return inside.mae.loss(inside.reach(x), masks.to(x.device))


def crops(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image, resized to its size and mirrored half of the time."""
    return flip(random_resized_crop(x, (0.2, 1.0), (3 / 4, 4 / 3), generator), generator)


# MAE test-time training with entropy steps: after each reconstruction step, be certain about the whole image.


Uncertainty = Literal["entropy", "information", "marginal"]
_SECOND = "second:"
"""Marks what belongs to the optimiser of the entropy steps in a snapshot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeTttEmConfig(MaeTttConfig):
    """Hyper-parameters of MAE test-time training with entropy steps."""

    recon_steps: int = 1
    """Reconstruction steps per iteration; 0 leaves the entropy steps alone."""
    em_steps: int = 1
    """Entropy steps after the reconstruction step."""
    em_loss: Uncertainty = "entropy"
    """The mean entropy of the predictions; that minus the entropy of their mean; or the entropy of their mean alone."""
    em_views: Views = "copies"
    """What is classified: the image itself, or random crops of it. A batch that is one episode is taken as it is."""
    em_images: int = 32
    """Number of crops. Copies are all alike, so one stands for them all."""
    em_tune: Literal["norms", "encoder", "encoder-and-head"] = "encoder-and-head"
    """What the entropy steps may change; ``norms`` are the scales and shifts of the encoder's norm layers."""
    optimizers: Literal["shared", "separate"] = "shared"
    """Whether both stages share their momentum, and with it rule and step size."""
    em_optimizer: Rule | None = None
    """Update rule of the entropy steps where optimisers are separate; None is that of reconstruction."""
    em_lr: float | None = None
    """Their step size, likewise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("recon_steps", self.recon_steps >= 0, "at least 0")
        require("em_steps", self.em_steps >= 0, "at least 0")
        require("em_images", self.em_images >= 1, "at least 1")
        require("em_lr", self.em_lr is None or 0 <= self.em_lr <= 1e6, "in [0, 1e6]")
        if self.em_loss == "information" and not self.by_batch and (self.em_views == "copies" or self.em_images == 1):
            raise ConfigError(
                "The information between copies of one image and their predictions is zero, and so is its gradient.",
                'Use em_loss="entropy", several em_views="crops", or together=True (or online=True) with batches of '
                "different images.",
            )
        if self.by_batch and self.em_views == "crops":
            raise ConfigError(
                'Entropy steps take a batch that is one episode as it is, so em_views="crops" would change nothing.',
                "Leave it out, or let each image be an episode: without online and together.",
            )
        if self.optimizers == "shared" and (self.em_lr, self.em_optimizer) != (None, None):
            raise ConfigError(
                "The stages share one optimiser, so em_lr and em_optimizer would change nothing.",
                'Add optimizers="separate".',
            )
        if not self.recon_steps and not self.em_steps:
            raise ConfigError("Without steps of either kind nothing adapts.", "Raise recon_steps or em_steps.")

    def second_optimizer(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimiser of the entropy steps; groups with a step size of their own keep its ratio to ``lr``."""
        lr = self.lr if self.em_lr is None else self.em_lr
        own = dataclasses.replace(self, lr=lr, optimizer=self.em_optimizer or self.optimizer)
        scale = lr / self.lr if self.lr else 1.0
        return own.make_optimizer([group | ({"lr": scale * group["lr"]} if "lr" in group else {}) for group in groups])


@register_method(
    MethodInfo(
        name="mae-ttt+em",
        summary="MAE test-time training with entropy steps on whole images after each reconstruction step.",
        paper="Kong et al. 2024",
        adapts="the encoder of a masked autoencoder, and the classifier",
        scored="after the last step",
        norm="none",
        source="none",
        needs="a masked autoencoder",
        single="each image is an episode of its own, whatever the batch; with together or online, the batch is",
        passes="per image 20 times 2F 2B, and 1F",
    ),
    MaeTttEmConfig,
)
class MaeTttEm(MaeTtt):
    """Each iteration: a reconstruction step (encoder), then entropy steps on whole images (encoder and classifier)."""

    config: MaeTttEmConfig
    being_certain = False
    """Whether the stage that goes on is that of the entropy steps."""

    @property
    def trains_classifier(self) -> bool:
        """Whether the classifier adapts, too."""
        return self.config.em_tune == "encoder-and-head"

    def announce(self) -> None:
        """Say what entropy does on one image."""
        super().announce()
        if self.config.em_steps and not self.config.by_batch and self.config.em_views == "copies":
            warnings.warn(
                f"{self.info.name}: entropy steps on a single image make the network surer of what it says already: "
                "they lock its prediction in. On batches of different images pass together=True, "
                'em_loss="information" (docs/mae.md); on single ones, mae-ttt does without.',
                stacklevel=3,
            )

    def reconstruct(self, x: Tensor, generator: torch.Generator) -> None:
        """Take the reconstruction steps of an iteration."""
        for _ in range(self.config.recon_steps):
            super().reconstruct(x, generator)

    def after_reconstruction(self, x: Tensor, generator: torch.Generator) -> None:
        """Take the entropy steps; a lone image says nothing by information, so there are none."""
        if self.config.by_batch and self.config.em_loss == "information" and len(x) == 1:
            self.count("empty_selection")
            return
        for _ in range(self.config.em_steps):
            seen = x
            # Copies of one image have one prediction: a single forward pass gives the same loss and gradient.
            if self.config.em_views == "crops":
                seen = crops(x.expand(self.config.em_images, -1, -1, -1), generator)
            self._descend_uncertainty(uncertainty(self.network(seen), self.config.em_loss))

    def movable(self) -> dict[str, nn.Parameter]:
        """Return what the stage that goes on may move; the entropy steps may be held to the encoder's norm layers."""
        return self.norms if self.being_certain and self.config.em_tune == "norms" else self.parameters_adapted

    @functools.cached_property
    def norms(self) -> dict[str, nn.Parameter]:
        """Scales and shifts of the encoder's norm layers."""
        found = affine_parameters(self.model)
        kept = {name: parameter for name, parameter in self.parameters_adapted.items() if name in found}
        left_out = tuple(self.inside.prefix + name for name in ("decoder", "classifier"))
        return {name: parameter for name, parameter in kept.items() if not name.startswith(left_out)}

    def _descend_uncertainty(self, loss: Tensor) -> None:
        first = self.optimizer
        self.optimizer, self.being_certain = self.second or first, True
        try:
            self.descend(loss)
        finally:
            self.optimizer, self.being_certain = first, False

    # The second optimiser is part of the state -----------------------------------------------------------------------

    def _set_up_batches(self) -> None:
        super()._set_up_batches()
        separate = self.config.optimizers == "separate"
        self.second = self.config.second_optimizer(self.parameter_groups()) if separate else None

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimisers by what stands before a parameter's name in a snapshot."""
        return super().optimizers() | ({} if self.second is None else {_SECOND: self.second})

    def restart(self) -> None:
        """Put the weights back to the source and forget all momentum."""
        super().restart()
        if self.second is not None:
            self.second.state.clear()

    def snapshot(self) -> state.Snapshot:
        """Copy all adaptive state."""
        first = super().snapshot()
        second = state.capture(self.parameters_adapted, self.second, self.memory, self.generator)
        marked = {f"{_SECOND}{name}": tensor for name, tensor in second.optimizer.items()}
        return dataclasses.replace(first, optimizer=first.optimizer | marked)

    @torch.inference_mode(False)
    def restore(self, snapshot: state.Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        marked = {name: tensor for name, tensor in snapshot.optimizer.items() if name.startswith(_SECOND)}
        plain = {name: tensor for name, tensor in snapshot.optimizer.items() if name not in marked}
        super().restore(dataclasses.replace(snapshot, optimizer=plain))
        if self.second is not None:
            own = {name.removeprefix(_SECOND): tensor for name, tensor in marked.items()}
            moment = dataclasses.replace(snapshot, optimizer=own)
            state.restore(moment, self.parameters_adapted, self.second, self.memory, self.generator)


def uncertainty(logits: Tensor, loss: Uncertainty) -> Tensor:
    """Return what the entropy steps minimise, from the logits (N, K) of N views.

    Example:
        >>> float(uncertainty(torch.zeros(3, 2), "information"))
        0.0
    """
    if loss == "information":
        return -mutual_information(logits)
    return marginal_entropy(logits) if loss == "marginal" else entropy(logits).mean()
