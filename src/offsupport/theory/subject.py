"""What is diagnosed: a known process with one of its targets, or a fitted estimator with one target.

Theorem 1 splits z into a discrete part and the rest, so continuous dimensions of c count as s there. `Subject` speaks
Theorem 1's language: ``c`` are the leading ``split`` latents, ``s`` the others; ``d_c`` keeps the full width of c,
which Theorem 2 uses. An `Extrapolator` is diagnosed through a view: the half of it that answers for the target, with
its latents and its decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import InputError
from offsupport.latent.extrapolator.code import Code
from offsupport.latent.extrapolator.estimator import Extrapolator
from offsupport.latent.networks import mlp
from offsupport.latent.process.draws import Draws
from offsupport.theory.dependence import EXACT, LEARNED
from offsupport.theory.jacobian import Generate
from offsupport.theory.support import QUANTILE, Support, hull_distance, knn_distance, quantile_ball, whitening

HULL_ROWS, HULL_DIMS = 2000, 6


@runtime_checkable
class Fitted(Protocol):
    """A fitted estimator with latent variables; ``decode`` (z -> x) is optional and adds what needs a generator."""

    def latents(self, X: Any) -> tuple[Any, Any]:
        """Return (c_hat, s_hat), one row per sample."""


@dataclass(frozen=True)
class Subject:
    """Everything the measurements need, in double precision.

    Attributes:
        name: What it is, for people.
        draws: The single run behind a known process; None for an estimate.
        g: The generating function (n, d_z) -> (n, d_x), or its estimate; None if there is none.
        d_c: Latents that belong to c; split: those that Theorem 1 takes as c.
        support: The source support of everything after ``split``.
        convention: What ``support`` and distances to it mean, in words.
        c_tgt: (split,) the target's c; s_tgt: the target's other latents.
        others: (K - 1, split) the other values of c.
        z: (n, d_z) source latents.
        tau: Threshold of influence, relative to the largest entry of J.
        reading: What had to be granted to give C finitely many values, in words; empty if nothing.
        nearby: Further distances of the target to the source cloud, by name.
    """

    name: str
    draws: Draws | None
    g: Generate | None
    d_c: int
    split: int
    support: Support
    convention: str
    c_tgt: Tensor
    s_tgt: Tensor
    others: Tensor
    z: Tensor
    tau: float = EXACT
    reading: str = ""
    nearby: tuple[tuple[str, float], ...] = ()

    @property
    def z_tgt(self) -> Tensor:
        """The target's latents (d_z,)."""
        return torch.cat([self.c_tgt, self.s_tgt])


def from_draws(draws: Draws, x_tgt: Tensor | None = None, run: int = 0) -> Subject:
    """Make a subject of one run of a known process.

    Args:
        draws: Runs with at least one target.
        x_tgt: (d_x,) which of the run's targets; None: the first.
        run: Which run.
    """
    process, one = draws.process, _double(draws.select(slice(run, run + 1)))
    at = _which_target(one, x_tgt)
    z_tgt = torch.cat([one.c_tgt[0].flatten(0, 1)[at], one.s_tgt[0].flatten(0, 1)[at]])
    split = process.d_c - process.d_continuous
    if one.embeddings is not None:
        y = int(one.y_tgt[0].flatten()[at])
        others, reading = one.embeddings[0, [1 - y], :split], ""
    elif process.task == "classification":
        y = int(one.y_tgt[0].flatten()[at])
        others = torch.full((1, split), 2.0 * (1 - y), dtype=torch.float64)
        reading = "granting that C is c_tgt and the mean of the other class"
    else:
        others = torch.tensor([0.0, 4.0], dtype=torch.float64)[:, None].expand(2, split)
        reading = "granting that C is c_tgt and the mean c at y = 0 and y = 4"
    return Subject(
        name=f"{process.shift} process, {process.activation} generator, run {one.seeds[0]}",
        draws=one,
        g=lambda z: one.g(z[None])[0],
        d_c=process.d_c,
        split=split,
        support=Support(process.shape, process.radius, process.d_s, process.d_continuous),
        convention=f"the {process.shape} of radius {process.radius:g} the source was cut at",
        c_tgt=z_tgt[:split],
        s_tgt=z_tgt[split:],
        others=others,
        z=torch.cat([one.c[0], one.s[0]], -1),
        reading=reading,
    )


