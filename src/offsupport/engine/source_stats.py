"""What a method keeps of the source data: a few tensors, tied to the model they were taken from.

Source data are large and often not allowed to travel; their moments are small and may. So methods that hold a network
to its source get these alone. Which images and which weights they came from stays with them, because statistics of
another model, or of the images that are then tested, would give numbers that mean nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from offsupport.augment import flip, random_resized_crop
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import ConfigError, InputError, SourceStatsError, nearest
from offsupport.core.weights import require_finite, require_ordinary
from offsupport.functional import outer_sums, pooled

_MANIFEST = ("method", "model_sha256", "samples")
_FIRST_NORM = "first_norm//moments"
"""The name of ``first_norm`` in a file, which no statistics of a method have."""
_CALIBRATION = "calibration//"
"""Before the names of the monitor's tensors in a file."""
_STATISTICS = "statistics//"
"""Before the names of moments of clean images in a file."""


@dataclasses.dataclass(frozen=True)
class SourceStats:
    """Statistics of source images for one method and one model. Made by :func:`offsupport.source_stats`.

    Args:
        method: The method they are for.
        model_sha256: The weights they were computed with.
        samples: How many images went in.
        tensors: The statistics.
        provenance: What is known of the images: data set, split, hash, and how they were transformed.
        head: The layer whose inputs are the features, for statistics of features; empty where it is not known.
        first_norm: Mean and variance of what the first norm layer is given, by channel, (2, C); None where not known.
        calibration: What the monitor knows of clean images (:class:`offsupport.monitor.Calibration`); empty without it.
        statistics: Moments of clean images at batch-norm layers, for ``statistics="minimal"``; empty without them.
    """

    method: str
    model_sha256: str
    samples: int
    tensors: dict[str, Tensor]
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head: str = ""
    first_norm: Tensor | None = None
    calibration: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    statistics: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def to(self, device: torch.device) -> SourceStats:
        """Return them on a device."""
        first_norm = None if self.first_norm is None else self.first_norm.to(device)
        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        statistics = {name: tensor.to(device) for name, tensor in self.statistics.items()}
        return dataclasses.replace(self, tensors=tensors, first_norm=first_norm, statistics=statistics)

    def save(self, path: Path | str) -> None:
        """Write them to one safetensors file."""
        manifest = {name: getattr(self, name) for name in _MANIFEST}
        own = {} if self.first_norm is None else {_FIRST_NORM: self.first_norm}
        own |= {_CALIBRATION + name: tensor for name, tensor in self.calibration.items()}
        own |= {_STATISTICS + name: tensor for name, tensor in self.statistics.items()}
        save_tensors(path, self.tensors | own, manifest | {"provenance": dict(self.provenance), "head": self.head})

    @staticmethod
    @torch.inference_mode(False)
    def load(path: Path | str) -> SourceStats:
        """Read what :meth:`save` wrote."""
        tensors, manifest = load_tensors(path)
        known = {"provenance": {}, "head": "", **manifest}
        kinds = {"method": str, "model_sha256": str, "samples": int, "provenance": dict, "head": str}
        if set(known) != set(kinds) or not all(type(known[name]) is kind for name, kind in kinds.items()):
            raise SourceStatsError(f"{path} holds no source statistics.", "Make them with offsupport.source_stats().")
        require_ordinary(tensors, str(path))
        require_finite(tensors, str(path))
        first_norm = tensors.pop(_FIRST_NORM, None)
        calibration, statistics = (_taken(tensors, prefix) for prefix in (_CALIBRATION, _STATISTICS))
        return SourceStats(
            tensors=tensors, first_norm=first_norm, calibration=calibration, statistics=statistics, **known
        )

    def require(self, method: str, model_sha256: str, head: str) -> None:
        """Refuse to serve another method, other weights, or the features of another layer."""
        if self.method != method:
            raise SourceStatsError(
                f"These source statistics are for {self.method!r}, not {method!r}.",
                f'Make them with offsupport.source_stats(model, loader, method="{method}").',
            )
        if self.model_sha256 != model_sha256:
            raise SourceStatsError(
                "These source statistics were computed with other weights.",
                "Make them again with the model that is adapted.",
            )
        if self.head and self.head != head:
            raise SourceStatsError(
                f"These source statistics are of the inputs of {self.head!r}, and the classifier here is {head!r}.",
                f'Pass head="{self.head}" to adapt() as well, or make them again.',
            )

    def require_shapes(self, shapes: Mapping[str, str]) -> None:
        """Refuse statistics that lack a tensor, or hold one in a shape that does not go with those before it.

        Args:
            shapes: What a method reads, with a letter for each side of it; ``KDD|KD`` may be either.
        """
        known: dict[str, int] = {}
        for name, forms in shapes.items():
            if name not in self.tensors:
                raise SourceStatsError(f"These source statistics lack {name}.", "Make them again.")
            shape = tuple(self.tensors[name].shape)
            fitting = [form for form in forms.split("|") if len(form) == len(shape)]
            if not fitting or any(known.setdefault(*side) != side[1] for side in zip(fitting[0], shape, strict=True)):
                raise SourceStatsError(f"These source statistics hold {name} of shape {shape}.", "Make them again.")


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the tensors with a prefix out, and return them by their names without it."""
    return {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}


# The images that source statistics are made of: counted, transformed, and what is known of them.


Transform = Literal["none", "crop"]

KNOWN = ("dataset", "split", "corruptions", "limit", "seed", "sha256")
"""What a stream says of itself that statistics keep."""


@runtime_checkable
class Described(Protocol):
    """A loader that says what it holds, as the streams of :mod:`offsupport.data` do."""

    def describe(self) -> Mapping[str, Any]:
        """Return what is known of the images, as plain JSON values."""


KEPT = 512
"""Images that a calibration is made of."""


class Sample:
    """A random few of the images that pass, and their labels: loaders are often sorted, so the first would not do.

    Args:
        labels: Labels of all images in their order; None where the batches bring them, or there are none.
    """

    def __init__(self, labels: Tensor | Sequence[int] | None = None) -> None:
        self._labels = None if labels is None else torch.as_tensor(labels)
        self._rank = torch.Generator().manual_seed(0)
        self._kept: list[tuple[float, int, Tensor, Tensor | None]] = []
        self._passed = 0

    def add(self, x: Tensor, labels: Any) -> None:
        """Draw from one more batch; the images that are kept have the smallest random numbers of all so far."""
        given = None if labels is None else torch.as_tensor(labels)
        if self._labels is not None:
            given = self._labels[self._passed : self._passed + len(x)]
        if given is not None and (len(given) != len(x) or given.is_floating_point()):
            raise InputError(
                f"A batch has {len(x)} images and labels of shape {tuple(given.shape)} and type {given.dtype}.",
                "Give one class number for each image.",
            )
        ranks = torch.rand(len(x), generator=self._rank, dtype=torch.float64).tolist()
        limit = self._kept[-1][0] if len(self._kept) == KEPT else 1.0
        new = [
            (rank, self._passed + place, x[place].detach().clone(), None if given is None else given[place].clone())
            for place, rank in enumerate(ranks)
            if rank < limit
        ]
        self._kept = sorted([*self._kept, *new], key=lambda each: each[:2])[:KEPT]
        self._passed += len(x)

    def drawn(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return the images that were kept, in their order, and their labels if all have one."""
        if self._labels is not None and len(self._labels) != self._passed:
            raise InputError(
                f"There are {len(self._labels)} labels and {self._passed} source images.", "Give one for each image."
            )
        kept = sorted(self._kept, key=lambda each: each[1])
        if len({each[2].shape for each in kept}) > 1:
            raise InputError("The source images have different sizes.", "Resize them as those to be predicted.")
        labels = [each[3] for each in kept if each[3] is not None]
        x = torch.stack([each[2] for each in kept]).to(device)
        return x, torch.stack(labels).long() if len(labels) == len(kept) else None


