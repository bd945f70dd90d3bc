"""Cells of kind ``episode``: one image adapted to while someone looks on, kept for the report's figure."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offsupport.bench.adapt_cell import AdaptConfig, prepare_adapt
from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell
from offsupport.bench.models import pinned
from offsupport.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

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

    from offsupport import data
    from offsupport.bench.models import load_model
    from offsupport.methods.episode import watch_episode
    from offsupport.methods.factory import adapt
    from offsupport.methods.persist import model_sha256

    torch.set_num_threads(config.threads)
    model = load_model(config.model, place.folder)
    options: Any = {"corruption": config.corruption, "severity": config.severity, "seed": config.seed}
    stream = data.stream(config.dataset, place.data, **options, limit=1, batch_size=1)
    batch = next(iter(stream))
    seen = watch_episode(adapt(model, config.method, seed=config.seed, **config.hyper), batch.x)  # type: ignore[arg-type]
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
    return Outcome(found, provenance, {})


def prepare_episodes(configs: Sequence[EpisodeConfig], place: Place) -> None:
    """Refuse what cannot work before anything runs."""
    from offsupport.methods.mae_ttt import MaeTtt
    from offsupport.methods.registry import METHODS

    for config in configs:
        if config.method in METHODS and not issubclass(METHODS[config.method], MaeTtt):
            raise ConfigError(f"The method {config.method!r} has no episodes to look at.", "Use mae-ttt or mae-ttt+em.")
    prepare_adapt([config.as_stream() for config in configs], place)


def _pixels(image: Tensor) -> str:
    """An image as bytes, channels last."""
    values = (255 * image.clamp(0, 1)).round().byte().permute(1, 2, 0).contiguous()
    return base64.b64encode(values.cpu().numpy().tobytes()).decode()


KINDS.register("episode")(Kind(EpisodeConfig, run_episode, prepare_episodes))
