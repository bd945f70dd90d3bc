"""Pure mathematics, without state: entropies, Gaussians, moments, contrast, distillation, sparsity, proportions.

Tensors in, tensors out; no networks, no options, nothing remembered. What a method's paper writes as a formula stands
here once, under the paper's letters, where it can be tested against a plain loop.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = [
    "Loss",
    "Moments",
    "as_rows",
    "coral",
    "distillation_loss",
    "effective_rank",
    "entropy",
    "gaussian_kl",
    "marginal_entropy",
    "mean_and_covariance",
    "mean_gap",
    "mean_prediction",
    "mutual_information",
    "nt_xent",
    "self_training_loss",
    "soft_threshold",
    "symmetric_cross_entropy",
    "symmetric_diagonal_kl",
    "symmetric_gaussian_kl",
    "uncertainty",
    "update_class_moments",
    "update_moments",
    "view_contrast",
    "wilson",
]

# Entropies of predictions, from logits throughout: softmax first and log after it would lose small probabilities.


def as_rows(logits: Tensor) -> Tensor:
    """Flatten dense logits (N, K, *positions) to one row per position, (N * positions, K); rows stay as they are.

    Example:
        >>> import torch
        >>> as_rows(torch.zeros(2, 3, 4, 5)).shape
        torch.Size([40, 3])
    """
    return logits if logits.dim() == 2 else logits.movedim(1, -1).flatten(0, -2)


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) in nats, over dimension 1: (N, K, ...) to (N, ...).

    Example:
        >>> import torch
        >>> entropy(torch.zeros(1, 4)).exp().round(decimals=4)
        tensor([4.])
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


Loss = Literal["entropy", "come"]
"""What methods that make predictions certain minimise; see :func:`uncertainty`."""


def uncertainty(logits: Tensor, loss: Loss = "entropy") -> Tensor:
    """Return for each sample what a method of certain predictions minimises, over dimension 1: (N, K, ...) to (N, ...).

    ``entropy`` is that of softmax(logits). ``come`` (Zhang et al., 2025) is the entropy of an opinion: beliefs
    exp(x_k) / S and an uncertainty K / S beside them, with S = sum exp(x_k) + K. The length of x = logits is held where
    it is, so that a step makes an opinion certain by its direction and not by larger logits.
    """
    if loss == "entropy":
        return entropy(logits)
    length = logits.norm(dim=1, keepdim=True)
    x = logits * (length.detach() / length.clamp(min=torch.finfo(logits.dtype).tiny))
    # In log space, with the uncertainty as one more class of evidence K: exp(x) may overflow.
    doubt = torch.full_like(x[:, :1], math.log(logits.shape[1]))
    return entropy(torch.cat([x, doubt], 1))


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction of the rows (N, K): high when the batch uses all classes."""
    log_p_bar = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(log_p_bar.exp() * log_p_bar).sum()


def mutual_information(logits: Tensor) -> Tensor:
    """Batch estimate of the information between input and label: H(p_bar) - mean H(p_i), never below zero.

    It is identically zero, with zero gradient, on copies of one sample.
    """
    return marginal_entropy(logits) - entropy(logits).mean()


