"""Runs of a process: parameters, source samples and targets, with the truth kept for scoring.

A run is one process (weights, class embeddings), one labelled source sample, and targets at every distance asked for.
Every random draw of a run comes from its own seed, so a run is the same alone, in a batch, or beside other distances;
and every target has a seed of its own, so the first of ten is the one that would have been drawn alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offsupport.core.seeds import derive_seed
from offsupport.latent.process.generator import DenseGenerator, Generator, Mlp, SparseGenerator, draw_mlp
from offsupport.latent.process.process import Process


@dataclass(frozen=True)
class Draws:
    """R runs of one process: what an estimator may see (x, y on the source; x of the targets) and the truth behind it.

    Attributes:
        process: The set-up.
        g: The R generators, ``g(z)`` for z (R, n, d_z); differentiable, see `generator.jacobian`.
        x: (R, n, d_x) source observations; y: (R, n) labels, long for classes; c, s: their latents.
        x_tgt: (R, D, T, d_x) observations of T targets at each of D distances, and y_tgt, c_tgt, s_tgt alike.
        embeddings: (R, 2, d_c) class embeddings when they are fixed per run, else None.
    """

    process: Process
    seeds: tuple[int, ...]
    distances: tuple[float, ...]
    g: Generator
    x: Tensor
    y: Tensor
    c: Tensor
    s: Tensor
    x_tgt: Tensor
    y_tgt: Tensor
    c_tgt: Tensor
    s_tgt: Tensor
    embeddings: Tensor | None

    def select(self, runs: slice) -> Draws:
        """Return some of the runs."""
        fields = {name: getattr(self, name)[runs] for name in ("x", "y", "c", "s", *_TARGETS)}
        embeddings = None if self.embeddings is None else self.embeddings[runs]
        return replace(self, seeds=self.seeds[runs], g=self.g.select(runs), embeddings=embeddings, **fields)


_TARGETS = ("x_tgt", "y_tgt", "c_tgt", "s_tgt")


def draw(
    process: Process,
    seeds: Sequence[int],
    distances: Sequence[float] = (),
    *,
    n_targets: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Draws:
    """Draw one run per seed.

    Args:
        process: The set-up.
        seeds: Names of the runs; a run depends on its seed alone.
        distances: Distances of s_tgt from the origin.
        n_targets: Targets per run and distance.
        dtype: Floating-point type of the result; all draws are made in double precision.
    """
    runs = [_draw_run(process, seed, distances, n_targets) for seed in seeds]
    data = {name: torch.stack([run[name] for run in runs]) for name in runs[0] if name != "mlp"}
    layers = [run["mlp"] for run in runs]
    weights, biases = (
        tuple(torch.stack(part) for part in zip(*(run[i] for run in layers), strict=True)) for i in (0, 1)
    )
    order, embeddings = data.pop("order"), data.pop("embeddings")
    g = _generator(process, Mlp(weights, biases, process.activation, process.slope), order)
    z, z_tgt = torch.cat([data["c"], data["s"]], -1), torch.cat([data["c_tgt"], data["s_tgt"]], -1)
    x, x_tgt = g(z), g(z_tgt.flatten(1, 2)).view(*z_tgt.shape[:3], process.d_x)
    scale = process.noise * x.std(1, keepdim=True)
    data["x"] = x + scale * data.pop("e")
    data["x_tgt"] = x_tgt + scale[:, None] * data.pop("e_tgt")
    data = {name: value.to(dtype) if value.is_floating_point() else value for name, value in data.items()}
    mlp = replace(g.mlp, weights=tuple(W.to(dtype) for W in weights), biases=tuple(b.to(dtype) for b in biases))
    fixed = embeddings.to(dtype) if process.embedding == "fixed" and process.task == "classification" else None
    return Draws(
        process, tuple(seeds), tuple(map(float, distances)), _generator(process, mlp, order), embeddings=fixed, **data
    )


def oracle(draws: Draws, c: Tensor) -> Tensor:
    """Return the best prediction of y from the true c: the ceiling of every estimator.

    Args:
        draws: The runs.
        c: (R, ..., d_c) invariant variables.
    """
    process = draws.process
    informative = c[..., : process.d_c - process.d_continuous]
    if process.task == "regression":
        return _uniform_posterior_mean(informative.mean(-1), informative.shape[-1])
    if draws.embeddings is None:
        return (informative.mean(-1) > 1).long()
    known = draws.embeddings[..., : informative.shape[-1]]
    gaps = torch.cdist(informative.reshape(len(known), -1, known.shape[-1]), known)
    return gaps.argmin(-1).view(c.shape[:-1])


def _uniform_posterior_mean(mean: Tensor, count: int, low: float = 0.0, high: float = 4.0) -> Tensor:
    """E[y | c] for y ~ U(low, high) and ``count`` observations N(y, 1) of the given mean: a truncated normal's mean."""
    sd = count**-0.5
    a, b = (low - mean.double()) / sd, (high - mean.double()) / sd
    mass = (torch.special.ndtr(b) - torch.special.ndtr(a)).clamp_min(1e-12)
    density = [torch.exp(-0.5 * t**2) / math.sqrt(2 * math.pi) for t in (a, b)]
    inside: Tensor = mean.double() + sd * (density[0] - density[1]) / mass
    return inside.clamp(low, high).to(mean.dtype)


