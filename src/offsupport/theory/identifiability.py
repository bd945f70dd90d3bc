"""How much of the true latents an estimate tells: R^2 tables by kernel ridge regression, accuracy for discrete c.

Definition 3.1 asks that c_hat be a function of c and c a function of c_hat. For continuous c that is R^2(c from c_hat)
and R^2(c_hat from c) near one; R^2(s from c_hat) near zero says that c_hat carries nothing of s. The recipe is that of
von Kuegelgen et al. (2021): standardised inputs and outputs, an RBF kernel, ridge and width chosen on the training
part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

GAMMAS = (1e-2, 10 ** (-2 / 3), 10 ** (2 / 3), 1e2)
ALPHAS = (1.0, 0.1, 0.01, 0.001)
SELECTION = 1000  # rows on which ridge and width are chosen; the cost is cubic


@dataclass(frozen=True)
class R2Table:
    """Held-out R^2, clipped at zero; fields read "target from estimate".

    If c and s are dependent, compare ``s_from_c_hat`` with ``s_from_c``: c itself tells that much of s.
    """

    c_from_c_hat: float
    s_from_c_hat: float
    c_from_s_hat: float
    s_from_s_hat: float
    c_hat_from_c: float
    s_from_c: float

    def to_dict(self) -> dict[str, float]:
        """Return the scores by name."""
        return asdict(self)


def r2_table(c: Tensor, s: Tensor, c_hat: Tensor, s_hat: Tensor, *, n_train: int = 2000, seed: int = 0) -> R2Table:
    """Score estimates of all latents.

    Args:
        c: (n, d_c) true invariant variables.
        s: (n, d_s) true changing variables.
        c_hat: (n, any) estimates of c.
        s_hat: (n, any) estimates of s.
        n_train: Rows to fit on, at most half of them; as many of the rest are scored.
        seed: Which rows those are.
    """
    rows = torch.randperm(len(c), generator=torch.Generator().manual_seed(seed))
    n_train = min(n_train, len(c) // 2)
    train, test = rows[:n_train], rows[n_train : 2 * n_train]
    by_c_hat = _scores(c_hat, (c, s), train, test)
    by_s_hat = _scores(s_hat, (c, s), train, test)
    by_c = _scores(c, (c_hat, s), train, test)
    return R2Table(*by_c_hat, *by_s_hat, *by_c)


def r2(source: Tensor, target: Tensor, train: Tensor, test: Tensor) -> float:
    """Return the held-out R^2 of ``target`` (n, q) from ``source`` (n, p), averaged over columns, clipped at zero.

    Args:
        source: What is known.
        target: What is asked for; columns without spread are left out.
        train: Rows to fit on.
        test: Rows to score.
    """
    return _scores(source, (target,), train, test)[0]


def accuracy(c_hat: Tensor, labels: Tensor, *, n_train: int = 2000, seed: int = 0) -> float:
    """Return the held-out accuracy of a discrete c, ``labels`` (n,), from c_hat (n, any), by kernel ridge."""
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    n_train = min(n_train, len(labels) // 2)
    train, test = rows[:n_train], rows[n_train : 2 * n_train]
    classes, index = torch.unique(labels, return_inverse=True)
    onehot = torch.nn.functional.one_hot(index, len(classes)).double()
    predicted = _predict(c_hat, onehot, train, test).argmax(-1)
    return float((predicted == index[test]).double().mean())


def spread_ratio(c_hat: Tensor, labels: Tensor) -> float:
    """Return the largest within-class over the smallest between-class distance of c_hat; below 1, classes separate."""
    gaps = torch.cdist(c_hat.double(), c_hat.double(), compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels[None]
    return float(gaps[same].max() / gaps[~same].min().clamp_min(1e-300))


def _scores(source: Tensor, targets: tuple[Tensor, ...], train: Tensor, test: Tensor) -> list[float]:
    """Fit all targets together (they share the kernel), score each."""
    joined = torch.cat([target.double() for target in targets], -1)
    predicted = _predict(source, joined, train, test)
    truth = joined[test]
    residual = (truth - predicted).square().sum(0)
    total = (truth - truth.mean(0)).square().sum(0)
    values = torch.where(total > 1e-12, 1 - residual / total.clamp_min(1e-12), torch.nan)
    parts = torch.split(values, [target.shape[-1] for target in targets])
    return [float(part.nanmean().clamp_min(0).nan_to_num(0)) for part in parts]


def _predict(source: Tensor, target: Tensor, train: Tensor, test: Tensor) -> Tensor:
    """Predict the test rows by kernel ridge; width and ridge by leave-one-out error on the first rows of ``train``."""
    X = _standardise(source.double(), train)
    mean, sd = target[train].mean(0), target[train].std(0).clamp_min(1e-12)
    Y = (target - mean) / sd
    gamma, alpha = _select(X[train[:SELECTION]], Y[train[:SELECTION]])
    K = _kernel(X[train], X[train], gamma)
    weights = torch.linalg.solve(K + alpha * torch.eye(len(train), dtype=K.dtype), Y[train])
    predicted: Tensor = mean + sd * (_kernel(X[test], X[train], gamma) @ weights)
    return predicted


def _select(X: Tensor, Y: Tensor) -> tuple[float, float]:
    """Return (gamma, alpha) of the smallest leave-one-out error, given by the kernel's eigenvectors for all alphas."""
    best, choice = float("inf"), (GAMMAS[0], ALPHAS[0])
    for gamma in GAMMAS:
        values, Q = torch.linalg.eigh(_kernel(X, X, gamma))
        inside = Q.T @ Y
        for alpha in ALPHAS:
            shrink = 1 / (values.clamp_min(0) + alpha)
            error = ((Q * shrink) @ inside / (Q.square() @ shrink)[:, None]).square().mean()
            if float(error) < best:
                best, choice = float(error), (gamma, alpha)
    return choice


def _kernel(A: Tensor, B: Tensor, gamma: float) -> Tensor:
    return torch.exp(-gamma * torch.cdist(A, B).square())


def _standardise(X: Tensor, train: Tensor) -> Tensor:
    return (X - X[train].mean(0)) / X[train].std(0).clamp_min(1e-12)
