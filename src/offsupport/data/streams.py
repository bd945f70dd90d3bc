"""Streams: batches of images in [0, 1] in a fixed, seeded, hashed order that can be saved and replayed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.core.files import canonical_json, read_json, sha256_bytes, write_text
from offsupport.core.ownership import foreign, is_own_json
from offsupport.data.catalog import Access
from offsupport.data.corrupted import Corrupted
from offsupport.data.dataset import Arrays, Dataset
from offsupport.data.order import MIXED, Plan, plan_mixed, plan_pairs, plan_sequence
from offsupport.data.spec import ARRAYS, CONCENTRATION, SEVERITY, Order, Schedule, SourceChoice, Stage, StreamSpec

STREAM_FORMAT = "offsupport-stream-1"
_READ_AHEAD_PIXELS = 1 << 18
"""Small batches are read together up to this many pixels: 256 images of 32x32, one batch at a time of 224x224."""


class Domain(NamedTuple):
    """One domain of a stream, with its data."""

    stage: Stage
    dataset: Dataset

    @property
    def name(self) -> str:
        """Corruption and severity (``fog/5``), or ``clean``."""
        return self.stage.name


class Batch(NamedTuple):
    """One step of a stream."""

    x: Tensor
    """Images, float32 (batch, 3, height, width) in [0, 1]."""
    y: Tensor
    """Class numbers, int64 (batch,); -1 where there is none."""
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls here
    """Rows of the data set, int64 (batch,)."""
    domain: str
    """Corruption and severity (``fog/5``), ``clean``, ``mixed``, or ``pairs``."""


class Stream:
    """Batches in a fixed order; iterating again gives the same ones.

    Made by :func:`offsupport.data.stream` and :func:`offsupport.data.stream_arrays`.

    Args:
        domains: The data, one entry per domain.
        plan: Which rows of which domain make up each batch.
        spec: The options it was made with.
    """

    def __init__(self, domains: Sequence[Domain], plan: Plan, spec: StreamSpec) -> None:
        self.domains = tuple(domains)
        self.plan = plan
        self.spec = spec

    @staticmethod
    def of(
        spec: StreamSpec,
        root: Path | str | None = None,
        *,
        arrays: Dataset | None = None,
        frost_dir: Path | str | None = None,
    ) -> Stream:
        """Return the stream that ``spec`` describes.

        Args:
            spec: Its options.
            root: Where the data is; None for ``$OFFSUPPORT_DATA``.
            arrays: The data, where the data set is ``arrays``.
            frost_dir: Folder of the official frost textures, for generated frost.
        """
        spec.check()
        stages = spec.stages()
        # A ramp visits a domain twice; its data is opened once.
        distinct = list(dict.fromkeys(stages))
        domains = _open(spec, distinct, root, arrays, frost_dir)
        labels = [domain.dataset.labels for domain in domains]
        if spec.schedule == "mixed":
            plan = plan_mixed(labels, spec)
        elif spec.schedule == "pairs":
            plan = plan_pairs([distinct.index(stage) for stage in stages], labels[0], spec)
        else:
            plan = plan_sequence([(distinct.index(stage), stage.name) for stage in stages], labels, spec)
        return Stream(domains, plan, spec)

    @property
    def recipe(self) -> StreamSpec:
        """The old name of :attr:`spec`."""
        warnings.warn("Stream.recipe is called spec. The old name goes with version 0.4.", DeprecationWarning, 2)
        return self.spec

    def __len__(self) -> int:
        return len(self.plan.bounds) - 1

    @property
    def batch_size(self) -> int:
        """The size of every batch but the last of a domain, which holds what is left."""
        return self.spec.batch_size

    @property
    def num_images(self) -> int:
        """How many images come, counting one that comes in several domains each time."""
        return len(self.plan.rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of their numbers."""
        return self.domains[0].dataset.classes

    @property
    def order_hash(self) -> str:
        """The sha256 over domains, rows and batch boundaries."""
        return self.plan.hash([domain.name for domain in self.domains])

    @property
    def sha256(self) -> str:
        """The hash of the data: that of the one data set, or of the list of them."""
        hashes = [[domain.name, domain.dataset.sha256] for domain in self.domains]
        return hashes[0][1] if len(hashes) == 1 else sha256_bytes(canonical_json(hashes).encode())

    def __iter__(self) -> Iterator[Batch]:
        return self.starting_at(0)

    def starting_at(self, first: int) -> Iterator[Batch]:
        """Yield the batches from number ``first`` on, counted from 0; those before it are not even read."""
        height, width = self.domains[0].dataset.image_size
        ahead = max(1, _READ_AHEAD_PIXELS // (height * width * self.batch_size))
        bounds = self.plan.bounds.tolist()
        for number in range(first, len(self), ahead):
            inner = bounds[number : number + ahead + 1]
            x, y = self._read(inner[0], inner[-1])
            for start, stop in itertools.pairwise(inner):
                part = slice(start - inner[0], stop - inner[0])
                index = torch.from_numpy(self.plan.rows[start:stop].copy())
                yield Batch(x[part], y[part], index, self._domain_name(start))

    def _read(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return images and labels of the plan's entries ``start`` to ``stop``, each domain read once."""
        domain, rows = self.plan.domain[start:stop], self.plan.rows[start:stop]
        x: Tensor | None = None
        y = torch.empty(stop - start, dtype=torch.int64)
        # A domain at a time: a mixed batch would otherwise open a file or start a corruption for every image.
        for number in np.unique(domain):
            at = torch.from_numpy(np.flatnonzero(domain == number))
            dataset = self.domains[number].dataset
            part = dataset.tensor(rows[at.numpy()])
            x = part.new_empty((stop - start, *part.shape[1:])) if x is None else x
            x[at] = part
            y[at] = torch.from_numpy(dataset.labels[rows[at.numpy()]])
        assert x is not None  # noqa: S101 - no batch is empty
        return x, y

    def _domain_name(self, image: int) -> str:
        mingled = self.spec.schedule in (MIXED, "pairs")
        return self.spec.schedule if mingled else self.domains[self.plan.domain[image]].name

    def shard(self, number: int, of: int) -> Stream:
        """Return every ``of``-th image from image ``number`` on; batches keep those of their images that are in it."""
        kept = np.arange(self.num_images) % of == number
        # How many are kept before each image; the bounds of a batch that keeps none fall together, and go.
        before = np.concatenate([[0], np.cumsum(kept)])
        plan = Plan(self.plan.domain[kept], self.plan.rows[kept], np.unique(before[self.plan.bounds]))
        return Stream(self.domains, plan, self.spec)

    def describe(self) -> dict[str, Any]:
        """Everything a result must state about its data, as plain JSON values."""
        counts = np.bincount(self.plan.domain, minlength=len(self.domains)).tolist()
        sources = {domain.dataset.source for domain in self.domains}
        return {
            **dataclasses.asdict(self.spec),
            "corruptions": list(self.spec.corruptions),
            "severities": list(self.spec.severities),
            "source": sources.pop() if len(sources) == 1 else "+".join(sorted(sources)),
            "sha256": self.sha256,
            "order_hash": self.order_hash,
            "n": self.num_images,
            "batches": len(self),
            "domains": [
                {"name": domain.name, "images": count, **domain.dataset.facts()}
                for domain, count in zip(self.domains, counts, strict=True)
            ],
        }

    def save(self, path: Path | str) -> None:
        """Write the stream as JSON: its options, its order in full, and the hashes of both data and order."""
        saved = {
            "format": STREAM_FORMAT,
            "recipe": self.spec.to_json(),  # the key that every saved stream has
            "stages": [domain.stage.to_json() for domain in self.domains],
            "plan": {name: part.tolist() for name, part in self.plan._asdict().items()},
            "sha256": self.sha256,
            "order_hash": self.order_hash,
        }
        if os.path.lexists(path) and not is_own_json(Path(path), lambda found: "order_hash" in found):
            raise foreign(Path(path), "Move it, or choose another name.")
        write_text(path, canonical_json(saved) + "\n")

    @staticmethod
    def load(
        path: Path | str,
        root: Path | str | None = None,
        *,
        arrays: Dataset | None = None,
        frost_dir: Path | str | None = None,
    ) -> Stream:
        """Read a saved stream and open its data; other data than it was saved with is refused.

        Args:
            path: What :meth:`save` wrote.
            root: Where the data is; None for ``$OFFSUPPORT_DATA``.
            arrays: The data of a stream made by ``stream_arrays``, as :class:`offsupport.data.Arrays`.
            frost_dir: The folder of official frost textures, if it was made with one.
        """
        saved = read_json(path)
        try:
            spec = StreamSpec.from_json(saved["recipe"])
            domains = _open(spec, [Stage.from_json(stage) for stage in saved["stages"]], root, arrays, frost_dir)
            plan = Plan(*(np.asarray(saved["plan"][part], dtype=np.int64) for part in Plan._fields))
            intact = saved["format"] == STREAM_FORMAT and plan.hash([d.name for d in domains]) == saved["order_hash"]
            data_hash = saved["sha256"]
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            raise FileError(f"{path} is not a saved stream ({error}).", "Save it again with Stream.save.") from error
        stream = Stream(domains, plan, spec)
        if not intact or not _fits(plan, [len(domain.dataset) for domain in domains]):
            raise FileError(f"{path} is damaged: its order does not match its hash.", "Save the stream again.")
        # The same order over other pixels would be another experiment under the same name.
        if stream.sha256 != data_hash:
            raise FileError(
                f"The data of {spec.dataset} differs from what {path} was saved with.",
                "Point root to the same data, or make a new stream.",
            )
        return stream


def _fits(plan: Plan, sizes: Sequence[int]) -> bool:
    """Whether every entry of a plan names an existing row and the batches follow each other without gaps."""
    one_to_one = plan.domain.shape == plan.rows.shape and plan.rows.ndim == 1 and plan.bounds.ndim == 1
    if not (one_to_one and len(plan.rows) and len(plan.bounds) > 1):
        return False
    if not (plan.domain.min() >= 0 and plan.domain.max() < len(sizes)):
        return False
    rows_exist = bool((plan.rows >= 0).all() and (plan.rows < np.asarray(sizes)[plan.domain]).all())
    whole = bool(plan.bounds[0] == 0 and plan.bounds[-1] == len(plan.rows) and (np.diff(plan.bounds) > 0).all())
    return rows_exist and whole


def _open(
    spec: StreamSpec,
    stages: Sequence[Stage],
    root: Path | str | None,
    arrays: Dataset | None,
    frost_dir: Path | str | None,
) -> list[Domain]:
    """Open the data of every domain; the clean data behind several corruptions is opened once."""
    if spec.dataset == ARRAYS:
        return [Domain(stage, _corrupted_arrays(spec, arrays, stage, frost_dir)) for stage in stages]
    access = Access(spec, root, frost_dir)
    return [Domain(stage, access.open(*stage[1:])) for stage in stages]


def _corrupted_arrays(spec: StreamSpec, arrays: Dataset | None, stage: Stage, frost_dir: Path | str | None) -> Dataset:
    if arrays is None:
        raise DataMissingError(
            "This stream was made from arrays, which are not in its file.",
            "Give them: Stream.load(path, arrays=offsupport.data.Arrays(images, labels)).",
        )
    if stage.corruption is None:
        return arrays
    made = arrays
    for corruption, severity in (*([stage.over] if stage.over else []), (stage.corruption, stage.severity)):
        seed = spec.corruption_seed or 0
        made = Corrupted(made, corruption, severity, seed, block=spec.block, frost_dir=frost_dir, name=f"{ARRAYS}-c")
    return made


# The two ways to make a stream: from a data set by name, and from a pair of arrays.


def stream(
    name: str,
    root: Path | str | None = None,
    *,
    corruption: str | Sequence[str] | None = None,
    severity: int | Sequence[int] = SEVERITY,
    batch_size: int = StreamSpec.batch_size,
    seed: int = StreamSpec.seed,
    order: Order = StreamSpec.order,
    schedule: Schedule = StreamSpec.schedule,
    visits: int = StreamSpec.visits,
    concentration: float = CONCENTRATION,
    limit: int | None = StreamSpec.limit,
    imbalance: float | None = StreamSpec.imbalance,
    block: int | None = StreamSpec.block,
    split: str = StreamSpec.split,
    source: SourceChoice = StreamSpec.wanted_source,
    corruption_seed: int | None = StreamSpec.corruption_seed,
    size: int | None = StreamSpec.size,
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
            severity 1 to ``severity`` and back for each corruption, ``pairs`` has each corruption fade while the next
            one grows.
        visits: How often the whole schedule comes.
        concentration: Of the Dirichlet order: small is bursty, large approaches ``iid``.
        limit: Keep a random subset of this many images in each domain (the same images in each; of ``pairs``, others
            at each point).
        imbalance: The most frequent class comes so many times as often as the rarest; None leaves them alone.
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
    spec = StreamSpec.asked(
        name,
        corruption,
        severity,
        split=split,
        block=block,
        corruption_seed=corruption_seed,
        wanted_source=source,
        size=size,
        order=order,
        schedule=schedule,
        visits=visits,
        concentration=concentration,
        seed=seed,
        limit=limit,
        imbalance=imbalance,
        batch_size=batch_size,
    )
    return Stream.of(spec, root, frost_dir=frost_dir)


def stream_arrays(
    images: npt.ArrayLike | Tensor,
    labels: npt.ArrayLike | Tensor,
    *,
    classes: Sequence[str] = (),
    corruption: str | Sequence[str] | None = None,
    severity: int | Sequence[int] = SEVERITY,
    batch_size: int = StreamSpec.batch_size,
    seed: int = StreamSpec.seed,
    order: Order = StreamSpec.order,
    schedule: Schedule = StreamSpec.schedule,
    visits: int = StreamSpec.visits,
    concentration: float = CONCENTRATION,
    limit: int | None = StreamSpec.limit,
    imbalance: float | None = StreamSpec.imbalance,
    block: int | None = StreamSpec.block,
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
        visits: As in :func:`stream`.
        concentration: As in :func:`stream`.
        limit: As in :func:`stream`.
        imbalance: As in :func:`stream`.
        block: As in :func:`stream`.
        corruption_seed: Of the corruptions' random draws.
        frost_dir: As in :func:`stream`.
    """
    spec = StreamSpec.asked(
        ARRAYS,
        corruption,
        severity,
        split="all",
        block=block,
        corruption_seed=corruption_seed,
        wanted_source="generated",
        order=order,
        schedule=schedule,
        visits=visits,
        concentration=concentration,
        seed=seed,
        limit=limit,
        imbalance=imbalance,
        batch_size=batch_size,
    )
    return Stream.of(spec, arrays=Arrays(images, labels, classes), frost_dir=frost_dir)
