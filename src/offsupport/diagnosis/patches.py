"""How unusual each patch of an image is for a network: by what it cannot reconstruct, or by its patch features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.core.seeds import derive_seed
from offsupport.nn.mae import Inside, MaskedAutoencoder, Masking, mask_by_noise, visible_patches

PATCH_RATIO = 0.75
"""Share of patches that is removed, as the autoencoders were trained with."""
ROUNDS = 2
"""How often the patches are dealt out anew; within a round every patch is visible once and removed three times."""
SMALLEST, LARGEST = 8, 32
"""Positions along a side that a feature map needs to tell where something is; a finer one is averaged to the latter."""
BATCH = 64
LEVEL = 0.95
"""What is rarer than all but this share of the source's own counts as off its support."""
WIDTH = 0.3
"""By how much places are smoothed, in mean deviations over the fifth root of the number of images."""
MOST = 400
"""Patches are compared with those of at most so many unseen images: more hardly move a threshold at :data:`LEVEL`."""

Score = Callable[[Tensor], Tensor]
"""From images (N, C, H, W) to S numbers per patch, (N, S, h, w)."""


def batched(function: Score, x: Tensor) -> Tensor:
    """Return what a function gives for images, a batch at a time; refuse what is not finite."""
    return require_finite(torch.cat([function(part) for part in torch.split(x, BATCH)]))


def require_finite(found: Tensor) -> Tensor:
    """Return what a network computed from finite images; refuse what is not finite."""
    if not found.isfinite().all():
        raise ModelError(
            "The network computes values that are not finite from finite images.",
            "Check its weights, or compute in a wider type: model.float().",
        )
    return found


def judge_patches(found: Tensor, usual: Tensor, own: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Say which patches are rarer than all but 5 % of the source's own.

    Each patch counts by the score in which it is rarest, too high or too low: noise cannot be reconstructed, and a
    blurred patch only too well. Where the 5 % end is taken from unseen images, each among the others.

    Args:
        found: (M, S, h, w) scores of the images in question.
        usual: (n, S, h, w) scores of source images that took no part in the reference.
        own: What :func:`own_rarity` found of these, where it is known already.

    Returns:
        The place of each patch among those of the source at its position, by its rarest score, (M, h, w); whether it
        is off the support; and the latter for the source images, each judged by the others.
    """
    usual, width = _scale(usual)
    rarity, place = _rarest([_tails(x, usual, width) for x in found.double()])
    own = own_rarity(usual) if own is None else own
    limit = own.quantile(1 - LEVEL)
    return place.float(), rarity < limit, own < limit


def own_rarity(usual: Tensor) -> Tensor:
    """Return how rare each patch of source images is among those of the others, (n, h, w)."""
    usual, width = _scale(usual)
    return _rarest([_tails(x, usual, width, but=i) for i, x in enumerate(usual)])[0]


def _scale(usual: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source images that count, and the width of steps."""
    if len(usual) > MOST:
        usual = usual[torch.linspace(0, len(usual) - 1, MOST).long()]
    usual = usual.double()  # where shares of far values are still above zero
    # One width per score, over all positions: one per position would hang on the very patch that is to be judged.
    return usual, usual.std(0).mean((1, 2), keepdim=True).clamp(min=1e-6) * WIDTH * len(usual) ** -0.2


def _tails(x: Tensor, among: Tensor, width: Tensor, but: int | None = None) -> Tensor:
    """Return which shares of the source lie below and above each score of one image, (2, S, h, w).

    Steps of an empirical distribution end at 1/n, which is coarser than what few images must resolve; logistic ones
    go on to fall with the distance. One image at a time, as all of them are many times what a machine holds.

    Args:
        x: (S, h, w) the scores.
        among: (n, S, h, w) those of the source.
        width: (S, 1, 1) of a step.
        but: An image of the source that does not count, as it is ``x`` itself.
    """
    distance = (x - among) / width
    steps = torch.stack([distance.sigmoid(), (-distance).sigmoid()])
    if but is not None:
        steps[:, but] = 0
    return steps.sum(1) / (len(among) - (but is not None))


def _rarest(tails: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the smallest share below or above over all scores, and the place (0 to 1) in that score, (N, h, w)."""
    below, above = torch.stack(tails, 1)
    rarity, most = torch.minimum(below, above).min(1, keepdim=True)
    place = torch.where(below < above, below, 1 - above).gather(1, most)
    return rarity[:, 0], place[:, 0]


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
    """Put beside a score (N, h, w) what networks are made to overlook: four statistics of each patch.

    They are its mean, and as logarithms its deviation, its roughness, which is how much pixels differ from the mean of
    their neighbours, and the roughness of its colours: channels of photographs go up and down together, those of noise
    do not.
    """
    x = x.float()
    padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    detail = x - nn.functional.avg_pool2d(padded, 3, stride=1)
    colour = detail - detail.mean(1, keepdim=True)
    grid = (score.shape[1], score.shape[2])
    mean, square, rough, motley = (
        nn.functional.adaptive_avg_pool2d(values.mean(1), grid).cpu()
        for values in (x, x.square(), detail.abs(), colour.abs())
    )
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    # Colours vary less than brightness, so that less is added before the logarithm.
    logs = ((deviation + 0.01).log(), (rough + 0.01).log(), (motley + 0.003).log())
    return torch.stack([score, mean, *logs], 1)


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
        height, width = found[name].shape[2:]
        grid = (min(height, LARGEST), min(width, LARGEST))
        return nn.functional.adaptive_avg_pool2d(found[name].float(), grid).cpu()

    mean, spread = _moments(features, reference)

    def score(x: Tensor) -> Tensor:
        return _with_statistics(((features(x) - mean) / spread).square().mean(1).sqrt(), x)

    return score


def _moments(features: Score, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every feature at every position, from one batch of maps at a time."""
    # In double precision: a difference of large sums is all that remains of the spread of a nearly constant feature.
    total, squares = torch.zeros(2, dtype=torch.float64)
    for part in torch.split(reference, BATCH):
        maps = features(part).double()
        total, squares = total + maps.sum(0), squares + maps.square().sum(0)
    mean, n = total / len(reference), len(reference)
    spread = ((squares - n * mean.square()).clamp(min=0) / (n - 1)).sqrt()
    return mean.float(), (spread + 1e-3 * spread.mean() + 1e-12).float()


def _map_layer(model: nn.Module, x: Tensor) -> str:
    """Return the last module that gives a map of features fine enough to tell where something is."""
    names = [name for name, module in model.named_modules() if name and not list(module.children())]
    with torch.no_grad(), _outputs(model, names) as found:
        model(x)
    # The last one, as deeper features tell more of what is unusual; any earlier one is only finer.
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
