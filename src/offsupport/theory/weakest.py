"""A search for latents at which mechanistic dependence breaks although it holds at almost all others.

The cheapest way to split m rows of rank d_c is that one row stops depending on the rest: the other m - 1 rows A lose
rank, A(z) v = 0 for some unit v. That takes m - d_c equations in z more than there are unknowns in v. So as long as
m - d_c does not exceed the number of latents that J depends on, such points exist stably: isolated, of probability
zero, met by no sample, and still violations of an assumption that says "for all z". Least squares finds them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate, jacobian, null_vector

ROUNDS = 40
SOLVED = 1e-11


def weakest_point(g: Generate, z: Tensor, rows: Tensor, d_c: int) -> Tensor | None:
    """Return a latent at which one of the rows is independent of all others, if one is found.

    Args:
        g: The generating function.
        z: (n, d_z) latents to start from; c is moved, s stays.
        rows: (d_x,) mask of the rows, the same at all z.
        d_c: Leading latents that are c.
    """
    index = rows.nonzero()[:, 0]
    weights = (1 - torch.eye(len(index), dtype=z.dtype)).repeat_interleave(len(z), 0)  # problem i leaves row i out
    s = z[:, d_c:].repeat(len(index), 1)
    A = jacobian(g, z)[:, index, :d_c].repeat(len(index), 1, 1) * weights[..., None]
    start = torch.cat([z[:, :d_c].repeat(len(index), 1), null_vector(A)], -1)

    def residual(p: Tensor) -> Tensor:
        c, v = p[:, :d_c], p[:, d_c:]
        copies = len(p) // len(s)  # forward mode repeats p once per unknown
        tangent = torch.cat([v, torch.zeros_like(s).repeat(copies, 1)], -1)
        moved = torch.func.jvp(g, (torch.cat([c, s.repeat(copies, 1)], -1),), (tangent,))[1]
        unit = v.square().sum(-1, keepdim=True) - 1
        return torch.cat([moved[:, index] * weights.repeat(copies, 1), unit], -1)

    p, error = _levenberg_marquardt(residual, start)
    found = error < SOLVED
    if not bool(found.any()):
        return None
    best = torch.where(found, p[:, :d_c].norm(dim=-1), torch.inf).argmin()
    return torch.cat([p[best, :d_c], s[best]])


def _levenberg_marquardt(residual: Generate, p: Tensor) -> tuple[Tensor, Tensor]:
    """Solve residual = 0 from all starts side by side, until one arrives; steps that do not help are damped more."""
    damping = torch.full((len(p),), 1e-3, dtype=p.dtype)
    value = residual(p)
    error = value.norm(dim=-1)
    for _ in range(ROUNDS):
        J = jacobian(residual, p)
        normal = J.mT @ J + damping[:, None, None] * torch.eye(p.shape[-1], dtype=p.dtype)
        tried = p - torch.linalg.solve(normal, J.mT @ value[..., None])[..., 0]
        new = residual(tried)
        better = new.norm(dim=-1) < error
        p, value = torch.where(better[:, None], tried, p), torch.where(better[:, None], new, value)
        error = value.norm(dim=-1)
        if bool((error < SOLVED).any()):
            break
        damping = torch.where(better, damping * 0.3, damping * 5).clamp(1e-12, 1e6)
    return p, error
