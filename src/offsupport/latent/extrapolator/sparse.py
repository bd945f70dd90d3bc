"""The sparse half of the extrapolator: Theorem 2 made operational.

Find the observed dimensions that only c can explain, and predict from them. A mixture says how well the source explains
what a set of distrusted dimensions leaves; the prediction is a linear regression on those dimensions among the source
samples nearest to the target, where nearness ignores each pair's worst dimensions. Neighbours need no model of where
the influence of s goes, so it may change from sample to sample; the regression removes the bias of their plain vote.

In this order: the density of the source (`Mixture`), sets of distrusted dimensions weighed by it (`weigh`), the search
for them where there are too many to weigh all (`Beam`), what the sets say for and against a sparse shift (`log_odds`),
and the model that predicts (`SparseModel`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.inputs import Source

# Full-covariance Gaussian mixtures for R runs at once, with every marginal in closed form.
#
# The E-step and the M-step are one matrix product each, with the features [1, x, x x'] of the samples.


MOST_ENTRIES = 2_000_000  # of the largest tensor while marginals are computed


@dataclass(frozen=True)
class Mixture:
    """R Gaussian mixtures.

    Attributes:
        log_weight: (R, K); mean: (R, K, d); precision: (R, K, d, d); log_det: (R, K) of the precision.
    """

    log_weight: Tensor
    mean: Tensor
    precision: Tensor
    log_det: Tensor

    def select(self, runs: Tensor) -> Mixture:
        """Return the mixtures of some of the runs."""
        return Mixture(self.log_weight[runs], self.mean[runs], self.precision[runs], self.log_det[runs])

    def log_density(self, x: Tensor, masks: Tensor) -> Tensor:
        """Return the log density of the dimensions that a mask keeps.

        The marginal over the kept dimensions K has log det Sigma_KK = log det Sigma + log det P_MM, and its quadratic
        form is the least of the full one over x_M, so a mask costs a solve of the size of what it hides.

        Args:
            x: (R, m, d) samples.
            masks: (S, d) booleans, true where a dimension is hidden; all rows hide the same number.

        Returns:
            (R, m, S) log densities.
        """
        gap = x.double()[:, :, None] - self.mean[:, None]  # (R, m, K, d)
        pulled = torch.einsum("rmki,rkij->rmkj", gap, self.precision)
        full = (pulled * gap).sum(-1)
        kept = x.shape[-1] - int(masks[0].sum())
        const = self.log_weight + 0.5 * self.log_det - 0.5 * kept * math.log(2 * math.pi)
        half = const[:, None] - 0.5 * full
        hidden = masks.nonzero()[:, 1].view(len(masks), -1)
        if not hidden.shape[1]:
            return half.logsumexp(-1, keepdim=True).expand(-1, -1, len(masks))
        room = max(1, MOST_ENTRIES // (half.numel() * hidden.shape[1]))
        return torch.cat([self._hide(half, pulled, part) for part in torch.split(hidden, room)], -1)

    def widened(self, x: Tensor, variance: float) -> Tensor:
        """Return the log density (R, m) of x (R, m, d) once independent noise of this variance is added to it."""
        d = x.shape[-1]
        covariance = torch.linalg.inv(self.precision) + variance * torch.eye(d, dtype=self.mean.dtype)
        chol = torch.linalg.cholesky(covariance)  # (R, K, d, d)
        gap = (x.double()[:, None] - self.mean[:, :, None]).mT  # (R, K, d, m)
        solved = torch.linalg.solve_triangular(chol, gap, upper=False)
        const = self.log_weight - chol.diagonal(dim1=-2, dim2=-1).log().sum(-1) - 0.5 * d * math.log(2 * math.pi)
        terms: Tensor = const[..., None] - 0.5 * solved.square().sum(2)
        return terms.logsumexp(1)

    def _hide(self, half: Tensor, pulled: Tensor, hidden: Tensor) -> Tensor:
        """Take the (S, h) ``hidden`` dimensions out of log terms (R, m, K) of all of them."""
        P = self.precision[:, :, hidden[:, :, None], hidden[:, None]]  # (R, K, S, h, h)
        chol = torch.linalg.cholesky(P)
        inverse = torch.linalg.solve_triangular(chol, torch.eye(P.shape[-1], dtype=P.dtype), upper=False)
        solved = torch.einsum("rksij,rmksj->rmksi", inverse, pulled[..., hidden])
        log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # half the log-determinant
        terms: Tensor = half[..., None] + 0.5 * solved.square().sum(-1) - log_det[:, None]
        return terms.logsumexp(2)


def fit_mixture(x: Tensor, components: int, iterations: int, ridge: float, rng: torch.Generator) -> Mixture:
    """Fit by expectation-maximisation from ``components`` random samples as means.

    Args:
        x: (R, n, d) standardised samples.
        components: Gaussians.
        iterations: EM steps; the first half sees a quarter of the samples.
        ridge: Added to the diagonal of every covariance; keeps a singular one positive definite.
        rng: Draws the starting means; the runs share the draw.
    """
    runs, n, d = x.shape
    order = torch.randperm(n, generator=rng)
    x = x[:, order]
    mean = x[:, :components].double()
    covariance = torch.eye(d, dtype=torch.float64).expand(runs, mean.shape[1], d, d) * 0.25
    weight = torch.full(mean.shape[:2], 1 / mean.shape[1], dtype=torch.float64)
    features = _features(x)
    for step in range(iterations):
        part = features if 2 * step >= iterations else features[:, : max(n // 4, min(n, 50 * components))]
        logits = part @ _coefficients(weight, mean, covariance).to(x.dtype).mT  # (R, n, K)
        moments = (logits.softmax(-1).mT @ part).double()
        weight, mean, covariance = _from_moments(moments, d, ridge)
    precision = torch.linalg.inv(covariance)
    return Mixture(weight.log(), mean, precision, torch.linalg.slogdet(precision)[1])


def _features(x: Tensor) -> Tensor:
    """Return [1, x, x x'] flattened, (R, n, 1 + d + d^2)."""
    outer = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x, outer], -1)


