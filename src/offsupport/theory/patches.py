"""How unusual each patch of an image is for a network: by what it cannot reconstruct, or by its patch features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.core.seeds import derive_seed
from offsupport.nn.mae import MaskedAutoencoder
from offsupport.nn.mae_inside import Inside
from offsupport.nn.masking import Masking, mask_by_noise, visible_patches

PATCH_RATIO = 0.75
ROUNDS = 2
"""How often the patches are dealt out anew; within a round every patch is visible once and removed three times."""
SMALLEST = 8
"""Positions along a side that a feature map needs to tell where something is."""

Score = Callable[[Tensor], Tensor]
"""From images (N, C, H, W) to S numbers per patch, (N, S, h, w)."""


def patch_score(model: nn.Module, reference: Tensor) -> tuple[Score, str]:
    """Return what scores the patches of images under a model, and what it is.

    Args:
        model: A classifier. A masked autoencoder inside it reconstructs; other networks need a map of features.
        reference: Source images (N, C, H, W).
    """
    if any(isinstance(module, MaskedAutoencoder) for module in model.modules()):
        return _residual(Inside(model, "diagnose_model")), "reconstruction residual and patch statistics"
    return _from_features(model, reference), "distance of patch features and patch statistics"


def _residual(inside: Inside) -> Score:
    """The reconstruction error of each patch over masks that remove it, the same ones for every image."""
    mae = inside.mae
    masks = list(_deals(mae.config.patches))

    @torch.no_grad()
    def score(x: Tensor) -> Tensor:
        given = inside.reach(x)
        total, times = torch.zeros(len(x), mae.config.patches), torch.zeros(mae.config.patches)
        for one in masks:
            removing = Masking(*(part.expand(len(x), -1) for part in one)).to(x.device)
            error = mae.patch_errors(given, mae.reconstruct(given, removing))
            total += (error * removing.mask).cpu()
            times += one.mask[0]
        return _with_statistics((total / times).view(-1, mae.config.side, mae.config.side), x)

    return score


def _with_statistics(score: Tensor, x: Tensor) -> Tensor:
    """Put beside a score (N, h, w) what networks are made to overlook: mean, deviation and roughness of each patch.

    Roughness is how much pixels differ from the mean of their neighbours; it and the deviation are logarithms.
    """
    padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    rough = (x - nn.functional.avg_pool2d(padded, 3, stride=1)).abs()
    grid = (score.shape[1], score.shape[2])
    mean, square, rough = (
        nn.functional.adaptive_avg_pool2d(values.mean(1), grid).cpu() for values in (x, x.square(), rough)
    )
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return torch.stack([score, mean, (deviation + 0.01).log(), (rough + 0.01).log()], 1)


def _deals(patches: int) -> Iterator[Masking]:
    """Yield masks under which every patch is removed equally often."""
    visible = visible_patches(patches, PATCH_RATIO)
    for number in range(ROUNDS):
        generator = torch.Generator().manual_seed(derive_seed("deal of patches", number))
        order = torch.randperm(patches, generator=generator)
        for first in range(0, patches, visible):
            noise = torch.roll(order, -first).argsort().float()
            yield mask_by_noise(noise[None], PATCH_RATIO)


def _from_features(model: nn.Module, reference: Tensor) -> Score:
    """How many deviations the features of a position lie from what the source has there."""
    name = _map_layer(model, reference[:1])

    @torch.no_grad()
    def features(x: Tensor) -> Tensor:
        with _outputs(model, [name]) as found:
            model(x)
        return found[name]

    maps = features(reference)
    spread, mean = torch.std_mean(maps, 0)
    spread = spread + 1e-3 * spread.mean()

    def score(x: Tensor) -> Tensor:
        return _with_statistics(((features(x) - mean) / spread).square().mean(1).sqrt().cpu(), x)

    return score


def _map_layer(model: nn.Module, x: Tensor) -> str:
    """Return the last module that gives a map of features fine enough to tell where something is."""
    names = [name for name, module in model.named_modules() if name and not list(module.children())]
    with torch.no_grad(), _outputs(model, names) as found:
        model(x)
    fine = [name for name, out in found.items() if out.dim() == 4 and min(out.shape[2:]) >= SMALLEST]
    if not fine:
        raise ModelError(
            f"No layer of this model gives a map of at least {SMALLEST}x{SMALLEST} features.",
            "Use a convolutional network or a masked autoencoder.",
        )
    return fine[-1]


@contextlib.contextmanager
def _outputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the output tensors of these modules inside the block, in the order in which they are computed."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, given: object, out: object) -> None:
            if isinstance(out, Tensor):
                found[name] = out.detach()

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