def from_estimator(estimator: Fitted, x_tgt: Any, X: Any, y: Any) -> Subject:
    """Make a subject of a fitted estimator; s_hat is whitened, so distances are in standard deviations of the source.

    Args:
        estimator: Anything with ``latents`` and perhaps ``decode``.
        x_tgt: (d_x,) one target.
        X: (n, d_x) source samples.
        y: (n,) their labels; classes give the values of c, numbers their lowest and highest tenth.
    """
    c, s = (_tensor(part) for part in estimator.latents(X))
    c_tgt, s_tgt = (_tensor(part)[0] for part in estimator.latents(np.asarray(x_tgt).reshape(1, -1)))
    white = whitening(s)
    w, w_tgt = white(s), white(s_tgt[None])[0]
    centres = _centres(c, np.asarray(y))
    own = int((centres - c_tgt).norm(dim=-1).argmin())
    nearby = [("10th nearest source s_hat", float(knn_distance(w_tgt[None], w)[0]))]
    if w.shape[-1] <= HULL_DIMS:
        nearby.append((f"convex hull of {min(len(w), HULL_ROWS)} source s_hat", hull_distance(w_tgt, w[:HULL_ROWS])))
    return Subject(
        name=f"fitted {getattr(estimator, 'name', type(estimator).__name__)}",
        draws=None,
        g=_decoder(estimator, white.back, c.shape[-1]),
        d_c=c.shape[-1],
        split=c.shape[-1],
        support=quantile_ball(w),
        convention=f"the ball that holds {QUANTILE:.1%} of the source's s_hat after whitening",
        c_tgt=c_tgt,
        s_tgt=w_tgt,
        others=centres[torch.arange(len(centres)) != own],
        z=torch.cat([c, w], -1),
        tau=LEARNED,
        reading="granting that C is c_hat of the target and the means of the other classes",
        nearby=tuple(nearby),
    )


def _decoder(estimator: Fitted, back: Callable[[Tensor], Tensor], d_c: int) -> Generate | None:
    decode = getattr(estimator, "decode", None)
    if decode is None:
        return None

    def g(z: Tensor) -> Tensor:
        x: Tensor = decode(torch.cat([z[:, :d_c], back(z[:, d_c:])], -1))
        return x

    return g


def _centres(c: Tensor, y: np.ndarray[Any, Any]) -> Tensor:
    """Mean c_hat of every class; for numbers, of the lowest and the highest tenth."""
    if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
        low, high = np.quantile(y, [0.1, 0.9])
        return torch.stack([c[torch.from_numpy(rows)].mean(0) for rows in (y <= low, y >= high)])
    return torch.stack([c[torch.from_numpy(y == k)].mean(0) for k in np.unique(y)])


def _which_target(one: Draws, x_tgt: Tensor | None) -> int:
    targets = one.x_tgt[0].flatten(0, 1)
    if not len(targets):
        raise InputError("These draws have no target.", "Draw them with distances: draw(process, seeds, [12]).")
    if x_tgt is None:
        return 0
    gaps = (targets - torch.as_tensor(x_tgt, dtype=torch.float64).reshape(-1)).norm(dim=-1)
    if float(gaps.min()) > 1e-5 * (1 + float(targets.norm(dim=-1).max())):
        raise InputError(
            "x_tgt is none of the run's targets.", "Pass a row of draws.x_tgt[run], whose latents are known."
        )
    return int(gaps.argmin())