def _coefficients(weight: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return what the features are multiplied with to get log(weight) + log N(x; mean, covariance) + const."""
    precision = torch.linalg.inv(covariance)
    linear = torch.einsum("rkij,rkj->rki", precision, mean)
    const = weight.log() + 0.5 * torch.linalg.slogdet(precision)[1] - 0.5 * (linear * mean).sum(-1)
    return torch.cat([const[..., None], linear, -0.5 * precision.flatten(-2)], -1)


def _from_moments(moments: Tensor, d: int, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    count = moments[..., :1].clamp_min(1e-6)
    mean = moments[..., 1 : d + 1] / count
    second = torch.unflatten(moments[..., d + 1 :] / count, -1, (d, d))
    covariance = second - mean[..., :, None] * mean[..., None, :]
    values, vectors = torch.linalg.eigh(covariance)
    covariance = (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT  # rounding may leave a negative variance
    count = count[..., 0]
    return count / count.sum(-1, keepdim=True), mean, covariance + ridge * torch.eye(d, dtype=moments.dtype)


# Which observed dimensions of a target to distrust: sets of them, weighed by how well the source explains the rest.


ENUMERATED = 400  # sets are all weighed up to this many, and searched (`beam`) beyond


@dataclass(frozen=True)
class Weighed:
    """Sets of distrusted dimensions and their posterior.

    Attributes:
        masks: (R, m, S, d) booleans, true where a dimension is distrusted.
        weight: (R, m, S) posterior weights, summing to 1 over S.
        kept_density: (R, m, S) log density of the dimensions each set keeps.
        largest: How many dimensions a set may hold.
    """

    masks: Tensor
    weight: Tensor
    kept_density: Tensor
    largest: int

    def top(self, count: int) -> Weighed:
        """Return the ``count`` likeliest sets of every sample, weights summing to 1 again."""
        weight, index = self.weight.topk(min(count, self.weight.shape[-1]), dim=-1)
        masks = self.masks.gather(2, index[..., None].expand(-1, -1, -1, self.masks.shape[-1]))
        return Weighed(masks, weight / weight.sum(-1, keepdim=True), self.kept_density.gather(2, index), self.largest)

    @property
    def unmoved(self) -> Tensor:
        """The (R, m) log density of all dimensions: of the empty set, which both searches list first."""
        return self.kept_density[..., 0]

    def likeliest(self) -> Tensor:
        """Return the (R, m, d) likeliest set of every sample."""
        return self.top(1).masks[:, :, 0]

    def distrust(self) -> Tensor:
        """Return the (R, m, d) posterior probability that each dimension is off."""
        return (self.masks * self.weight[..., None]).sum(2)


def all_masks(d: int, largest: int) -> list[Tensor]:
    """Return the sets of at most ``largest`` of d dimensions as booleans, one tensor per size."""
    sizes = []
    for size in range(largest + 1):
        rows = torch.tensor(list(itertools.combinations(range(d), size)), dtype=torch.long)
        sizes.append(torch.zeros(len(rows), d, dtype=torch.bool).scatter(1, rows, True))
    return sizes


def set_count(d: int, largest: int) -> int:
    """Return how many sets of at most ``largest`` of d dimensions there are."""
    return sum(math.comb(d, size) for size in range(largest + 1))


def weigh(mixture: Mixture, x: Tensor, largest: int, log_prior: float) -> Weighed:
    """Weigh sets M by p(x_kept) times exp(log_prior) per distrusted dimension.

    All sets are weighed while there are few; otherwise a beam search grows them one dimension at a time, as long as
    larger sets pay, so the cost is of order d * largest at most rather than d choose largest.

    Args:
        mixture: Density of the source.
        x: (R, m, d) samples.
        largest: Size of the largest set.
        log_prior: Log prior odds of a dimension being off, as a density over where it then lies.
    """
    d = x.shape[-1]
    if set_count(d, largest) <= ENUMERATED:
        parts = [(masks, mixture.log_density(x, masks)) for masks in all_masks(d, largest)]
        masks = torch.cat([masks for masks, _ in parts]).expand(*x.shape[:2], -1, -1)
        density = torch.cat([density for _, density in parts], -1)
    else:
        masks, density = beam_search(mixture, x, largest, log_prior)
    return Weighed(masks, (density + log_prior * masks.sum(-1)).softmax(-1), density, largest)


# Beam search for sets of distrusted dimensions, where there are too many to weigh all of them.
#
# Sets grow by one dimension at a time. Hiding a dimension of a Gaussian is one step of elimination in its precision
# matrix, and the pivots on the diagonal give the density without every further dimension at once; so a set costs d^2
# operations per component, whatever its size.


BEAM = 12  # sets per size that are kept and extended
FAR, TWICE = 10.0, 2  # the search ends once the best set is this many nats below a smaller one, at two sizes in a row


@dataclass(frozen=True)
class Beam:
    """Sets of one size for each of N samples, and the mixtures without the dimensions they hide.

    Attributes:
        masks: (N, B, d) booleans, true where a dimension is hidden.
        terms: (N, B, K) log densities of the components over the other dimensions, weights included.
        precision: (N, B, K, d, d) after elimination of the hidden dimensions; pulled: (N, B, K, d) precision times
            deviation from the mean, likewise.
    """

    masks: Tensor
    terms: Tensor
    precision: Tensor
    pulled: Tensor

    def extended(self) -> Tensor:
        """Return the log densities (N, B, K, d) without one more dimension each; of no use where it is hidden."""
        pivot = self.precision.diagonal(dim1=-2, dim2=-1).masked_fill(self.masks[:, :, None], 1.0)
        return self.terms[..., None] + 0.5 * (self.pulled.square() / pivot - pivot.log() + math.log(2 * math.pi))

    def hide(self, parent: Tensor, column: Tensor, terms: Tensor) -> Beam:
        """Return the beam of sets (N, B'), each a parent of this beam and one column more, with their terms."""
        samples, K = torch.arange(len(parent))[:, None], self.terms.shape[-1]
        precision, pulled = self.precision[samples, parent], self.pulled[samples, parent]
        at = column[..., None, None].expand(-1, -1, K, -1)
        row = precision.gather(-2, at[..., None].expand(-1, -1, -1, -1, precision.shape[-1]))[..., 0, :]
        step = row / row.gather(-1, at)
        masks = self.masks[samples, parent].scatter(-1, column[..., None], True)
        precision = precision - step[..., :, None] * row[..., None, :]
        return Beam(masks, terms, precision, pulled - step * pulled.gather(-1, at))


def beam_search(mixture: Mixture, x: Tensor, largest: int, log_prior: float) -> tuple[Tensor, Tensor]:
    """Return sets of at most ``largest`` dimensions (R, m, S, d) and the log densities (R, m, S) of what they keep.

    Samples whose search ended before others' have empty sets of density zero at the end.

    Args:
        mixture: Density of the source.
        x: (R, m, d) samples.
        largest: Size of the largest set.
        log_prior: What a dimension costs when sizes are compared.
    """
    runs, m, d = x.shape
    room = max(1, MOST_ENTRIES // (BEAM * mixture.mean.shape[1] * d * d))
    run, flat = torch.arange(runs).repeat_interleave(m), x.flatten(0, 1)
    parts = [
        _grow(_start(mixture, one, which), largest, log_prior)
        for one, which in zip(torch.split(flat, room), torch.split(run, room), strict=True)
    ]
    most = max(masks.shape[1] for masks, _ in parts)
    masks = torch.cat([functional.pad(masks, (0, 0, 0, most - masks.shape[1])) for masks, _ in parts])
    density = torch.cat([functional.pad(part, (0, most - part.shape[1]), value=-math.inf) for _, part in parts])
    return masks.view(runs, m, most, d), density.view(runs, m, most)


def _start(mixture: Mixture, x: Tensor, run: Tensor) -> Beam:
    """Return the beam of the empty sets of samples (N, d) that belong to runs (N,)."""
    gap = x.double()[:, None] - mixture.mean[run]
    precision = mixture.precision[run]
    pulled = torch.einsum("nki,nkij->nkj", gap, precision)
    const = mixture.log_weight + 0.5 * mixture.log_det - 0.5 * x.shape[-1] * math.log(2 * math.pi)
    terms = const[run] - 0.5 * (pulled * gap).sum(-1)
    masks = torch.zeros(len(x), 1, x.shape[-1], dtype=torch.bool)
    return Beam(masks, terms[:, None], precision[:, None], pulled[:, None])


def _grow(beam: Beam, largest: int, log_prior: float) -> tuple[Tensor, Tensor]:
    """Extend the empty sets size by size, while larger sets pay for some sample."""
    masks, densities = [beam.masks], [beam.terms.logsumexp(-1)]
    best, behind = densities[0][:, 0], torch.zeros(len(beam.masks), dtype=torch.long)
    for size in range(1, largest + 1):
        beam = _next(beam, size)
        masks.append(beam.masks)
        densities.append(beam.terms.logsumexp(-1))
        score = densities[-1].amax(-1) + log_prior * size
        behind = torch.where(score < best - FAR, behind + 1, 0)
        best = best.maximum(score)
        if bool((behind >= TWICE).all()):
            break
    return torch.cat(masks, 1), torch.cat(densities, 1)


def _next(beam: Beam, size: int) -> Beam:
    """Return the likeliest distinct sets that are one dimension larger."""
    terms = beam.extended()
    d = beam.masks.shape[-1]
    density = terms.logsumexp(2).masked_fill(beam.masks, -math.inf).flatten(1)  # (N, B d)
    names = _names(beam.masks).flatten(1).masked_fill(beam.masks.flatten(1), -1)
    index = density.masked_fill(_repeated(names), -math.inf).topk(min(BEAM, d - size + 1)).indices
    parent, column = index // d, index % d
    chosen = terms.mT[torch.arange(len(index))[:, None], parent, column]
    return beam.hide(parent, column, chosen)


def _names(masks: Tensor) -> Tensor:
    """Return a number (N, B, d) for every set and one dimension more, the same for the same set."""
    d = masks.shape[-1]
    names = torch.randint(2**62 // d, (d,), generator=torch.Generator().manual_seed(0))
    return (masks * names).sum(-1, keepdim=True) + names


def _repeated(names: Tensor) -> Tensor:
    """Say which entries of each row came before in it."""
    ordered, order = names.sort(stable=True)
    return torch.zeros_like(names, dtype=torch.bool).scatter(-1, order[:, 1:], ordered.diff(dim=-1) == 0)


# Which kind of shift explains targets better: a few columns that moved, or all of them.
#
# Both hypotheses start from the mixture of the source. Sparse: some set of columns lies anywhere (the flat density
# that weighs sets of distrusted columns), the others are as on the source. Dense: every column is displaced by an
# independent normal amount, of a scale between a quarter and 64 standard deviations. Either grants that half of the
# targets did not move at all, so targets that look like the source speak for neither. Labels are not used.


SCALES = tuple(2.0**power for power in range(-2, 7))


def log_odds(mixture: Mixture, weighed: Weighed, x: Tensor, log_prior: float) -> Tensor:
    """Return the log odds of a sparse against a dense shift for every sample, (R, m).

    Args:
        mixture: Density of the source.
        weighed: The sets of distrusted dimensions of the samples.
        x: (R, m, d) samples.
        log_prior: Log density of where a distrusted dimension lies.
    """
    sparse = sparse_evidence(weighed, log_prior)
    dense = torch.stack([mixture.widened(x, scale**2) for scale in SCALES]).logsumexp(0) - math.log(len(SCALES))
    return torch.logaddexp(sparse, weighed.unmoved) - torch.logaddexp(dense, weighed.unmoved)


def sparse_evidence(weighed: Weighed, log_prior: float) -> Tensor:
    """Return the log evidence (R, m) of moved columns: sizes of sets are equally likely, then sets."""
    size, d, largest = weighed.masks.sum(-1), weighed.masks.shape[-1], weighed.largest
    sets = [math.inf, *(math.log(largest * math.comb(d, count)) for count in range(1, largest + 1))]
    prior = -torch.tensor(sets, dtype=torch.float64)[size]  # no set at all is the other half of the hypothesis
    return (weighed.kept_density + log_prior * size.double() + prior).logsumexp(-1)


@dataclass(frozen=True)
class Look:
    """What the density says about targets, sample by sample; all (R, m).

    Attributes:
        log_odds: Of a sparse against a dense shift.
        moved: Expected number of distrusted dimensions.
        size: Size of the likeliest set of them.
    """

    log_odds: Tensor
    moved: Tensor
    size: Tensor

    def alone(self) -> Look:
        """Return the same with every sample of the only run as a run of its own."""
        return Look(self.log_odds.mT, self.moved.mT, self.size.mT)


# The model: local regressions on the dimensions that are trusted, averaged over the likeliest sets.


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """How the sparse model is fitted; chosen on development seeds."""

    components: int = 40
    """Gaussians of the source density; fewer when samples are few."""
    iterations: int = 30
    """Steps of expectation-maximisation."""
    ridge: float = 1e-3
    """Variance added to every component, in units of the columns' variances."""
    log_prior: float = -4.6
    """Log prior, as a density, of a distrusted dimension: about one in a hundred per standard deviation."""
    sets: int = 4
    """Likeliest sets of distrusted dimensions that are averaged over."""
    neighbours: int = 120
    """Source samples of the local regression; at most a quarter of all."""
    shrink: float = 0.001
    """Ridge of the local regression, relative to the weight of the neighbours."""


@dataclass(frozen=True)
class SparseModel:
    """What is fitted per run, and how it predicts."""

    source: Source
    config: SparseConfig
    largest: int
    mixture: Mixture

    def select(self, runs: Tensor, largest: int) -> SparseModel:
        """Return the model of some of the runs, with sets of at most ``largest`` dimensions."""
        if len(runs) == len(self.source.x):
            return replace(self, largest=largest)
        return SparseModel(self.source.select(runs), self.config, largest, self.mixture.select(runs))

    def by_size(self, d_s: Sequence[int], answer: Callable[[SparseModel, Tensor], Tensor]) -> Tensor:
        """Ask about every run with sets of its own largest size, and stack the answers.

        Args:
            d_s: Largest size of every run.
            answer: Gets the model of the runs that share a size, and which these are; answers run by run.
        """
        sizes, found = torch.tensor(d_s), dict[int, Tensor]()
        for largest in set(d_s):
            runs = (sizes == largest).nonzero()[:, 0]
            found |= zip(runs.tolist(), answer(self.select(runs, largest), runs), strict=True)
        return torch.stack([found[r] for r in range(len(d_s))])

    def weigh(self, x: Tensor) -> Weighed:
        """Weigh sets of distrusted dimensions for standardised samples (R, m, d)."""
        return weigh(self.mixture, x, self.largest, self.config.log_prior)

    def look(self, x: Tensor) -> Look:
        """Say what standardised targets (R, m, d) show of their shift."""
        weighed = self.weigh(x)
        odds = log_odds(self.mixture, weighed, x, self.config.log_prior)
        return Look(odds, weighed.distrust().sum(-1), weighed.likeliest().sum(-1))

    def sizes(self, x: Tensor) -> Tensor:
        """Return the (R, m) sizes of the likeliest sets alone, for targets whose shift is known to be sparse."""
        return self.weigh(x).likeliest().sum(-1)

    def distrust(self, x: Tensor, d_s: Sequence[int]) -> Tensor:
        """Return the (R, m, d) probability that each dimension is off, at most d_s of a run's at a time."""
        return self.by_size(d_s, lambda model, runs: model.weigh(x[runs]).distrust().double())

    def output(self, x: Tensor, d_s: Sequence[int]) -> Tensor:
        """Return probabilities (R, m, K) or standardised predictions (R, m), with at most d_s dimensions off."""
        return self.by_size(d_s, lambda model, runs: model.predict(x[runs]))

    def predict(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K) or standardised predictions (R, m)."""
        source, top = self.source, self.weigh(x).top(self.config.sets)
        values = [fit.value() for fit in self._fits(x, top)]
        mean = (torch.stack(values, 1) * top.weight[..., None].to(x.dtype)).sum(2)
        if source.task == "regression":
            return mean[..., 0].clamp(source.y.amin(1, keepdim=True), source.y.amax(1, keepdim=True))
        floor = 1 / (2 * self._neighbours()[0])  # k neighbours cannot tell a rarer class from none
        return functional.normalize(mean.clamp_min(floor), p=1.0, dim=-1)

    def spread(self, x: Tensor) -> Tensor:
        """Return the predictive standard deviation (R, m) of a regression: of the neighbours and over the sets."""
        top = self.weigh(x).top(self.config.sets)
        weight = top.weight.to(x.dtype)
        both = [torch.cat([fit.value(), fit.variance()], -1) for fit in self._fits(x, top)]
        value, inner = torch.stack(both, 1).unbind(-1)
        mean = (value * weight).sum(2, keepdim=True)
        return ((inner + (value - mean).square()) * weight).sum(2).sqrt()

    def _fits(self, x: Tensor, top: Weighed) -> Iterator[LocalFit]:
        """Yield the regressions of one sample per run at a time, which keeps the table of differences small."""
        labels = self.source.y[..., None]
        if self.source.task == "classification":
            labels = functional.one_hot(self.source.y, self.source.n_classes)
        near, shrink = self._neighbours(), self.config.shrink
        for j in range(x.shape[1]):
            yield local_linear(self.source.x, labels.to(x.dtype), x[:, j], ~top.masks[:, j], near, shrink)

    def _neighbours(self) -> tuple[int, int]:
        """Return how many neighbours there are and how many dimensions decide who they are."""
        _, n, d = self.source.x.shape
        return max(2, min(self.config.neighbours, n // 4)), max(1, d - self.largest)


def fit_sparse(
    source: Source, largest: int, config: SparseConfig, rng: Callable[[str], torch.Generator]
) -> SparseModel:
    """Fit the density of the source."""
    _, n, d = source.x.shape
    components = max(1, min(config.components, n // (4 * d)))
    mixture = fit_mixture(source.x, components, config.iterations, config.ridge, rng("mixture"))
    return SparseModel(source, config, largest, mixture)


@dataclass(frozen=True)
class LocalFit:
    """S regressions around one target per run: solution (R, S, 1 + d, q), and what they were fitted to.

    Attributes:
        design: (R, S, k, 1 + d); labels: (R, 1, k, q); weight: (R, k).
    """

    solution: Tensor
    design: Tensor
    labels: Tensor
    weight: Tensor

    def value(self) -> Tensor:
        """Return the (R, S, q) predictions."""
        return self.solution[:, :, 0].to(self.design.dtype)

    def variance(self) -> Tensor:
        """Return the (R, S, q) weighted variances of the neighbours about the regressions."""
        residual = self.labels - (self.design.double() @ self.solution).to(self.labels.dtype)
        weight = (self.weight / self.weight.sum(-1, keepdim=True))[:, None, :, None]
        return (residual.square() * weight).sum(2)


def local_linear(
    x: Tensor, labels: Tensor, target: Tensor, kept: Tensor, neighbours: tuple[int, int], shrink: float
) -> LocalFit:
    """Regress labels on the kept dimensions around one target per run.

    Args:
        x: (R, n, d) source samples.
        labels: (R, n, q) what is predicted.
        target: (R, d) samples to predict for.
        kept: (R, S, d) booleans: the dimensions each of S regressions may use.
        neighbours: How many neighbours, and how many best-matching dimensions their distance counts.
        shrink: Ridge on the slopes, relative to the total weight.
    """
    gap = x - target[:, None]
    distance, index = trimmed_sum(gap.square(), neighbours[1]).topk(neighbours[0], largest=False)
    reach = distance[:, -1:].clamp_min(1e-12)
    weight = (1 - (distance / reach) ** 1.5) ** 3 + 1e-3  # tricube in the distance, not its square
    near = gap.gather(1, index[..., None].expand(-1, -1, gap.shape[-1])) / reach.sqrt()[..., None]
    design = torch.cat([torch.ones_like(near[..., :1]), near], -1)[:, None].repeat(1, kept.shape[1], 1, 1)
    design[..., 1:] *= kept[:, :, None].to(x.dtype)
    weighted = (design * weight[:, None, :, None]).mT
    gram = (weighted @ design).double()
    slopes = torch.ones(gram.shape[-1], dtype=torch.float64).index_fill(0, torch.tensor(0), 0.0)
    gram = gram + shrink * weight.sum(1).double()[:, None, None, None] * torch.diag(slopes)
    near_labels = labels.gather(1, index[..., None].expand(-1, -1, labels.shape[-1]))[:, None]
    solution: Tensor = torch.linalg.solve(gram, (weighted @ near_labels).double())
    return LocalFit(solution, design, near_labels, weight)


def trimmed_sum(gaps: Tensor, kept: int) -> Tensor:
    """Return the sum of the ``kept`` smallest entries of the last axis."""
    return gaps.topk(kept, dim=-1, largest=False).values.sum(-1)
