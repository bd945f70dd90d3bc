"""Jacobians of a generating function: measured at points, bounded everywhere, and what breaks their assumption.

First Jacobians by forward mode, their largest singular values and ranks; then bounds certified from the weights of a
known generator; then witnesses against smoothness and invertibility (Assumption i).

A generating function here maps z (n, d_z) to x (n, d_x), every row on its own. Latents are fewer than observed
dimensions, so forward mode (one product per latent) is the cheap direction. Ranks are decided in double precision.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.process.generator import DenseGenerator, Generator, Mlp, SparseGenerator

Generate = Callable[[Tensor], Tensor]


def jacobian(g: Generate, z: Tensor) -> Tensor:
    """Return dg/dz at every z, (n, d_x, d_z).

    Example:
        >>> A = torch.tensor([[1.0, 2.0], [0.0, 3.0], [1.0, 0.0]])
        >>> torch.equal(jacobian(lambda z: z @ A.T, torch.zeros(5, 2))[3], A)
        True
    """
    _load_forward_mode()
    d_z = z.shape[-1]
    tangents = torch.eye(d_z, dtype=z.dtype).repeat_interleave(len(z), 0)  # one pass for all columns
    columns: Tensor = torch.func.jvp(g, (z.repeat(d_z, 1),), (tangents,))[1]
    return columns.view(d_z, len(z), -1).permute(1, 2, 0)


def norms(J: Tensor) -> Tensor:
    """Return the largest singular value of every matrix (..., d_x, d_z)."""
    largest: Tensor = torch.linalg.matrix_norm(J, ord=2)
    return largest


def ranks(J: Tensor) -> Tensor:
    """Return the rank of every matrix: singular values above max(d_x, d_z) eps sigma_1 count, times 1000 for rounding.

    The factor covers what a few matrix products before this one lose.
    """
    rank: Tensor = torch.linalg.matrix_rank(J, rtol=1e3 * max(J.shape[-2:]) * torch.finfo(J.dtype).eps)
    return rank


def null_vector(J: Tensor) -> Tensor:
    """Return the unit vector that each matrix (..., d_x, d_z) shrinks most."""
    vector: Tensor = torch.linalg.svd(J).Vh[..., -1, :]
    return vector


@functools.cache
def _load_forward_mode() -> None:
    """Take one derivative, once: PyTorch loads its forward mode at first use and warns about its own old code there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.square, (torch.ones(1),), (torch.ones(1),))


# Certified bounds of known generators: what every secant of g can stretch or shrink, from the weights alone.
#
# An activation turns a difference of inputs into the same difference times slopes within [low, high], so for any two
# latents g(z1) - g(z2) = W_L D_{L-1} ... D_1 W_1 (z1 - z2) with diagonal D's in that range. Writing D = m I + r E
# with |E| <= 1 and expanding bounds the norm of all such products by sums over contiguous products of weights. The
# sum never exceeds the plain product of layer norms and activation constants, and it holds on all of R^d_z, off
# support too.


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


# Smoothness and invertibility of a generator (Assumption i): ranks, and explicit witnesses when either fails.
#
# A witness against invertibility is two latents with the same x. A witness against smoothness is a latent at which
# the Jacobian, or g itself, jumps.


NEAREST = 16


@dataclass(frozen=True)
class Collision:
    """Two latents a known distance apart with the same x.

    Attributes:
        z: One of them; the other is z + step * direction.
        direction: A unit vector.
        step: How far apart they are.
        gap: |g(z) - g(z + step * direction)|, zero up to rounding.
    """

    z: Tensor
    direction: Tensor
    step: float
    gap: float


def collision(g: Generate, z: Tensor, J: Tensor) -> Collision | None:
    """Look for two latents with the same x: where J loses rank, walk along what it does not see.

    Args:
        g: The generating function.
        z: (n, d_z) latents in double precision.
        J: (n, d_x, d_z) Jacobians there.
    """
    found = None
    for i in (ranks(J) < J.shape[-1]).nonzero()[:32, 0].tolist():
        direction = null_vector(J[i])
        steps = 2.0 ** -torch.arange(-3, 17, dtype=z.dtype)
        gaps = (g(z[i] + steps[:, None] * direction) - g(z[i : i + 1])).norm(dim=-1)
        for step, gap in zip(steps.tolist(), gaps.tolist(), strict=True):
            if gap <= 1e-12 * (1 + float(g(z[i : i + 1]).norm())) and (found is None or step > found.step):
                found = Collision(z[i], direction, step, gap)
    return found


def kink(g: Generate, mlp: Mlp, z: Tensor, columns: int) -> tuple[Tensor, float] | None:
    """Return a latent at which the Jacobian jumps and the norm of the jump; None for smooth activations.

    Units of the first layer switch on hyperplanes. For each unit, the given latents nearest to its plane are moved onto
    it and the Jacobians on both sides are compared; one may not be enough, as later layers can be blind there.

    Args:
        g: The generating function.
        mlp: The perceptron in it (one run), fed with the leading ``columns`` latents.
        z: (n, d_z) latents.
        columns: How many latents the perceptron sees.
    """
    if mlp.activation == "smooth" or len(mlp.weights) == 1:
        return None
    W, b = mlp.weights[0][0].to(z), mlp.biases[0][0].to(z)
    W = torch.nn.functional.pad(W, (0, z.shape[-1] - columns))
    size = W.norm(dim=-1)
    away = (z @ W.T + b) / size  # signed distance of every latent to every plane
    unit = W / size[:, None]
    nearest = away.abs().topk(min(NEAREST, len(z)), dim=0, largest=False).indices  # (nearest, units)
    on_plane = (z[nearest] - away.gather(0, nearest)[..., None] * unit).flatten(0, 1)
    unit = unit.repeat(len(nearest), 1)
    jump = norms(jacobian(g, on_plane + 1e-7 * unit) - jacobian(g, on_plane - 1e-7 * unit))
    return on_plane[jump.argmax()], float(jump.max())


def tear(g: Generate, z: Tensor, d_c: int) -> tuple[Tensor, float] | None:
    """Return a latent at which g itself jumps as one coordinate of s changes sign, and by how much, if any."""
    worst = None
    for j in range(d_c, z.shape[-1]):
        above, below = z.clone(), z.clone()
        above[:, j], below[:, j] = 1e-9, -1e-9
        jump = (g(above) - g(below)).norm(dim=-1)
        if float(jump.max()) > 1e-6 and (worst is None or float(jump.max()) > worst[1]):
            worst = above[jump.argmax()], float(jump.max())
    return worst
