"""The two ways to make a stream: from a data set by name, and from a pair of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy.typing as npt
from torch import Tensor

from offsupport.core.errors import ConfigError, nearest
from offsupport.data.catalog import SourceChoice
from offsupport.data.dataset import Arrays, Dataset
from offsupport.data.order import ORDERS, Arrangement, Order, plan_mixed, plan_sequence
from offsupport.data.recipe import ARRAYS, SCHEDULES, Recipe, Schedule
from offsupport.data.streams import Stream

DEFAULT_CONCENTRATION = 0.1


def stream(
    name: str,
    root: Path | str | None = None,
    *,
    corruption: str | Sequence[str] | None = None,
    severity: int | Sequence[int] = 5,
    batch_size: int = 128,
    seed: int = 0,
    order: Order = "iid",
    schedule: Schedule = "sequence",
    concentration: float = DEFAULT_CONCENTRATION,
    limit: int | None = None,
    block: int | None = None,
    split: str = "test",
    source: SourceChoice = "auto",
    corruption_seed: int | None = None,
    size: int | None = None,
    frost_dir: Path | str | None = None,
) -> Stream:
    """Return a data set as a stream of batches in a seeded order.

    Args:
        name: One of :func:`offsupport.data.list_datasets`.
        root: Where the data is; None for ``$OFFSUPPORT_DATA``. ``digits`` and ``digits-c`` need none.
        corruption: A name or several; None for the clean split.
        severity: 1 to 5 (impulse noise to 10), or several: each corruption comes at each of them.
        batch_size: 1 upwards; the last batch of a domain keeps what is left.
        seed: Of the order and of ``limit``.
        order: ``iid``, ``sorted`` by label, or ``dirichlet`` (neighbours alike).
        schedule: ``sequence`` shows one domain after the other, ``mixed`` shuffles them together, ``ramp`` climbs from
            severity 1 to ``severity`` and back for each corruption.
        concentration: Of the Dirichlet order: small is bursty, large approaches ``iid``.
        limit: Keep a random subset of this many images in each domain (the same images in each).
        block: Corrupt only a square of this side at a random place of each image.
        split: ``test`` or ``train``.
        source: ``files`` insists on stored corruptions, ``generated`` on computing them; ``auto`` takes files where
            they exist. What was taken is stated in ``describe()``.
        corruption_seed: Of the corruptions' random draws; giving one means generating. None takes files, else seed 0.
        size: Side to which a ``folder`` is resized and cropped.
        frost_dir: Folder of the official frost textures, for generated frost.

    Example:
        >>> batches = stream("digits", batch_size=32, limit=100)
        >>> len(batches), batches.num_images
        (4, 100)
    """
    recipe = Recipe(
        dataset=name,
        split=split,
        corruptions=_names(corruption),
        severities=_severities(corruption, severity),
        block=block,
        corruption_seed=corruption_seed,
        wanted_source=source,
        size=size,
        order=order,
        schedule=schedule,
        concentration=concentration if order == "dirichlet" else None,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
    )
    return _compose(recipe, root, None, frost_dir)


def stream_arrays(
    images: npt.ArrayLike | Tensor,
    labels: npt.ArrayLike | Tensor,
    *,
    classes: Sequence[str] = (),
    corruption: str | Sequence[str] | None = None,
    severity: int | Sequence[int] = 5,
    batch_size: int = 128,
    seed: int = 0,
    order: Order = "iid",
    schedule: Schedule = "sequence",
    concentration: float = DEFAULT_CONCENTRATION,
    limit: int | None = None,
    block: int | None = None,
    corruption_seed: int = 0,
    frost_dir: Path | str | None = None,
) -> Stream:
    """Return your own images as a stream; the options are those of :func:`stream`.

    Args:
        images: uint8 (n, height, width, 3), or float (n, 3, height, width) in [0, 1].
        labels: n class numbers; -1 where there is none.
        classes: Class names.
        corruption: A name or several; None leaves the images as they are.
        severity: As in :func:`stream`.
        batch_size: As in :func:`stream`.
        seed: As in :func:`stream`.
        order: As in :func:`stream`.
        schedule: As in :func:`stream`.
        concentration: As in :func:`stream`.
        limit: As in :func:`stream`.
        block: As in :func:`stream`.
        corruption_seed: Of the corruptions' random draws.
        frost_dir: As in :func:`stream`.
    """
    recipe = Recipe(
        dataset=ARRAYS,
        split="all",
        corruptions=_names(corruption),
        severities=_severities(corruption, severity),
        block=block,
        corruption_seed=corruption_seed,
        wanted_source="generated",
        order=order,
        schedule=schedule,
        concentration=concentration if order == "dirichlet" else None,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
    )
    return _compose(recipe, None, Arrays(images, labels, classes), frost_dir)


def _compose(recipe: Recipe, root: Path | str | None, arrays: Dataset | None, frost_dir: Path | str | None) -> Stream:
    _check(recipe)
    stages = recipe.stages()
    distinct = list(dict.fromkeys(stages))
    domains = recipe.open(distinct, root, arrays, frost_dir)
    how = Arrangement(recipe.order, recipe.concentration or 0.0, recipe.seed, recipe.limit, recipe.batch_size)
    labels = [domain.dataset.labels for domain in domains]
    if recipe.schedule == "mixed":
        plan = plan_mixed(labels, how)
    else:
        plan = plan_sequence([(distinct.index(stage), stage.name) for stage in stages], labels, how)
    return Stream(domains, plan, recipe)


def _check(recipe: Recipe) -> None:
    for kind, value, known in (("order", recipe.order, ORDERS), ("schedule", recipe.schedule, SCHEDULES)):
        if value not in known:
            raise ConfigError(f"Unknown {kind} {value!r}.", nearest(value, known))
    for kind, number in (("batch_size", recipe.batch_size), ("limit", recipe.limit), ("block", recipe.block)):
        if number is not None and number < 1:
            raise ConfigError(f"{kind} is {number}.", "It must be at least 1.")
    if recipe.concentration is not None and not recipe.concentration > 0:
        raise ConfigError(f"concentration is {recipe.concentration}.", "It must be above 0.")
    if not recipe.corruptions and (recipe.block is not None or recipe.schedule != "sequence"):
        asked = "block" if recipe.block is not None else f"schedule={recipe.schedule!r}"
        raise ConfigError(f"{asked} needs a corruption.", "Add corruption=..., one name or several.")


def _names(corruption: str | Sequence[str] | None) -> tuple[str, ...]:
    if corruption is None:
        return ()
    names = (corruption,) if isinstance(corruption, str) else tuple(corruption)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"The corruptions are {list(names)}.", "Name at least one, and each once.")
    return names


def _severities(corruption: str | Sequence[str] | None, severity: int | Sequence[int]) -> tuple[int, ...]:
    if corruption is None:
        return ()
    levels = (severity,) if isinstance(severity, int) else tuple(severity)
    if not levels or len(set(levels)) < len(levels):
        raise ConfigError(f"The severities are {list(levels)}.", "Give at least one, and each once.")
    return levels
