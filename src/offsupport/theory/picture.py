"""The picture of a diagnosis: support, target and radius in the plane of s; class manifolds in a plane of x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate
from offsupport.theory.measure import Measures
from offsupport.theory.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
OWN, RIVAL, TARGET, SUPPORT = "#1f83c4", "#d55e00", "#111111", "#9a9a9a"
POINTS = 400


@dataclass(frozen=True)
class Picture:
    """What is drawn.

    Attributes:
        source: (n, 2) source s.
        outline: (m, 2) boundary of a planar support.
        target: (2,) s_tgt; nearest: (2,) the point of the support nearest to it.
        rings: (name, radius) to draw around the support.
        ball: Whether the support is a ball.
        radius: Of the support.
        manifolds: Per value of c, (k, 2) points of its manifold over the support; the target's own first.
        edges: Per value of c, (k, 2) the boundary's image, where the boundary is a curve.
        path: (k, 2) g along the straight line from the support to the target.
        gap: (2, 2) the closest points of the own and the nearest other manifold.
    """

    source: Array
    outline: Array | None
    target: Array
    nearest: Array
    rings: tuple[tuple[str, float], ...]
    ball: bool
    radius: float
    manifolds: tuple[Array, ...] = ()
    edges: tuple[Array, ...] = ()
    path: Array | None = None
    gap: Array | None = None


def picture(subject: Subject, m: Measures) -> Picture:
    """Collect what the picture shows."""
    support, free = subject.support, subject.support.free
    rng = torch.Generator().manual_seed(0)
    bound = subject.s_tgt[free:]
    plane = _latent_plane(bound)
    planar = support.dim == 2
    outline = support.curve(torch.linspace(0, support.perimeter, 361, dtype=torch.float64)) if planar else None
    latent: dict[str, Any] = {
        "source": _flat(subject.z[:2000, subject.split + free :], plane),
        "outline": None if outline is None else _flat(outline, plane),
        "target": _flat(bound, plane),
        "nearest": _flat(support.nearest(subject.s_tgt)[free:], plane),
        "rings": tuple((radius.way, radius.radius_s) for radius in m.radii),
        "ball": support.shape == "ball",
        "radius": support.radius,
    }
    if subject.g is None or m.separation is None:
        return Picture(**latent)
    with torch.no_grad():
        return Picture(**latent, **_manifolds(subject, m, subject.g, rng))


def _manifolds(subject: Subject, m: Measures, g: Generate, rng: torch.Generator) -> dict[str, Any]:
    support = subject.support
    assert m.separation is not None  # noqa: S101 - told to the type checker
    values = torch.cat([subject.c_tgt[None], subject.others])

    def image(c: Tensor, s: Tensor) -> Tensor:
        return g(torch.cat([c.expand(len(s), -1), s], -1))

    inside = support.sample(POINTS, rng)
    clouds = [image(c, inside) for c in values]
    edge = support.boundary(361, rng)
    edges = [image(c, torch.cat([edge, edge[:1]])) for c in values] if support.dim == 2 and not support.free else []
    t = torch.linspace(0, 1, 65, dtype=torch.float64)[:, None]
    near = support.nearest(subject.s_tgt)
    path = image(subject.c_tgt, near + t * (subject.s_tgt - near))
    pair = torch.stack([subject.c_tgt, subject.others[m.separation.rival]])
    gap = g(torch.cat([pair, m.separation.s_pair], -1))
    plane = _observed_plane(clouds, path, gap)
    return {
        "manifolds": tuple(_flat(cloud, plane) for cloud in clouds),
        "edges": tuple(_flat(line, plane) for line in edges),
        "path": _flat(path, plane),
        "gap": _flat(gap, plane),
    }


def draw_latent(p: Picture, ax: Axes) -> None:
    """Draw the plane of s: source, support, target, and the distance Theorem 1 allows around the support."""
    ax.scatter(p.source[:, 0], p.source[:, 1], s=4, color=SUPPORT, alpha=0.35, linewidths=0, label="source s")
    if p.outline is not None:
        ax.plot(*p.outline.T, color="#555555", linewidth=1.2, label="edge of the support")
    angle = np.linspace(0, 2 * np.pi, 361)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    if p.outline is None and p.ball:
        ax.plot(*(p.radius * circle).T, color="#555555", linewidth=1.2, label="edge of the support")
    styles = {"certified": ("-", "#009e73"), "sampled": ("--", "#cc79a7"), "local": (":", "#e69f00")}
    for name, ring in p.rings:
        line, colour = styles[name]
        path = _around(p, circle, ring)
        ax.plot(*path.T, linestyle=line, color=colour, linewidth=1.3, label=f"{name} radius {ring:.3g}")
    ax.plot(*np.stack([p.nearest, p.target]).T, color=TARGET, linewidth=0.8)
    ax.plot(*p.target, marker="*", markersize=13, color=TARGET, linestyle="none", label="target")
    ax.set(xlabel="s, first coordinate", ylabel="s, second coordinate", title="changing variable")
    ax.set_aspect("equal", adjustable="datalim")
    _legend(ax)


def draw_manifolds(p: Picture, ax: Axes) -> None:
    """Draw a plane of x: every manifold over the support, their closest points, and the target's way out."""
    if p.path is None or p.gap is None:
        ax.text(0.5, 0.5, "no decoder:\nmanifolds are unknown", ha="center", va="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    for k, cloud in enumerate(p.manifolds):
        colour = OWN if k == 0 else RIVAL
        label = "manifold of the target's c" if k == 0 else "other manifolds" if k == 1 else None
        ax.scatter(cloud[:, 0], cloud[:, 1], s=5, color=colour, alpha=0.4, linewidths=0, label=label)
    for k, line in enumerate(p.edges):
        ax.plot(*line.T, color=OWN if k == 0 else RIVAL, linewidth=1.1)
    ax.plot(*p.gap.T, color="#009e73", linewidth=1.4, marker="o", markersize=3, label="closest points of the edges")
    ax.plot(*p.path.T, color=TARGET, linewidth=1.0)
    ax.plot(*p.path[-1], marker="*", markersize=13, color=TARGET, linestyle="none", label="target")
    ax.set(xlabel="x, towards the other manifold", ylabel="x, widest direction across", title="observed, projected")
    _legend(ax)


def _legend(ax: Axes) -> None:
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, columnspacing=1.2)


