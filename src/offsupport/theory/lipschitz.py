"""Certified bounds of known generators: what every secant of g can stretch or shrink, from the weights alone.

An activation turns a difference of inputs into the same difference times slopes within [low, high], so for any two
latents g(z1) - g(z2) = W_L D_{L-1} ... D_1 W_1 (z1 - z2) with diagonal D's in that range. Writing D = m I + r E with
|E| <= 1 and expanding bounds the norm of all such products by sums over contiguous products of weights. The sum never
exceeds the plain product of layer norms and activation constants, and it holds on all of R^d_z, off support too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.generator import DenseGenerator, Generator, Mlp, SparseGenerator


@dataclass(frozen=True)
class Bounds:
    """Certified constants of one generator.

    Attributes:
        upper: |g(z1) - g(z2)| <= upper |z1 - z2|; an upper bound of J_u. Infinite if g jumps.
        upper_s: The same for z1, z2 that share c; an upper bound of J_u^s, the norm of the s-block.
        lower: |g(z1) - g(z2)| >= lower |z1 - z2|; positive means g is invertible with a Lipschitz inverse.
        lower_exclusive: |x_I(c1) - x_I(c2)| >= lower_exclusive |c1 - c2| on the dimensions I(z) that only c moves; zero
            if there are none, or if the gradient of such a dimension may vanish at some z, where it leaves I(z).
    """

    upper: float
    upper_s: float
    lower: float
    lower_exclusive: float


def slopes(mlp: Mlp) -> tuple[float, float]:
    """Return the smallest and largest secant slope of the activation."""
    if mlp.activation == "relu":
        return 0.0, 1.0
    return min(mlp.slope, 1.0), max(mlp.slope, 1.0)


def product_bound(weights: Sequence[Tensor], high: float) -> float:
    """Return the product of the layer norms and the activations' Lipschitz constants."""
    return math.prod(_norm(W) for W in weights) * high ** (len(weights) - 1)


def secant_bound(weights: Sequence[Tensor], low: float, high: float) -> float:
    """Bound |W_L D_{L-1} ... D_1 W_1| over all diagonal D with entries in [low, high].

    With F(k) the bound for the first k layers, F(k) = m^(k-1) |W_k..W_1| + sum_j m^(k-j-1) r |W_k..W_{j+1}| F(j), where
    j is the last place at which the expansion takes the r E part.
    """
    m, r = (high + low) / 2, (high - low) / 2
    bounds: list[float] = []
    for k in range(len(weights)):
        product = weights[k]
        total = 0.0
        for j in range(k - 1, -1, -1):
            total += m ** (k - j - 1) * r * _norm(product) * bounds[j]
            product = product @ weights[j]
        bounds.append(total + m**k * _norm(product))
    return bounds[-1]


def mlp_bounds(mlp: Mlp, columns: slice = slice(None)) -> tuple[float, float]:
    """Return (upper, lower) secant constants of one perceptron with respect to some of its inputs.

    Args:
        mlp: One run.
        columns: The inputs that vary.
    """
    low, high = slopes(mlp)
    weights = [W[0].double() for W in mlp.weights]
    weights[0] = weights[0][:, columns]
    upper = secant_bound(weights, low, high)
    tall = all(int(torch.linalg.matrix_rank(W)) == W.shape[-1] for W in weights)
    if not (tall and low > 0):
        return upper, 0.0
    inverse = [torch.linalg.pinv(W) for W in reversed(weights)]
    return upper, 1 / secant_bound(inverse, 1 / high, 1 / low)


def bounds(g: Generator, d_c: int) -> Bounds:
    """Return the certified constants of one run's generator.

    Args:
        g: One run.
        d_c: Leading latents counted as c; the rest, continuous parts of c included, move with s.
    """
    if isinstance(g, DenseGenerator):
        upper, lower = mlp_bounds(g.mlp)
        return Bounds(upper, mlp_bounds(g.mlp, slice(d_c, None))[0], lower, 0.0)
    if g.varying:
        return Bounds(math.inf, math.inf, 0.0, 0.0)
    return _sparse(g, d_c)


def _sparse(g: SparseGenerator, d_c: int) -> Bounds:
    """Bound x = M [h, s] with M = [[I, 0], [E, I]], E the rows of h that are repeated."""
    d_h = g.mlp.weights[-1].shape[-2]
    M = torch.eye(d_h + g.d_s, dtype=torch.float64)
    M[d_h:, : g.d_s] = torch.eye(g.d_s, dtype=torch.float64)
    sigma = torch.linalg.svdvals(M)
    upper, lower = mlp_bounds(g.mlp)
    # Rows of an invertible square Jacobian never vanish; those of a tall one may, and I(z) would shrink there.
    lower_exclusive = lower if d_h == g.d_c else 0.0
    upper_s = 1.0
    if d_c < g.d_c:
        upper_s = float(sigma[0]) * max(mlp_bounds(g.mlp, slice(d_c, None))[0], 1.0)
    return Bounds(float(sigma[0]) * max(upper, 1.0), upper_s, float(sigma[-1]) * min(lower, 1.0), lower_exclusive)


def _norm(W: Tensor) -> float:
    return float(torch.linalg.matrix_norm(W, ord=2))
