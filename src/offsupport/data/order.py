"""In which order images come: pure functions from labels to permutations and plans of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from offsupport.core.seeds import derive_seed
from offsupport.data.dataset import Labels, little_endian
from offsupport.data.spec import CONCENTRATION, Order, StreamSpec

MIXED = "mixed"
"""The domain name of batches that draw from several domains."""

STEPS = 4
"""Points of the way from one stage of pairs to the next; at each, more images have arrived there."""

Integers: TypeAlias = npt.NDArray[np.int64]


class Plan(NamedTuple):
    """Every batch of a stream, as numbers: image i is row ``rows[i]`` of domain ``domain[i]``."""

    domain: Integers
    rows: Integers
    bounds: Integers
    """Batch b holds images ``bounds[b]`` to ``bounds[b + 1]``."""

    def hash(self, names: Sequence[str]) -> str:
        """Return the sha256 over domain names, rows and batch boundaries."""
        sha = hashlib.sha256("\n".join(names).encode())
        for part in self:
            sha.update(little_endian([len(part)]) + little_endian(part))
        return sha.hexdigest()


def plan_sequence(stages: Sequence[tuple[int, str]], labels: Sequence[Labels], spec: StreamSpec) -> Plan:
    """Plan one domain after the other; no batch spans two stages.

    Args:
        stages: The domains to visit in turn, as (position in ``labels``, name); one may come again.
        labels: The labels of each domain.
        spec: Order, seed, limit and batch size.
    """
    plans: list[Plan] = []
    visits: dict[str, int] = {}
    for domain, name in stages:
        chosen = _subset(labels[domain], spec)
        # Each visit has a seed of its own, by name: a domain's order does not depend on which others come before it.
        visits[name] = visits.get(name, -1) + 1
        rng = np.random.default_rng(derive_seed("order", spec.seed, name, visits[name]))
        rows = chosen[permutation(labels[domain][chosen], spec.order, rng, spec.concentration)]
        plans.append(Plan(np.full(len(rows), domain, dtype=np.int64), rows, _bounds(len(rows), spec.batch_size)))
    return _concatenate(plans)


def plan_mixed(labels: Sequence[Labels], spec: StreamSpec) -> Plan:
    """Plan all domains shuffled together, each with its own ``limit``; batches hold images of several domains."""
    chosen = [_subset(of_domain, spec) for of_domain in labels]
    rows = np.concatenate(chosen)
    domain = np.repeat(np.arange(len(labels), dtype=np.int64), [len(part) for part in chosen])
    pooled = np.concatenate([of_domain[part] for of_domain, part in zip(labels, chosen, strict=True)])
    rng = np.random.default_rng(derive_seed("order", spec.seed, MIXED, 0))
    shuffled = permutation(pooled, spec.order, rng, spec.concentration)
    return Plan(domain[shuffled], rows[shuffled], _bounds(len(rows), spec.batch_size))


def plan_pairs(stages: Sequence[int], labels: Labels, spec: StreamSpec) -> Plan:
    """Plan a stream that glides from stage to stage and from the last to the first; batches do not wait for it.

    A severity between two whole ones is dealt out image by image: at the third of four points, half of the images have
    arrived at the next stage. Images are drawn anew at each point.

    Args:
        stages: The domains on the way, as positions among them.
        labels: The labels, which all domains share.
        spec: Order, seed, limit and batch size.
    """
    count = len(labels) if spec.limit is None else min(spec.limit, len(labels))
    domain, rows = [], []
    for point in range(STEPS * len(stages)):
        rng = np.random.default_rng(derive_seed("pairs", spec.seed, point))
        drawn = rng.permutation(len(labels))[:count].astype(np.int64)
        rows.append(drawn[permutation(labels[drawn], spec.order, rng, spec.concentration)])
        here, share = divmod(point, STEPS)
        arrived = rng.random(count) < share / STEPS
        domain.append(np.where(arrived, stages[(here + 1) % len(stages)], stages[here]).astype(np.int64))
    every = np.concatenate(rows)
    return Plan(np.concatenate(domain), every, _bounds(len(every), spec.batch_size))


def permutation(labels: Labels, order: Order, rng: np.random.Generator, concentration: float | None = None) -> Integers:
    """Return a permutation of ``range(len(labels))``.

    Args:
        labels: The class of each image.
        order: ``iid`` shuffles; ``sorted`` shuffles within each class and lines the classes up; ``dirichlet`` makes
            neighbours alike.
        rng: Where the draws come from.
        concentration: Of the Dirichlet order: towards 0 a class comes in few bursts, large values approach ``iid``.
    """
    # Shuffled first in every order: within a class, files lie as they were collected.
    shuffled = rng.permutation(len(labels)).astype(np.int64)
    if order == "iid":
        return shuffled
    if order == "sorted":
        return shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _dirichlet(labels, shuffled, rng, CONCENTRATION if concentration is None else concentration)


def _dirichlet(labels: Labels, shuffled: Integers, rng: np.random.Generator, concentration: float) -> Integers:
    """Spread each class over as many time slots as there are classes, by Dirichlet proportions; shuffle within slots.

    The label-correlated stream of test-time adaptation (Gong et al., 2022; Yuan et al., 2023).
    """
    classes = np.unique(labels)
    slots: list[list[Integers]] = [[] for _ in classes]
    for label in classes:
        members = shuffled[labels[shuffled] == label]
        shares = rng.dirichlet(np.full(len(classes), concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for slot, part in zip(slots, np.split(members, cuts), strict=True):
            slot.append(part)
    return np.concatenate([rng.permutation(np.concatenate(slot)) for slot in slots]).astype(np.int64)


def _subset(labels: Labels, spec: StreamSpec) -> Integers:
    """Rows that ``limit`` and ``imbalance`` keep: the same for every such domain, so that comparisons are paired."""
    n = len(labels)
    if spec.limit is None or spec.limit >= n:
        kept = np.arange(n, dtype=np.int64)
    else:
        # The first of one permutation, so that a smaller limit is a subset of a larger one.
        rng = np.random.default_rng(derive_seed("limit", spec.seed))
        kept = np.sort(rng.permutation(n)[: spec.limit]).astype(np.int64)
    return kept if spec.imbalance is None else kept[_thinned(labels[kept], spec.imbalance, spec.seed)]


def _thinned(labels: Labels, imbalance: float, seed: int) -> Integers:
    """Return the places that stay where the shares of the classes fall from 1 to 1/imbalance, each by the same factor.

    Which classes are frequent is drawn once, and the same in every domain.
    """
    rng = np.random.default_rng(derive_seed("imbalance", seed))
    classes = rng.permutation(np.unique(labels))
    kept = []
    for rank, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        share = imbalance ** (-rank / max(len(classes) - 1, 1))
        kept.append(members[: max(1, round(share * len(members)))])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def _bounds(n: int, batch_size: int) -> Integers:
    return np.append(np.arange(0, n, batch_size, dtype=np.int64), np.int64(n))


def _concatenate(plans: Sequence[Plan]) -> Plan:
    offsets = np.cumsum([0] + [len(plan.rows) for plan in plans])
    bounds = [plan.bounds[:-1] + offset for plan, offset in zip(plans, offsets[:-1], strict=True)]
    return Plan(
        np.concatenate([plan.domain for plan in plans]),
        np.concatenate([plan.rows for plan in plans]),
        np.concatenate([*bounds, offsets[-1:]]),
    )