def _around(p: Picture, circle: Array, ring: float) -> Array:
    """Points at distance ``ring`` from the support."""
    if p.ball:
        return (p.radius + ring) * circle
    corner = np.where(circle >= 0, 1.0, -1.0) * p.radius
    return corner + ring * circle


def _latent_plane(s_tgt: Tensor) -> Tensor:
    """Two orthonormal columns: the axes in a plane, else the direction of the target and one across."""
    if len(s_tgt) <= 2:
        return torch.eye(len(s_tgt), 2, dtype=s_tgt.dtype)
    basis = torch.cat([s_tgt[:, None], torch.eye(len(s_tgt), dtype=s_tgt.dtype)], -1)
    plane: Tensor = torch.linalg.qr(basis)[0][:, :2] * torch.linalg.qr(basis)[1].diagonal()[:2].sign()
    return plane


def _observed_plane(clouds: list[Tensor], path: Tensor, gap: Tensor) -> Tensor:
    """From the own manifold to the others, and the widest direction across that."""
    towards = torch.cat(clouds[1:]).mean(0) - clouds[0].mean(0)
    first = towards / towards.norm().clamp_min(1e-300)
    points = torch.cat([*clouds, path])
    rest = points - points.mean(0)
    rest = rest - (rest @ first)[:, None] * first
    second = torch.linalg.svd(rest, full_matrices=False).Vh[0]
    return torch.stack([first, second], -1)


def _flat(points: Tensor, plane: Tensor) -> Array:
    return (points @ plane).numpy()