class SourceImages:
    """The images of a loader's batches, one batch at a time; ``samples`` counts them, and ``sample`` keeps some."""

    def __init__(
        self, loader: Iterable[Tensor | Sequence[Any]], transform: Transform, sample: Sample | None = None
    ) -> None:
        if transform not in get_args(Transform):
            raise ConfigError(f"Unknown transform {transform!r}.", nearest(transform, get_args(Transform)))
        self.loader = loader
        self.transform = transform
        self.samples = 0
        self.sample = sample

    def __iter__(self) -> Iterator[Tensor]:
        # The same crops in every pass: statistics are a function of the images and the model.
        generator = torch.Generator().manual_seed(0)
        for batch in self.loader:
            x = batch if isinstance(batch, Tensor) else batch[0]
            self.samples += len(x)
            if self.sample is not None:
                self.sample.add(x, None if isinstance(batch, Tensor) or len(batch) < 2 else batch[1])
            if self.transform == "crop":
                x = flip(random_resized_crop(x, (0.2, 1.0), (3 / 4, 4 / 3), generator), generator)
            yield x

    def provenance(self) -> dict[str, Any]:
        """Return what is known of the images; a stream of :mod:`offsupport.data` describes itself."""
        about = self.loader.describe() if isinstance(self.loader, Described) else {}
        return {name: about[name] for name in KNOWN if name in about} | {"transform": self.transform}


