"""Theorem 1 with finite C: every class is a manifold g(c_k, .), and a target belongs to the one it continues.

Around a target, each class is replaced by the tangent plane of its nearest samples (local principal components); the
class whose plane passes closest wins. This is the case where a density does not exist, so a flow cannot be fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.extrapolator.decision import intrinsic_dimension
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
        for r in range(len(self.source.x)):
            distances = [plane_distance(members, x[r], int(self.dimension[r])) for members in self._classes(r)]
            rows.append(torch.stack(distances, -1))
        weight = 1 / torch.stack(rows).square().clamp_min(1e-12)
        return weight / weight.sum(-1, keepdim=True)

    def latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return c_hat, the class weights, and s_hat, coordinates along the principal axes of the manifolds.

        Runs whose manifolds have fewer dimensions than others get zeros in the last coordinates.
        """
        widest = int(self.dimension.max())
        along = [x[r] @ self.axes(r) for r in range(len(x))]
        s = torch.stack([functional.pad(part, (0, widest - part.shape[-1])) for part in along])
        return self.posterior(x), s

    def decode(self, c: Tensor, s: Tensor, r: int) -> Tensor:
        """Map class weights (n, K) and coordinates (n, q) of run r to x (n, d): the classes' planes at s, mixed by c.

        A plane is the linear regression of x on s_hat among the class's samples nearest in s_hat.
        """
        axes = self.axes(r).to(s)
        planes = [plane_at(members.to(s), members.to(s) @ axes, s) for members in self._classes(r)]
        return torch.einsum("nk,knd->nd", c, torch.stack(planes))

    def axes(self, r: int) -> Tensor:
        """Return the (d, q) principal axes of what varies within the classes of run r."""
        centred = torch.cat([members - members.mean(0) for members in self._classes(r)])
        axes: Tensor = torch.linalg.svd(centred, full_matrices=False)[2][: int(self.dimension[r])].T
        return axes

    def _classes(self, r: int) -> list[Tensor]:
        return [self.source.x[r][self.source.y[r] == k] for k in range(self.source.n_classes)]


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


def plane_at(members: Tensor, coordinates: Tensor, s: Tensor) -> Tensor:
    """Regress members (n, d) on their coordinates (n, q) around each s (m, q), and return the values there, (m, d)."""
    k = min(NEIGHBOURS, len(members))
    index = torch.cdist(s.detach(), coordinates).topk(k, largest=False).indices
    near, at = members[index], coordinates[index]  # (m, k, d), (m, k, q)
    centre, origin = near.mean(1), at.mean(1)
    at = at - origin[:, None]
    gram = at.mT @ at
    floor = 1e-9 * gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-30)[:, None, None]
    slopes = torch.linalg.solve(gram + floor * torch.eye(gram.shape[-1], dtype=s.dtype), at.mT @ near)  # (m, q, d)
    return centre + torch.einsum("mq,mqd->md", s - origin, slopes)


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
    return ManifoldModel(source, found.clamp(1, max(1, source.x.shape[-1] - 1)).round().long()), thin
