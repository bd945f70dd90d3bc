"""Moments of the penultimate features of source images, in one pass over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from offsupport.core.errors import InputError, ModelError
from offsupport.functional import as_rows
from offsupport.functional.alignment import pooled
from offsupport.functional.class_moments import outer_sums
from offsupport.nn.inspect import capture_input

if TYPE_CHECKING:
    from offsupport.methods.adapter import Adapter

WIDEST = 8192
"""Features with more coordinates have a covariance of more than 256 MB: they are refused."""

LARGEST_FULL = 64 * 2**20
"""Class covariances of more bytes are kept as diagonals."""


@torch.no_grad()
def features_of(adapter: Adapter, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features (N, D) and logits (N, K) of each batch, by the weights and statistics the model came with."""
    for x in batches:
        with adapter.policy.using("source"), capture_input(adapter.head()[1]) as features:
            logits = adapter.network(x)
        z = as_rows(features[0])
        if z.shape[1] > WIDEST:
            raise ModelError(
                f"The features have {z.shape[1]} coordinates, and their covariance does not fit into memory.",
                "Name a layer with fewer inputs: head='name of the module'.",
            )
        if not (z.isfinite().all() and logits.isfinite().all()):
            raise InputError("The source images give non-finite features.", "Remove images with NaN or infinity.")
        yield z, as_rows(logits)


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
    """Count, sum and sum of outer products of vectors, in double precision: what moments in one pass need."""

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
