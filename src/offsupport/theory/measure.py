"""All numbers of a diagnosis, measured on a subject."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offsupport.core.seeds import derive_seed
from offsupport.theory.dependence import (
    Dependence,
    Influence,
    Informativeness,
    dependence,
    influence,
    informativeness,
    weakest_point,
)
from offsupport.theory.jacobian import Bounds, Collision, Generate, bounds, collision, jacobian, kink, ranks, tear
from offsupport.theory.radius import Radius, Separation, radius, sampled_norms, segment_norms, separation
from offsupport.theory.subject import Subject

PAIRS = 256
STARTS = 24


@dataclass(frozen=True)
class Measures:
    """What was measured; everything that needs a generator is None without one.

    Attributes:
        distance: D(s_tgt, S_src).
        constants: Certified constants of a known generator.
        separation: Of the target's manifold from the others.
        radii: The Theorem 1 radius, each way that is available.
        z: (n, d_z) where the following were measured; the last row is the target, the first the weakest point, if any.
        rank: (n,) ranks of the Jacobian.
        influence: Influence sets.
        dependence: Mechanistic dependence.
        informativeness: Of the dimensions that only c moves.
        collision: Two latents with one x, if found.
        kink: A latent at which J jumps and by how much, if known.
        tear: A latent at which g jumps and by how much, if known.
    """

    distance: float
    constants: Bounds | None = None
    separation: Separation | None = None
    radii: tuple[Radius, ...] = ()
    z: Tensor | None = None
    rank: Tensor | None = None
    influence: Influence | None = None
    dependence: Dependence | None = None
    informativeness: Informativeness | None = None
    collision: Collision | None = None
    kink: tuple[Tensor, float] | None = None
    tear: tuple[Tensor, float] | None = None


def measure(subject: Subject, points: int = 1024, seed: int = 0) -> Measures:
    """Measure everything the subject allows.

    Args:
        subject: What to measure.
        points: Latents at which Jacobians are taken.
        seed: Of the samples and searches.
    """
    distance = float(subject.support.distance(subject.s_tgt))
    g = subject.g
    if g is None:
        return Measures(distance)
    rng = torch.Generator().manual_seed(derive_seed("diagnose", seed))
    known = None if subject.draws is None else bounds(subject.draws.g, subject.split)
    pair = None if known is None else (known.upper_s, known.lower)
    with torch.no_grad():
        apart = separation(g, subject.c_tgt, subject.others, subject.support, rng, pair)
        radii = _radii(subject, g, apart, known, distance, points, rng)
        return _local(subject, g, Measures(distance, known, apart, radii), points, rng)


def _radii(
    subject: Subject,
    g: Generate,
    apart: Separation,
    known: Bounds | None,
    distance: float,
    points: int,
    rng: torch.Generator,
) -> tuple[Radius, ...]:
    values = torch.cat([subject.c_tgt[None], subject.others])
    c = values[torch.arange(points) % len(values)]
    if subject.draws is None or subject.draws.embeddings is None:  # c takes more values than these
        c = torch.where((torch.arange(points) % 2 == 0)[:, None], c, _rows(subject.z, points, rng)[:, : subject.split])
    support = subject.support
    found = sampled_norms(g, c, support.sample(points, rng), subject.s_tgt, support.nearest, rng)
    line = segment_norms(g, values, support.nearest(subject.s_tgt), subject.s_tgt)
    radii = [radius("sampled", apart.boundary, *found, distance), radius("local", apart.boundary, *line, distance)]
    if known is not None and apart.certified is not None:
        radii.insert(0, radius("certified", apart.certified, known.upper, known.upper_s, distance))
    return tuple(radii)


def _local(subject: Subject, g: Generate, so_far: Measures, points: int, rng: torch.Generator) -> Measures:
    """Measure what depends on z at source latents and at the target."""
    z = torch.cat([_rows(subject.z, points, rng), subject.z_tgt[None]])
    J = jacobian(g, z)
    moved = influence(J, subject.d_c, subject.tau)
    weakest = _weakest(subject, g, z, moved)
    if weakest is not None:
        z = torch.cat([weakest[None], z])
        J = jacobian(g, z)
        moved = influence(J, subject.d_c, subject.tau)
    draws = subject.draws
    return replace(
        so_far,
        z=z,
        rank=ranks(J),
        influence=moved,
        dependence=dependence(J[..., : subject.d_c], moved.exclusive),  # the columns of s are zero there
        informativeness=informativeness(g, z[-PAIRS:], subject.d_c, subject.tau),
        collision=None if draws is None else collision(g, z, J),
        kink=None if draws is None else kink(g, draws.g.mlp, z, draws.g.mlp.weights[0].shape[-1]),
        tear=None if draws is None else tear(g, z, subject.d_c),
    )


def _rows(z: Tensor, count: int, rng: torch.Generator) -> Tensor:
    return z[torch.randint(len(z), (count,), generator=rng)]


def _weakest(subject: Subject, g: Generate, z: Tensor, moved: Influence) -> Tensor | None:
    """Search for an isolated violation of dependence, if c is continuous and exclusive rows are the same at all z."""
    rows = moved.exclusive[0]
    smooth = subject.draws is not None and subject.draws.process.activation == "smooth"
    if not smooth or subject.draws is None or subject.draws.embeddings is not None:
        return None
    if int(rows.sum()) <= subject.d_c or bool((moved.exclusive != rows).any()):
        return None
    return weakest_point(g, z[:STARTS], rows, subject.d_c)
