"""The generating function x = g(c, s): batched multi-layer perceptrons, dense or sparse in s, one per run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import ConfigError

Activation = Literal["leaky", "relu", "smooth"]
Weights = Literal["bounded", "uniform", "torch"]
CANDIDATES = 64  # matrices drawn per layer by ``uniform``; the best-conditioned quarter of them is eligible


def bounded_matrix(rows: int, cols: int, condition: float, rng: torch.Generator) -> Tensor:
    """Draw a matrix with random singular vectors and singular values U(2 / (1 + k), 2 k / (1 + k)), k = condition."""
    rank = min(rows, cols)
    U, V = (_orthonormal(size, rank, rng) for size in (rows, cols))
    low, high = 2 / (1 + condition), 2 * condition / (1 + condition)
    singular = low + (high - low) * torch.rand(rank, generator=rng, dtype=torch.float64)
    return (U * singular) @ V.T


def uniform_matrix(rows: int, cols: int, rng: torch.Generator) -> Tensor:
    """Draw a matrix with U(-1, 1) entries and unit columns whose condition number is in the lowest quarter.

    The convention of von Kuegelgen et al. (2021), with the quartile taken over 64 draws instead of 10,000.
    """
    drawn = torch.rand(CANDIDATES, rows, cols, generator=rng, dtype=torch.float64) * 2 - 1
    drawn = drawn / drawn.norm(dim=-2, keepdim=True)
    singular = torch.linalg.svdvals(drawn)
    condition = singular[:, 0] / singular[:, -1]
    chosen: Tensor = drawn[int((condition <= condition.quantile(0.25)).nonzero()[0])]
    return chosen


@dataclass(frozen=True)
class Mlp:
    """R multi-layer perceptrons of one shape, evaluated together.

    Attributes:
        weights: One (R, out, in) tensor per layer.
        biases: One (R, out) tensor per layer.
        activation: ``leaky``, ``relu``, or ``smooth`` (slope * a + (1 - slope) * softplus(a)).
        slope: Slope for negative inputs of ``leaky`` and ``smooth``.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: Activation = "leaky"
    slope: float = 0.2

    def __call__(self, h: Tensor) -> Tensor:
        """Map (R, n, in) to (R, n, out)."""
        for layer, (W, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                h = self._activate(h)
            h = torch.baddbmm(b[:, None], h, W.mT)
        return h

    def inverse(self, x: Tensor) -> Tensor:
        """Return h with ``self(h) == x``; exists in closed form for square leaky-ReLU networks."""
        if self.activation != "leaky" or any(W.shape[-1] != W.shape[-2] for W in self.weights):
            raise ConfigError(
                "This generator has no closed-form inverse.", "Use activation='leaky' and square weights."
            )
        h = x
        for layer, (W, b) in reversed(list(enumerate(zip(self.weights, self.biases, strict=True)))):
            h = torch.linalg.solve(W, (h - b[:, None]).mT).mT
            if layer:
                h = torch.where(h < 0, h / self.slope, h)
        return h

    def _activate(self, a: Tensor) -> Tensor:
        if self.activation == "relu":
            return torch.relu(a)
        if self.activation == "leaky":
            return functional.leaky_relu(a, self.slope)
        return self.slope * a + (1 - self.slope) * functional.softplus(a)


def draw_mlp(
    sizes: Sequence[int],
    rng: torch.Generator,
    *,
    weights: Weights = "bounded",
    condition: float = 3.0,
    bias: float = 1.0,
) -> tuple[list[Tensor], list[Tensor]]:
    """Draw the weights and biases of one run; biases are U(-bias, bias), with weights ``torch`` over sqrt(fan-in)."""
    pairs = list(itertools.pairwise(sizes))
    if weights == "torch":
        return _linear_layers(pairs, bias, rng)
    if weights == "bounded":
        matrices = [bounded_matrix(b, a, condition, rng) for a, b in pairs]
    else:
        matrices = [uniform_matrix(b, a, rng) for a, b in pairs]
    return matrices, [(torch.rand(b, generator=rng, dtype=torch.float64) * 2 - 1) * bias for b in sizes[1:]]


def _linear_layers(
    pairs: Sequence[tuple[int, int]], bias: float, rng: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Draw what ``torch.nn.Linear`` starts from: U(-1, 1) / sqrt(fan-in), biases alike."""
    parts = [(torch.rand(b, a + 1, generator=rng, dtype=torch.float64) * 2 - 1) / a**0.5 for a, b in pairs]
    return [part[:, :-1] for part in parts], [bias * part[:, -1] for part in parts]


@dataclass(frozen=True)
class DenseGenerator:
    """x = MLP([c, s]): every observed dimension may depend on every latent one."""

    mlp: Mlp
    d_c: int
    d_s: int

    def __call__(self, z: Tensor) -> Tensor:
        """Map z (R, n, d_c + d_s) to x (R, n, d_x)."""
        return self.mlp(z)

    def inverse(self, x: Tensor) -> Tensor:
        """Return z with ``g(z) == x``."""
        return self.mlp.inverse(x)

    def influence(self, z: Tensor) -> Tensor:
        """Mark the observed dimensions that s may influence at z, (R, n, d_x): all of them."""
        d_x = self.mlp.weights[-1].shape[-2]
        return torch.ones(*z.shape[:2], d_x, dtype=torch.bool, device=z.device)

    def select(self, runs: slice) -> DenseGenerator:
        """Return the generators of some runs."""
        return replace(self, mlp=_select(self.mlp, runs))


@dataclass(frozen=True)
class SparseGenerator:
    """Observed dimensions that c alone explains beside few that s moves.

    With fixed sets, x = permute([h, h_dup + s]) for h = MLP(c): d_s dimensions of h are repeated and s is added to the
    copies. With sets that vary with z there are no copies: s is added to one of the blocks of d_s dimensions of h, and
    the signs of s say which.

    Attributes:
        order: (R, d_x) permutation applied to the observed dimensions.
        varying: Whether the influenced dimensions depend on z.
    """

    mlp: Mlp
    d_c: int
    d_s: int
    order: Tensor
    varying: bool = False

    def __call__(self, z: Tensor) -> Tensor:
        """Map z (R, n, d_c + d_s) to x (R, n, d_x)."""
        c, s = z[..., : self.d_c], z[..., self.d_c :]
        h = self.mlp(c)
        if self.varying:
            blocks = h.shape[-1] // self.d_s
            moved = functional.one_hot(self._block(s), blocks).to(s)[..., None] * s[..., None, :]  # (R, n, blocks, d_s)
            x = h + functional.pad(moved.flatten(-2), (0, h.shape[-1] - blocks * self.d_s))
        else:
            x = torch.cat([h, h[..., : self.d_s] + s], -1)
        return x.gather(-1, self.order[:, None].expand(-1, x.shape[1], -1))

    def influence(self, z: Tensor) -> Tensor:
        """Mark the observed dimensions that s influences at z, (R, n, d_x)."""
        d_h, d_x = self.mlp.weights[-1].shape[-2], self.order.shape[-1]
        mask = torch.zeros(*z.shape[:2], d_x, dtype=torch.bool, device=z.device)
        if self.varying:
            start = self._block(z[..., self.d_c :])[..., None] * self.d_s
            mask = mask.scatter(-1, start + torch.arange(self.d_s, device=z.device), True)
        else:
            mask[..., d_h:] = True
        return mask.gather(-1, self.order[:, None].expand(-1, z.shape[1], -1))

    def select(self, runs: slice) -> SparseGenerator:
        """Return the generators of some runs."""
        return replace(self, mlp=_select(self.mlp, runs), order=self.order[runs])

    def _block(self, s: Tensor) -> Tensor:
        """Number the block of dimensions s is added to: what its signs spell in binary, modulo the blocks there are."""
        powers = 2 ** torch.arange(self.d_s, device=s.device)
        return ((s > 0) * powers).sum(-1) % (self.mlp.weights[-1].shape[-2] // self.d_s)


Generator = DenseGenerator | SparseGenerator


def jacobian(g: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return dg/dz at every z, (R, n, d_x, d_z), by one backward product per observed dimension.

    g maps every sample on its own, so one product serves all samples.
    """
    x, pull = torch.func.vjp(g, z)[:2]
    rows = [pull(e.expand_as(x))[0] for e in torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)]
    return torch.stack(rows, -2)


def _select(mlp: Mlp, runs: slice) -> Mlp:
    return replace(mlp, weights=tuple(W[runs] for W in mlp.weights), biases=tuple(b[runs] for b in mlp.biases))


def _orthonormal(rows: int, cols: int, rng: torch.Generator) -> Tensor:
    """Draw ``cols`` orthonormal columns, uniform over all such (the signs of R's diagonal make QR unique)."""
    Q, R = torch.linalg.qr(torch.randn(rows, cols, generator=rng, dtype=torch.float64))
    columns: Tensor = Q * R.diagonal().sign()
    return columns
