"""Cells of kind ``adapt``: a model, a method and a stream of images in; errors and per-image correctness out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place, make_cell
from offsupport.bench.correctness import pack

if TYPE_CHECKING:
    from offsupport.evaluate import Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Everything the result of one adaptation run depends on."""

    dataset: str
    """Name of the data set (``digits-c``, ``cifar10-c``)."""
    method: str
    """Name of the method."""
    corruption: str | list[str] | None = None
    """One corruption, several in a row, or none."""
    severity: int = 5
    """Severity of the corruption."""
    block: int | None = None
    """Side of the square the corruption is limited to; None for the whole image."""
    hyper: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from the method's defaults."""
    preset: str | None = None
    """Named hyper-parameters (``cifar10``)."""
    model: str = "digits-small"
    """Name of the source model, or ``module:function`` that returns one."""
    seed: int = 0
    """Seed of the stream's order and of the method's random draws."""
    protocol: Literal["online", "continual", "episodic"] = "online"
    """When the adapter is reset."""
    order: str = "iid"
    """Order of the stream."""
    batch_size: int = 128
    """Images per batch."""
    limit: int | None = None
    """Number of images, drawn at random; None for all."""
    threads: int = 1
    """Threads of the computation."""

    def cell(self) -> Cell:
        """Return the cell of these settings."""
        return make_cell("adapt", self)


def run_adapt(config: AdaptConfig, place: Place) -> Outcome:
    """Adapt the model along the stream and score it."""
    import torch

    import offsupport
    from offsupport import data
    from offsupport.bench.models import load_model
    from offsupport.core.checkpoints import tensors_sha256

    torch.set_num_threads(config.threads)
    model = load_model(config.model, place.folder)
    stream = data.stream(
        config.dataset,
        place.data,
        corruption=config.corruption,
        severity=config.severity,
        block=config.block,
        order=config.order,  # type: ignore[arg-type]  # checked there, with the nearest name
        seed=config.seed,
        limit=config.limit,
        batch_size=config.batch_size,
    )
    adapter = offsupport.adapt(model, config.method, preset=config.preset, seed=config.seed, **config.hyper)
    result = offsupport.evaluate(adapter, stream, protocol=config.protocol)
    about = stream.describe()
    provenance = {
        "weights_sha256": tensors_sha256(model.state_dict()),
        "data_sha256": about["sha256"],
        "data_source": about["source"],
        "order_sha256": about["order_hash"],
        "images": about["n"],
        "limit": config.limit,
    }
    timing = {"seconds": result.seconds, "peak_bytes": result.memory}
    return Outcome(_measured(result), provenance, timing)


def _measured(result: Result) -> dict[str, Any]:
    return {
        "error": result.error,
        "ci95": list(result.ci95),
        "n": result.n,
        "per_class": result.to_dict()["per_class"],
        "domains": result.to_dict()["domains"],
        "trace": list(result.trace),
        "passes": dict(result.passes),
        "events": dict(result.events),
        "images": pack(result.index, result.correct),
    }


KINDS.register("adapt")(Kind(AdaptConfig, run_adapt))