def _draw_run(process: Process, seed: int, distances: Sequence[float], n_targets: int) -> dict[str, Any]:
    """Draw everything random about one run, in double precision."""

    def rng(*part: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed("latent", seed, *part))

    weights = rng("weights")
    run: dict[str, Any] = {
        "mlp": _mlp_of(process, weights),
        "order": torch.randperm(process.d_x, generator=weights) if process.permute else torch.arange(process.d_x),
        "embeddings": _normal((2, process.d_c), weights) + torch.tensor([[0.0], [2.0]], dtype=torch.float64),
    }
    source = rng("source")
    run["y"], run["c"] = _draw_c(process, process.n_source, run["embeddings"], source)
    run["s"] = _draw_s(process, run["c"], source)
    run["e"] = _normal((process.n_source, process.d_x), source)
    targets = []
    for distance in distances:
        names = [("target", f"{distance:g}", *([str(t)] if t else [])) for t in range(n_targets)]
        drawn = [_draw_target(process, distance, run["embeddings"], rng(*name)) for name in names]
        targets.append({name: torch.cat([target[name] for target in drawn]) for name in drawn[0]})
    shapes = {"y_tgt": (), "c_tgt": (process.d_c,), "s_tgt": (process.d_s,), "e_tgt": (process.d_x,)}
    for name, shape in shapes.items():
        kind = run["y"].dtype if name == "y_tgt" else torch.float64
        empty = torch.zeros(0, n_targets, *shape, dtype=kind)
        run[name] = torch.stack([target[name] for target in targets]) if targets else empty
    return run


def _mlp_of(process: Process, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
    d_in, d_out = (process.d_z, process.d_z) if process.shift == "dense" else (process.d_c, process.hidden)
    sizes = [d_in, *[process.width or d_out] * (process.layers - 1), d_out]
    return draw_mlp(sizes, rng, weights=process.weights, condition=process.condition, bias=process.bias)


def _draw_target(process: Process, distance: float, embeddings: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    y, c = _draw_c(process, 1, embeddings, rng)
    heading = _HEADINGS[process.direction](process, rng)
    s = distance * heading / heading.norm(dim=-1, keepdim=True)
    return {"y_tgt": y, "c_tgt": c, "s_tgt": s, "e_tgt": _normal((1, process.d_x), rng)}


_HEADINGS: dict[str, Callable[[Process, torch.Generator], Tensor]] = {
    "uniform": lambda process, rng: _normal((1, process.d_s), rng),
    "axis": lambda process, rng: torch.eye(process.d_s, dtype=torch.float64)[:1],
    "diagonal": lambda process, rng: torch.ones(1, process.d_s, dtype=torch.float64),
}


def _draw_c(process: Process, count: int, embeddings: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw labels and invariant variables."""
    uniform = torch.rand(count, generator=rng, dtype=torch.float64)
    noise = _normal((count, process.d_c), rng)
    if process.task == "regression":
        y, mean = 4 * uniform, (4 * uniform)[:, None].expand_as(noise)
    else:
        y = (uniform >= 0.5).long()
        mean = 2.0 * y[:, None].expand_as(noise)
    c = mean + noise
    if process.task == "classification" and process.embedding == "fixed":
        c = embeddings[y]
    informative = torch.arange(process.d_c) < process.d_c - process.d_continuous
    return y, torch.where(informative, c, noise)


def _draw_s(process: Process, c: Tensor, rng: torch.Generator) -> Tensor:
    """Draw s given c from a Gaussian cut at the source support, by rejection."""
    mean = torch.zeros(len(c), process.d_s, dtype=torch.float64)
    if process.dependence:
        shared = min(process.d_s, process.d_c)
        mean[:, :shared] = process.dependence * (c - c.mean(0))[:, :shared]
        mean = mean.clamp(-process.radius / process.d_s, process.radius / process.d_s)  # keeps rejection from stalling
    s = mean + process.s_sd * _normal(mean.shape, rng)
    while (outside := ~process.in_support(s)).any():
        s[outside] = mean[outside] + process.s_sd * _normal((int(outside.sum()), process.d_s), rng)
    return s


def _normal(shape: tuple[int, ...] | torch.Size, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _generator(process: Process, mlp: Mlp, order: Tensor) -> Generator:
    if process.shift == "dense":
        return DenseGenerator(mlp, process.d_c, process.d_s)
    return SparseGenerator(mlp, process.d_c, process.d_s, order, process.influence == "varying")
