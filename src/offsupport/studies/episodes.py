"""One episode of MAE test-time training, looked at while it happens: what is seen, reconstructed and believed."""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place, make_cell
from offsupport.core.errors import ConfigError, InputError
from offsupport.engine import adapter as guard
from offsupport.methods.mae_ttt import MaeTtt
from offsupport.nn.mae import Masking, draw_masks
from offsupport.studies.adaptation import AdaptConfig, prepare_adapt, stream_of
from offsupport.studies.models import pinned, source_model

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Episode:
    """What an episode looked like.

    Attributes:
        original: (C, H, W) the image.
        masked: (C, H, W) the same with the removed patches grey.
        before: (C, H, W) what the source weights make of the visible patches.
        after: (C, H, W) what the adapted weights make of them.
        loss: Reconstruction loss under that mask before the first and after each iteration.
        probabilities: (iterations + 1, K) of the whole image, likewise.
        rejected: Why the episode was given up, as the guard names it; None where it ran to its end. What is shown as
            after, and the last probabilities, are then those of the source weights, as a prediction's are.
    """

    original: Tensor
    masked: Tensor
    before: Tensor
    after: Tensor
    loss: list[float]
    probabilities: Tensor
    rejected: str | None = None


def watch_episode(adapter: MaeTtt, x: Tensor) -> Episode:
    """Run one episode and record it; the adapter is left as it was.

    Args:
        adapter: A ``mae-ttt`` or ``mae-ttt+em`` adapter.
        x: One image (1, C, H, W).
    """
    if not isinstance(adapter, MaeTtt):
        raise ConfigError(f"The method {adapter.info.name!r} has no episodes.", "Use mae-ttt or mae-ttt+em.")
    if x.dim() != 4 or len(x) != 1:
        raise InputError(f"An episode is of one image, and this batch has shape {tuple(x.shape)}.", "Pass x[:1].")
    if not x.isfinite().all():
        raise InputError("This image has values that are no finite numbers.", "Choose another, or repair it.")
    state, passes = adapter.snapshot(), dict(adapter.passes)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        adapter.norm_statistics.using(adapter.statistics_policy.kind),
    ):
        try:
            return _watch(adapter, x.clone() if x.is_inference() else x.detach())
        finally:
            adapter.restore(state)
            adapter.passes = passes


def _watch(adapter: MaeTtt, x: Tensor) -> Episode:
    mae, given = adapter.inside.mae, adapter.inside.reach(x)
    # A mask of its own, the same at every look, so that what changes is the network.
    looking = torch.Generator().manual_seed(0)
    shown = draw_masks(1, mae.config.patches, adapter.config.mask_ratio, looking).to(x.device)
    loss, probabilities = [_loss(adapter, given, shown)], [adapter.predict(x).softmax(1)]
    before, rejected = _reconstruction(adapter, given, shown), None
    try:
        for _ in adapter.iterations(x, adapter.generator_for(x)):
            loss.append(_loss(adapter, given, shown))
            probabilities.append(adapter.predict(x).softmax(1))
    except guard.StepRejected as found:
        rejected = found.event
        adapter.restart()
        loss.append(loss[0])
        probabilities.append(probabilities[0])
    after = _reconstruction(adapter, given, shown)
    masked = torch.where(_removed(adapter, shown) > 0, 0.5, x)
    before, after = (_as_given(image, given, x) for image in (before, after))
    return Episode(x[0], masked[0], before[0], after[0], loss, torch.cat(probabilities), rejected)


def _removed(adapter: MaeTtt, shown: Masking) -> Tensor:
    """1 where pixels were removed, (1, C, H, W)."""
    mae = adapter.inside.mae
    return mae.unpatchify(shown.mask[..., None].expand(-1, -1, mae.config.patch**2 * mae.config.channels))


def _as_given(image: Tensor, given: Tensor, x: Tensor) -> Tensor:
    """Undo the normalisation before the autoencoder: per channel, what takes ``given`` back to ``x``."""
    spread, mean = torch.std_mean(given, (0, 2, 3), keepdim=True)
    wanted, centre = torch.std_mean(x, (0, 2, 3), keepdim=True)
    return (image - mean) * (wanted / spread.clamp(min=1e-6)) + centre


@torch.no_grad()
def _loss(adapter: MaeTtt, given: Tensor, shown: Masking) -> float:
    return float(adapter.inside.mae.loss(given, shown))


@torch.no_grad()
def _reconstruction(adapter: MaeTtt, given: Tensor, shown: Masking) -> Tensor:
    """The predicted patches where patches were removed, the visible ones where they were not."""
    mae = adapter.inside.mae
    pixels = mae.pixels_to_images(given, mae.reconstruct(given, shown))
    return torch.where(_removed(adapter, shown) > 0, pixels, given)


# Cells of kind ``episode``: one image adapted to while someone looks on, kept for the report's figure.


PICTURES = ("original", "masked", "before", "after")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """Everything an episode depends on."""

    dataset: str
    """Name of the data set."""
    method: str
    """``mae-ttt`` or ``mae-ttt+em``."""
    corruption: str
    """Corruption of the image."""
    severity: int = 5
    """Its severity."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    model: str
    """Name of the source model."""
    seed: int = 0
    """Seed of the draw of the image and of its masks."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("episode", dataclasses.replace(self, model=pinned(self.model)))

    def as_stream(self) -> AdaptConfig:
        """Return the settings of a stream of this one image."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return AdaptConfig(**shared, limit=1, batch_size=1)


def run_episode(config: EpisodeConfig, place: Place) -> Outcome:
    """Adapt to one image and keep what was seen, as small pictures and curves."""
    import torch

    from offsupport.engine.state import model_sha256
    from offsupport.methods import adapt

    torch.set_num_threads(config.threads)
    model = source_model(config.model, place.folder, place.code)
    stream = stream_of(config.as_stream(), place)
    batch = next(iter(stream))
    adapter = adapt(model, config.method, seed=config.seed, **config.hyper)
    began = time.perf_counter()
    seen = watch_episode(adapter, batch.x)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    found = {
        "pictures": {name: _pixels(getattr(seen, name)) for name in PICTURES},
        "size": list(seen.original.shape),
        "loss": seen.loss,
        "rejected": seen.rejected,
        "probabilities": seen.probabilities.tolist(),
        "label": int(batch.y[0]),
        "classes": list(stream.classes),
    }
    provenance = {"weights_sha256": model_sha256(model), "data_sha256": stream.sha256, "image": int(batch.index[0])}
    return Outcome(found, provenance, {"seconds": seconds})


def prepare_episodes(configs: Sequence[EpisodeConfig], place: Place) -> None:
    """Refuse what cannot work before anything runs."""
    from offsupport.methods import METHODS
    from offsupport.methods.mae_ttt import MaeTtt

    for config in configs:
        if config.method in METHODS and not issubclass(METHODS[config.method], MaeTtt):
            raise ConfigError(f"The method {config.method!r} has no episodes to look at.", "Use mae-ttt or mae-ttt+em.")
    prepare_adapt([config.as_stream() for config in configs], place)


def _pixels(image: Tensor) -> str:
    """An image as bytes, channels last."""
    values = (255 * image.clamp(0, 1)).round().byte().permute(1, 2, 0).contiguous()
    return base64.b64encode(values.cpu().numpy().tobytes()).decode()


KINDS.register("episode")(
    Kind(
        EpisodeConfig,
        run_episode,
        prepare_episodes,
        named_by=("method", "dataset", "corruption"),
        effort=Effort(few=lambda config, images: config),
    )
)