# Gaussians in closed form: divergences by Cholesky factors, and moments that follow a stream.


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and covariance of a stream of vectors, and how many have been seen.

    Args:
        mean: (..., D)
        cov: (..., D, D), divided by the number of vectors rather than one less.
        count: How many vectors went in, a scalar.
    """

    mean: Tensor
    cov: Tensor
    count: Tensor

    @staticmethod
    def none(dim: int, like: Tensor) -> Moments:
        """Return the moments of nothing, all zero, with the type and device of ``like``."""
        return Moments(like.new_zeros(dim), like.new_zeros(dim, dim), like.new_zeros(()))

    def detach(self) -> Moments:
        """Return the values without their graph."""
        return Moments(self.mean.detach(), self.cov.detach(), self.count.detach())


def update_moments(moments: Moments, z: Tensor, n_max: float = math.inf) -> Moments:
    """Let moments follow the vectors ``z`` (N, D), which count as at least 1 / ``n_max`` each (Su et al., 2022).

    With n_max = inf the result is the mean and covariance of all vectors seen. Gradients flow through ``z``; detach the
    result before it becomes the start of the next update.

    Example:
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> after = update_moments(Moments.none(1, like=z), z)
        >>> after.mean.item(), after.cov.item(), after.count.item()
        (2.0, 1.0, 2.0)
    """
    count = moments.count + len(z)
    # A batch beyond the window is its own window: with a larger weight than its share it would overshoot.
    a = 1 / count.clamp(max=max(n_max, len(z)))
    centred = z - moments.mean
    delta = a * centred.sum(0)
    cov = moments.cov + a * (centred.T @ centred - len(z) * moments.cov) - torch.outer(delta, delta)
    return Moments(moments.mean + delta, cov, count)


def cholesky(cov: Tensor) -> Tensor:
    """Return the lower Cholesky factor of covariances (..., D, D); NaN where one is not positive definite."""
    # NaN instead of torch's error: a step that meets one is undone by the guard, the stream goes on.
    factor, failed = torch.linalg.cholesky_ex(cov)
    return torch.where(failed[..., None, None] > 0, math.nan, factor)


def precision(cov: Tensor) -> Tensor:
    """Return the inverse of covariances (..., D, D); NaN where one is not positive definite."""
    return torch.cholesky_inverse(cholesky(cov))


def gaussian_kl(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> Tensor:
    """Kullback-Leibler divergence of N(mean_a, cov_a) from N(mean_b, cov_b), KL(a || b), over leading dimensions.

    Args:
        mean_a: (..., D)
        cov_a: (..., D, D)
        mean_b: (..., D)
        cov_b: (..., D, D)

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1, 1)
        >>> gaussian_kl(zero + 2, one, zero, one)
        tensor(2.)
    """
    factor_a, factor_b = cholesky(cov_a), cholesky(cov_b)
    # tr(B^-1 A) = ||L_B^-1 L_A||_F^2
    whitened: Tensor = torch.linalg.solve_triangular(factor_b, factor_a, upper=False)
    gap: Tensor = torch.linalg.solve_triangular(factor_b, (mean_b - mean_a)[..., None], upper=False)
    squares = whitened.square().sum((-2, -1)) + gap.square().sum((-2, -1))
    return 0.5 * (squares - mean_a.shape[-1]) + _half_log_det(factor_b) - _half_log_det(factor_a)


def symmetric_gaussian_kl(
    mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor, *, precision_a: Tensor | None = None
) -> Tensor:
    """KL(a || b) + KL(b || a): the determinants cancel, so that only the two inverses are needed.

    Args:
        mean_a: (..., D)
        cov_a: (..., D, D)
        mean_b: (..., D)
        cov_b: (..., D, D)
        precision_a: The :func:`precision` of ``cov_a``, where it is known already.
    """
    precision_a, precision_b = precision(cov_a) if precision_a is None else precision_a, precision(cov_b)
    gap = mean_b - mean_a
    traces = (precision_b * cov_a).sum((-2, -1)) + (precision_a * cov_b).sum((-2, -1))
    mahalanobis = (((precision_a + precision_b) @ gap[..., None]).squeeze(-1) * gap).sum(-1)
    return 0.5 * (traces + mahalanobis) - mean_a.shape[-1]


def _half_log_det(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


# Means and covariances per class, all classes at once.


def update_class_moments(
    moments: Moments, z: Tensor, labels: Tensor, n_max: float = math.inf
) -> tuple[Tensor, Moments]:
    """Let the moments of K classes follow the vectors ``z`` (N, D), each its own class (Su et al., 2022).

    Every class follows as :func:`offsupport.functional.update_moments` does. Gradients flow through ``z``.

    Args:
        moments: Of all classes: mean (K, D), covariance (K, D, D) or its diagonal (K, D), count (K,).
        z: Vectors.
        labels: The class of each, (N,).
        n_max: Beyond this many vectors of a class the oldest fade.

    Returns:
        The classes that occur, (P,), in order, and their moments after these vectors.
    """
    present, member, new = labels.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    mean, cov, count = moments.mean[present], moments.cov[present], moments.count[present] + new
    a = 1 / torch.minimum(count, new.clamp(min=n_max))
    centred = z - mean[member]
    delta = a[:, None] * torch.zeros_like(mean).index_add(0, member, centred)
    if cov.dim() == 2:
        second = torch.zeros_like(cov).index_add(0, member, centred.square())
        cov = cov + a[:, None] * (second - new[:, None] * cov) - delta.square()
    else:
        second = outer_sums(centred, member, new)
        cov = cov + a[:, None, None] * (second - new[:, None, None] * cov) - delta[:, :, None] * delta[:, None, :]
    return present, Moments(mean + delta, cov, count)


def outer_sums(z: Tensor, member: Tensor, counts: Tensor) -> Tensor:
    """Return for each of P groups the sum of the outer products of its vectors, (P, D, D).

    The groups are padded to the size of the largest and multiplied in one batch, so that the work grows with the
    vectors rather than with vectors times groups.

    Args:
        z: Vectors (N, D).
        member: The group of each, (N,), in 0..P-1.
        counts: How many each group has, (P,).
    """
    order = member.argsort(stable=True)
    group = member[order]
    place = torch.arange(len(z), device=z.device) - (counts.cumsum(0) - counts)[group]
    padded = z.new_zeros(len(counts), int(counts.max()) if len(counts) else 0, z.shape[1])
    padded = padded.index_put((group, place), z[order])
    return padded.mT @ padded


def symmetric_diagonal_kl(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """KL(a || b) + KL(b || a) of Gaussians with independent coordinates, over leading dimensions.

    Example:
        >>> symmetric_diagonal_kl(torch.zeros(1), torch.ones(1), 2 * torch.ones(1), torch.ones(1))
        tensor(4.)
    """
    gap = (mean_a - mean_b).square()
    return 0.5 * (var_a / var_b + var_b / var_a + gap * (1 / var_a + 1 / var_b)).sum(-1) - mean_a.shape[-1]


# How far the moments of two sets of features are apart, and the moments of a set.


def mean_and_covariance(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) and the unbiased covariance (D, D) of vectors (N, D)."""
    mean = z.mean(0)
    centred = z - mean
    return mean, centred.T @ centred / (len(z) - 1)


