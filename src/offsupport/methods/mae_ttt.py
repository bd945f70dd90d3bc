"""MAE test-time training: reconstruct the test image from parts of it, and then be certain about the whole of it.

Every image is an episode: the source weights learn to reconstruct it, predict it, and are put back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offsupport.augment.views import flip, random_resized_crop
from offsupport.core.errors import ConfigError
from offsupport.methods import guard
from offsupport.methods.adapter import Adapter
from offsupport.methods.config import MethodInfo, StepConfig, require
from offsupport.methods.draws import draws_for
from offsupport.methods.registry import register
from offsupport.nn.mae_inside import Inside
from offsupport.nn.masking import draw_masks, visible_patches
from offsupport.nn.norm import Statistics

Views = Literal["copies", "crops"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeTttConfig(StepConfig):
    """Hyper-parameters of MAE test-time training."""

    lr: float = 5e-3
    """Step size."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Update rule; ``adam`` has decoupled weight decay and a second moment decay of 0.95."""
    weight_decay: float = 0.0
    """Pull of the weights to zero."""
    steps: int = 20
    """Iterations per image (per batch with ``online``)."""
    masks: int = 128
    """Masked versions of the image (with ``online``: of the batch, at least one of each) in a reconstruction step."""
    mask_ratio: float = 0.75
    """Share of the patches that is removed."""
    tune: Literal["encoder", "encoder-without-tokens", "all"] = "encoder"
    """What reconstruction may change; the encoder counts class token and mask token in unless it is said without."""
    recon_views: Views = "copies"
    """Whether all masks lie over the image itself or each over a random crop of it."""
    online: bool = False
    """Treat each batch as one episode that goes on from the last one, instead of each image as one of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("weight_decay", self.weight_decay >= 0, "at least 0")
        require("steps", self.steps >= 1, "at least 1")
        require("masks", self.masks >= 1, "at least 1")
        require("mask_ratio", 0 < self.mask_ratio < 1, "above 0 and below 1")

    @property
    def independent(self) -> bool:
        """Whether the prediction of an image depends on that image alone, so that a stream may be split."""
        return not self.online

    def make_optimizer(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimiser of these hyper-parameters."""
        lr, decay = self.lr, self.weight_decay
        if self.optimizer == "adam":
            betas = (self.momentum, 0.95)
            return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay, foreach=True)
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=decay, foreach=True)


@register(
    MethodInfo(
        name="mae-ttt",
        summary="Learns to reconstruct each image from parts of it, predicts it, and forgets it again.",
        paper="Gandelsman et al. 2022",
        adapts="the encoder of a masked autoencoder",
        scored="after the last step",
        norm="none",
        source="none",
        single="each image is an episode of its own, whatever the batch",
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
    trains_classifier: ClassVar[bool] = False

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
        """Adapt to each image by itself and predict it, or to the batch as a whole with ``online``."""
        if not self.config.online:
            return torch.cat([self._episode(image) for image in torch.split(x, 1)])
        for _ in self.iterations(x, self.generator):
            pass
        return self.predict(x)

    def iterations(self, x: Tensor, generator: torch.Generator) -> Iterator[None]:
        """Adapt to ``x``; yields after each iteration, so that one may look on."""
        for _ in range(self.config.steps):
            self.descend(self._reconstruction(x, generator))
            self.after_reconstruction(x, generator)
            yield
        self._require_finite_parameters()

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
            raise guard.StepRejected("bad_loss")
        guard.require_graph(loss)
        self.passes["backward"] += 1
        parameters = list(self.parameters_adapted.values())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        self.unreached = {name for name, g in zip(self.parameters_adapted, found, strict=True) if g is None}
        if not guard.all_finite([gradient for gradient in found if gradient is not None]):
            raise guard.StepRejected("bad_grad")
        return [p.new_zeros(()).expand_as(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take a step with what was reached; parameters are looked at when the episode ends or its loss breaks."""
        assert self.optimizer is not None  # noqa: S101 (a method with a step declares trainable parameters)
        for (name, parameter), gradient in zip(self.parameters_adapted.items(), gradients, strict=True):
            parameter.grad = None if name in self.unreached else gradient
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _set_up_batches(self) -> None:
        super()._set_up_batches()
        if not self.config.online and self.min_batch > 1:
            raise ConfigError(
                "Each image is an episode of its own, so batches need no least size.",
                "Leave min_batch out, or pass online=True.",
            )

    def _require_finite_parameters(self) -> None:
        if not guard.all_finite([parameter.detach() for parameter in self.parameters_adapted.values()]):
            raise guard.StepRejected("bad_param")

    def _episode(self, x: Tensor) -> Tensor:
        """Adapt to one image, predict it, put everything back; an episode that fails predicts with source weights."""
        if guard.blank(x):
            self.count("empty_selection")
            return self.predict(x)
        try:
            for _ in self.iterations(x, self.generator_for(x)):
                pass
            return self.predict(x)
        except guard.StepRejected as rejected:
            self.count(rejected.event)
            self.restart()
            return self.predict(x)
        finally:
            self.restart()

    def _reconstruction(self, x: Tensor, generator: torch.Generator) -> Tensor:
        each = max(1, self.config.masks // len(x))
        if self.config.recon_views == "crops":
            x = crops(x.repeat_interleave(each, 0), generator)
        elif len(x) > 1:
            x = x.repeat_interleave(each, 0)
        inside = self.inside
        count = each if len(x) == 1 else len(x)
        masks = draw_masks(count, inside.mae.config.patches, self.config.mask_ratio, generator)
        self.passes["forward"] += 1
        return inside.mae.loss(inside.reach(x), masks.to(x.device))


def crops(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image, resized to its size and mirrored half of the time."""
    return flip(random_resized_crop(x, (0.2, 1.0), (3 / 4, 4 / 3), generator), generator)
