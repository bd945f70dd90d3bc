"""Smoothness and invertibility of a generator (Assumption i): ranks, and explicit witnesses when either fails.

A witness against invertibility is two latents with the same x. A witness against smoothness is a latent at which the
Jacobian, or g itself, jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.generator import Mlp
from offsupport.theory.jacobian import Generate, jacobian, norms, null_vector, ranks

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