def _double(draws: Draws) -> Draws:
    mlp = draws.g.mlp
    mlp = replace(mlp, weights=tuple(W.double() for W in mlp.weights), biases=tuple(b.double() for b in mlp.biases))
    values = {field.name: getattr(draws, field.name) for field in fields(draws)}
    values = {k: v.double() for k, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return replace(draws, g=replace(draws.g, mlp=mlp), **values)


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


# What a fitted `Extrapolator` says about the generator: latents and decoder of the half that answers for a target.
#
# Flow: the decoder is the inverse of the flow, with sharp kinks. Manifold: the classes' planes, mixed by the class
# weights. Sparse: x is the decoded code of the trusted columns plus s on the columns the target distrusts; those
# columns are the same for source and target, so s_hat is comparable. Observations are standardised like the source. A
# view depends on the fit and on the one target.


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DenseView:
    """Latents and decoder of the flow, of which ``d_c`` are c_hat."""

    estimator: Extrapolator
    d_c: int
    name: str = "Extrapolator, dense shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat)."""
        model, x = self.estimator.dense_, self.estimator.source_.standardise(X)
        assert model is not None  # noqa: S101 - `view` chose the flow
        c, s = model.latents(x, torch.tensor([self.d_c]))
        return c[0].numpy(), s[0].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] (n, d) to standardised observations: the flow backwards."""
        model = self.estimator.dense_
        assert model is not None  # noqa: S101 - `view` chose the flow
        flows = model.flows
        h = model.basis()[0].to(z) @ z.T
        for layer in range(len(flows.A) - 1, -1, -1):
            if layer < len(flows.rho):
                h = torch.where(h < 0, h * torch.exp(-flows.rho[layer][0].to(z)), h)
            h = torch.linalg.solve(flows.A[layer][0].to(z), h - flows.b[layer][0].to(z))
        x: Tensor = torch.linalg.solve(model.white[0].to(z).T, h).T
        return x


@dataclass(frozen=True)
class ManifoldView:
    """Class weights, coordinates along the class manifolds, and the manifolds' planes."""

    estimator: Extrapolator
    name: str = "Extrapolator, dense shift of class manifolds"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat)."""
        c, s = self.estimator.manifolds_.latents(self.estimator.source_.standardise(X))
        return c[0].numpy(), s[0].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] to standardised observations."""
        classes = self.estimator.source_.n_classes
        return self.estimator.manifolds_.decode(z[:, :classes], z[:, classes:], 0)


@dataclass(frozen=True)
class SparseView:
    """Code of the trusted columns, and how far the distrusted ones are from what it explains.

    Attributes:
        estimator: The fitted estimator.
        moved: (d,) the columns the target distrusts, among those that vary on the source.
        code: Of the other columns.
    """

    estimator: Extrapolator
    moved: Tensor
    code: Code
    name: str = "Extrapolator, sparse shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat); s_hat has one coordinate per distrusted column."""
        x = self.estimator.source_.standardise(X)
        kept = (~self.moved).expand_as(x)
        c_hat = self.code.encode(x, kept)[0, :, : self._d_c()]
        return c_hat.numpy(), (x - self.code.decode(x, kept))[0][:, self.moved].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] to standardised observations."""
        d_c = self._d_c()
        place = torch.eye(len(self.moved), dtype=z.dtype)[self.moved]
        c_hat = functional.pad(z[None, :, :d_c], (0, len(self.moved) - d_c))
        return mlp(_in_double(self.code.decoder), c_hat)[0] + z[:, d_c:] @ place

    def _d_c(self) -> int:
        return int(self.code.used.sum())


def view(estimator: Extrapolator, x_tgt: Any) -> DenseView | ManifoldView | SparseView:
    """Return the estimator in the half it chooses for a target (d_x,)."""
    if estimator.source_.batched:
        raise InputError("A diagnosis is about one run.", "Fit the Extrapolator on (n, d) arrays.")
    explained = estimator.explain(np.asarray(x_tgt).reshape(1, -1))
    found = explained[0] if isinstance(explained, list) else explained
    if found.half == "manifold":
        return ManifoldView(estimator)
    if found.half == "flow":
        return DenseView(estimator, found.d_c)
    chance = torch.from_numpy(found.distrust)[0, estimator.source_.columns]
    moved = chance > 0.5
    if not bool(moved.any()):  # a sparse shift needs a column to have moved: the likeliest one
        moved = chance == chance.max()
    return SparseView(estimator, moved, estimator.code(~moved[None], torch.tensor([found.d_c]), found.d_s))


def source_of(estimator: Extrapolator) -> tuple[Array, Array]:
    """Return the source the estimator was fitted on; columns that do not vary are zero."""
    source = estimator.source_
    X = torch.zeros(source.x.shape[1], source.width, dtype=torch.float64)
    X[:, source.columns] = (source.x * source.scale + source.mean)[0].double()
    if source.classes is not None:
        return X.numpy(), np.asarray(source.classes)[source.y[0].numpy()]
    return X.numpy(), (source.y * source.y_scale + source.y_mean)[0].double().numpy()


def _in_double(params: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().double() for p in params]