def coral(cov_a: Tensor, cov_b: Tensor) -> Tensor:
    """Squared Frobenius distance of two covariances (D, D), over 4 D^2 (Sun and Saenko, 2016).

    Example:
        >>> coral(torch.eye(2), 3 * torch.eye(2))
        tensor(0.5000)
    """
    return (cov_a - cov_b).square().sum() / (4 * cov_a.shape[0] ** 2)


def mean_gap(mean_a: Tensor, mean_b: Tensor) -> Tensor:
    """Mean squared difference of two means (D,): the maximum mean discrepancy under a linear kernel, over D."""
    return (mean_a - mean_b).square().mean()


def pooled(sums: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased covariance from the count, sum and sum of outer products of vectors.

    Leading dimensions are groups, (P,), (P, D) and (P, D, D); products may be diagonals, (P, D). Groups of fewer than
    two vectors get the moments that the formulas allow: a mean of zero without any, a covariance of zero.
    """
    count, first, second = sums
    mean = first / count.clamp(min=1)[..., None]
    diagonal = second.dim() == first.dim()
    square = mean.square() if diagonal else mean[..., :, None] * mean[..., None, :]
    shape = (..., None) if diagonal else (..., None, None)
    cov = (second - count[shape] * square) / (count - 1).clamp(min=1)[shape]
    return mean, torch.where((count > 1)[shape], cov, 0.0)


# Contrast between views: each picks its partner out of the batch.


def nt_xent(z1: Tensor, z2: Tensor, temperature: float = 0.5, base_temperature: float | None = None) -> Tensor:
    """Normalised temperature-scaled cross-entropy of two views (N, D) of the same images (Chen et al., 2020).

    Every one of the 2N views is an anchor: its partner is the positive, all other views but itself are the choice.
    Lengths do not matter. One image alone has no negatives, and its loss is zero.

    Args:
        z1: Projections of the first views.
        z2: Projections of the second views.
        temperature: What cosines are divided by.
        base_temperature: Where given, the loss is scaled by ``temperature / base_temperature``. Published code that
            grew out of SupCon keeps 0.07 there, which scales it by 7.14 at temperature 0.5.

    Example:
        >>> one = torch.eye(2)
        >>> round(float(nt_xent(one, one)), 4)
        0.2395
    """
    z = nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    cosine = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = cosine.diagonal(len(z1)).repeat(2)
    loss = (cosine.masked_fill(itself, -torch.inf).logsumexp(1) - positive).mean()
    return loss if base_temperature is None else temperature / base_temperature * loss


def view_contrast(views: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Cross-entropy of picking the other views of the same sample out of all views, of V sets of vectors (N, D).

    As :func:`nt_xent`, for any number of views: every one is an anchor, and its positives are the V - 1 others of its
    sample, which count alike (Khosla et al., 2020). Lengths do not matter.

    Args:
        views: The vectors of each view.
        temperature: What cosines are divided by.

    Example:
        >>> one = torch.eye(2)
        >>> bool(torch.isclose(view_contrast([one, one], 0.5), nt_xent(one, one, 0.5)))
        True
    """
    z = nn.functional.normalize(torch.cat(list(views)), dim=1)
    cosine = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    sample = torch.arange(len(views[0]), device=z.device).repeat(len(views))
    positive = (sample[:, None] == sample) & ~itself
    log_p = cosine - cosine.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    return -log_p[positive].view(len(z), len(views) - 1).mean()


# Losses between a student's logits (N, K) and a teacher's prediction, which is given as log q (N, K).


def mean_prediction(logits: list[Tensor]) -> Tensor:
    """Return log of the mean of the softmax of several logits (N, K), in log space throughout.

    Example:
        >>> mean_prediction([torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])]).exp()
        tensor([[0.5000, 0.5000]])
    """
    return torch.stack([each.log_softmax(1) for each in logits]).logsumexp(0) - math.log(len(logits))


def flipped_cross_entropy(logits: Tensor, log_q: Tensor) -> Tensor:
    """Mean over samples of -sum_k p_k log q_k: the student's p stands outside, so its own entropy is paid for too."""
    return -(logits.softmax(1) * log_q).sum(1).mean()


def symmetric_cross_entropy(logits: Tensor, others: Tensor) -> Tensor:
    """Return for each sample the mean of the cross-entropies of two predictions, either way, (N,)."""
    log_p, log_q = logits.log_softmax(1), others.log_softmax(1)
    return -0.5 * (log_q.exp() * log_p + log_p.exp() * log_q).sum(1)


def self_training_loss(logits: Tensor, log_q: Tensor) -> Tensor:
    """Flipped cross-entropy minus the entropy of the mean prediction (Tomar et al., 2023, test-time objective).

    It equals mean KL(p || q) minus the mutual information of the batch.
    """
    return flipped_cross_entropy(logits, log_q) - marginal_entropy(logits)


def distillation_loss(logits: Tensor, log_q: Tensor) -> Tensor:
    """Mean over samples of KL(q || p)."""
    return (log_q.exp() * (log_q - logits.log_softmax(1))).sum(1).mean()


# What makes an update small: gates that reach zero, and how many directions are left.


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Return ``x`` moved towards zero by ``threshold``, and zero within it: the proximal map of threshold * |x|_1.

    Example:
        >>> soft_threshold(torch.tensor([-0.5, 0.2, 1.0]), 0.3)
        tensor([-0.2000,  0.0000,  0.7000])
    """
    return x - x.clamp(-threshold, threshold)


def product_singular_values(a: Tensor, b: Tensor) -> Tensor:
    """Return the singular values of ``a @ b`` for tall ``a`` (m, r) and wide ``b`` (r, n), without forming it."""
    # Orthogonal factors leave singular values alone, so those of the small product of the two R are enough.
    core = torch.linalg.qr(a).R @ torch.linalg.qr(b.T).R.T
    values: Tensor = torch.linalg.svdvals(core)
    return values


def effective_rank(singular_values: Tensor) -> float:
    """Return exp of the entropy of the normalised singular values (Roy & Vetterli, 2007); 0 for a zero matrix.

    Example:
        >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    total = singular_values.sum()
    if not total > 0:
        return 0.0
    p = singular_values / total
    return float(torch.special.entr(p).sum().exp())


# Confidence intervals of proportions.


def wilson(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion; (0, 1) without any trial.

    Example:
        >>> low, high = wilson(5, 10)
        >>> round(low, 4), round(high, 4)
        (0.2366, 0.7634)
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    centre = p + z * z / (2 * trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # Exactly 0 and 1 at the ends, where rounding would leave a trace.
    low = (centre - half) / scale if successes > 0 else 0.0
    high = (centre + half) / scale if successes < trials else 1.0
    return low, high
