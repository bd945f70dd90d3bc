"""Theorem 1 with finite C: every class is a manifold g(c_k, .), and a target belongs to the one it continues.

Around a target, each class is replaced by the tangent plane of its nearest samples (local principal components); the
class whose plane passes closest wins. This is the case where a density does not exist, so a flow cannot be fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.dimension import intrinsic_dimension
from offsupport.latent.inputs import Source

NEIGHBOURS = 30  # samples a tangent plane is fitted to
THIN = 0.5  # classes of fewer dimensions than this share of the columns are manifolds rather than densities


@dataclass(frozen=True)
class ManifoldModel:
    """The source samples and the dimension of their class manifolds, (R,) whole numbers."""

    source: Source
    dimension: Tensor

    def posterior(self, x: Tensor) -> Tensor:
        """Return class weights (R, m, K), inverse to the squared distances to the tangent planes."""
        rows = []
        for r, samples in enumerate(self.source.x):
            labels, dimension = self.source.y[r], int(self.dimension[r])
            classes = [samples[labels == k] for k in range(self.source.n_classes)]
            rows.append(torch.stack([plane_distance(members, x[r], dimension) for members in classes], -1))
        weight = 1 / torch.stack(rows).square().clamp_min(1e-12)
        return weight / weight.sum(-1, keepdim=True)


def plane_distance(members: Tensor, x: Tensor, dimension: int) -> Tensor:
    """Return the distances of x (m, d) to the planes of the given dimension through their nearest members (n, d)."""
    k = min(NEIGHBOURS, len(members))
    near = members[torch.cdist(x, members).topk(k, largest=False).indices]  # (m, k, d)
    centre = near.mean(1, keepdim=True)
    axes = torch.linalg.svd(near - centre, full_matrices=False)[2][:, :dimension]  # (m, dimension, d)
    gap = x - centre[:, 0]
    along = torch.einsum("mid,md->mi", axes, gap)
    distance: Tensor = (gap - torch.einsum("mid,mi->md", axes, along)).norm(dim=-1)
    return distance


def class_dimension(source: Source) -> Tensor:
    """Return the (R,) largest intrinsic dimension of any class; infinite for a regression."""
    if source.task == "regression":
        return torch.full((len(source.x),), torch.inf, dtype=torch.float64)
    found = [
        torch.stack([intrinsic_dimension(x[y == k][None])[0] for k in range(source.n_classes)]).amax()
        for x, y in zip(source.x, source.y, strict=True)
    ]
    return torch.stack(found)


def fit_manifolds(source: Source) -> tuple[ManifoldModel, Tensor]:
    """Return the model and the (R,) runs whose classes have less than half as many dimensions as there are columns."""
    found = class_dimension(source)
    thin = found < THIN * source.x.shape[-1]
    return ManifoldModel(source, found.clamp(1, source.x.shape[-1] - 1).round().long()), thin