# Moments of the penultimate features of source images, in one pass over them.


LARGEST_FULL = 64 * 2**20
"""Class covariances of more bytes are kept as diagonals."""


def feature_moments(features: Iterable[tuple[Tensor, Tensor]], name: str = "feature") -> dict[str, Tensor]:
    """Return ``feature_mean`` (D,) and ``feature_cov`` (D, D), unbiased; sums are kept in double precision."""
    sums = Sums()
    dtype = torch.get_default_dtype()
    for z, _ in features:
        dtype = z.dtype
        sums.add(z)
    mean, cov = sums.varying_moments()
    return {f"{name}_mean": mean.to(dtype), f"{name}_cov": cov.to(dtype)}


def class_feature_moments(
    features: Iterable[tuple[Tensor, Tensor]], form: Literal["auto", "full", "diagonal"] = "auto"
) -> dict[str, Tensor]:
    """Return the moments of all features and of those of each predicted class.

    Beside ``feature_mean`` and ``feature_cov`` these are ``class_mean`` (K, D), ``class_cov`` (K, D, D) or its
    diagonals (K, D), and ``class_count`` (K,). A class with fewer than two images has no covariance: zeros stand there.

    Args:
        features: Features and logits of each batch.
        form: Form of the class covariances; ``auto`` is full up to 64 MB.
    """
    everything, classes = Sums(), Sums()
    dtype = torch.get_default_dtype()
    for z, logits in features:
        dtype, count, width = z.dtype, logits.shape[1], z.shape[1]
        full = form == "full" or (form == "auto" and count * width**2 * z.element_size() <= LARGEST_FULL)
        everything.add(z)
        classes.add_groups(z, logits.argmax(1), count, full)
    mean, cov = everything.varying_moments()
    class_mean, class_cov = classes.moments()
    found = {"feature_mean": mean, "feature_cov": cov, "class_mean": class_mean, "class_cov": class_cov}
    return {name: tensor.to(dtype) for name, tensor in (found | {"class_count": classes.count}).items()}


class Sums:
    """Count, sum and sum of outer products of vectors: what moments in one pass need.

    In double precision, because the covariance is the small difference of two large sums.
    """

    def __init__(self) -> None:
        self.count = self.first = self.second = torch.zeros((), dtype=torch.float64)

    def add(self, z: Tensor) -> None:
        """Add vectors (N, D)."""
        z = z.double()
        self._add(torch.tensor(float(len(z)), dtype=torch.float64, device=z.device), z.sum(0), z.T @ z)

    def add_groups(self, z: Tensor, labels: Tensor, groups: int, full: bool) -> None:
        """Add vectors (N, D) to the group each belongs to; without ``full``, products are diagonals."""
        z = z.double()
        present, member, counts = labels.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        first = z.new_zeros(groups, z.shape[1]).index_add(0, labels, z)
        if full:
            second = z.new_zeros(groups, z.shape[1], z.shape[1]).index_copy(0, present, outer_sums(z, member, counts))
        else:
            second = z.new_zeros(groups, z.shape[1]).index_add(0, labels, z.square())
        self._add(torch.bincount(labels, minlength=groups).double(), first, second)

    def _add(self, count: Tensor, first: Tensor, second: Tensor) -> None:
        self.count, self.first, self.second = self.count + count, self.first + first, self.second + second

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and unbiased covariance."""
        if float(self.count.sum()) < 2:
            raise InputError("Moments of features need at least two source images.", "Give more of them.")
        return pooled((self.count, self.first, self.second))

    def varying_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and unbiased covariance; without any variance there is nothing to align with."""
        mean, cov = self.moments()
        if not cov.diagonal().max() > 0:
            raise InputError("The features of the source images do not vary.", "Give different images.")
        return mean, cov
