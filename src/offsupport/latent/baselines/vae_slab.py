"""The paper's estimator in a form that recovers sparse shifts: codes of targets by optimisation, a slab per column.

Two things of the printed objective (`vae.py`) change, and nothing else has to. The amortised encoder never saw a target
off the support, so the code of a target is found by maximising its density instead. And a Gaussian likelihood lets the
columns that left the source drag the code, so each column is explained by the decoder or by a flat slab, which is s
with a wide prior: no gradient from a far column reaches the code, and the distance drops out. A target whose slab
columns are replaced by what the decoder says of them is on the support again, where the encoder may be asked after all.
The fit sees no target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import ConfigError, nearest
from offsupport.latent.base import LatentEstimator, finish
from offsupport.latent.baselines.vae import LOGVAR_MIN, gaussian_kl, log_normal, sample
from offsupport.latent.inputs import SampleError, Source
from offsupport.latent.networks import Params, adam, batches, init_mlp, mlp, supervised_loss

NOISE_FIRST, NOISE_MIN = -4.0, -9.0  # log-variances of the decoder's noise: where they start, and their floor
GRID = 9  # values of a number y whose mixture is the prior of a target's code: quantiles of the source
CANDIDATES = 4000  # source samples whose codes may be the start of a target's
WARM = 0.05  # share of the fit in which the step size rises
ANNEALED = 0.7  # share of the search in which the noise comes down
Codes = Literal["repaired", "optimised", "encoder"]


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class VaeSlab(LatentEstimator):
    """Variational auto-encoder of the source; the code of a target explains each column, or leaves it to a slab."""

    codes: Codes = "repaired"
    """Where the code of a target comes from: the encoder is asked, its density is maximised, or the encoder is asked
    about the target with the columns repaired that the optimised code leaves to the slab."""
    slab: float = 0.01
    """Density of a standardised column that the decoder does not explain; 0 is a Gaussian likelihood."""
    starts: int = 16
    """Source codes that the search for a target's code begins at."""
    steps: int = 200
    """Steps of Adam of that search."""
    step_size: float = 0.05
    """Their size."""
    widened: float = 30.0
    """The search begins with the noise's variance times this, and ends with the noise."""
    width: int = 32
    """Hidden units per layer of encoder and decoder."""
    head_width: int = 16
    """Hidden units per layer of the label's network."""
    epochs: int = 25
    """Passes over the source."""
    batch_size: int = 64
    """Samples per step."""
    lr: float = 1e-2
    """Largest step size of Adam on the source: a short rise, then half a cosine down to 0."""
    supervised: float = 10.0
    """Weight of the label loss beside the evidence bound; the paper's is ten times that of the reconstruction, too."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        if not 0 <= self.slab < math.inf:
            raise ConfigError(f"slab is {self.slab}.", "It is a density: at least 0, and finite.")
        if self.codes not in get_args(Codes):
            raise ConfigError(f"codes is {self.codes!r}.", nearest(self.codes, get_args(Codes)))
        runs, n, d = source.x.shape
        hidden, rng, dtype = [self.width] * 3, self._rng("weights"), source.x.dtype
        self.encoder_ = init_mlp([d, *hidden, 2 * d], runs, rng, dtype)
        self.decoder_ = init_mlp([d, *hidden, d], runs, rng, dtype)
        self.head_ = init_mlp([d, *[self.head_width] * 2, source.n_classes or 1], runs, rng, dtype)
        self.noise_ = torch.full((runs, 1, d), NOISE_FIRST, dtype=dtype, requires_grad=True)
        self.means_ = torch.zeros(runs, source.n_classes or 2, d, dtype=dtype, requires_grad=True)
        noise = self._rng("noise")
        features = self._features(source.y)

        def loss(index: Tensor) -> Tensor:
            x, y, label = (part.index_select(1, index) for part in (source.x, source.y, features))
            return self._loss(x, y, label, noise)

        order = list(batches(n, self.batch_size, self.epochs, self._rng("order")))
        rates = [self.lr * rate(step / len(order)) for step in range(len(order))]
        adam(self._parameters(), loss, order, rates)
        for parameter in self._parameters():
            parameter.requires_grad_(False)

    def _parameters(self) -> Params:
        return [*self.encoder_, *self.decoder_, *self.head_, self.noise_, self.means_]

    def _loss(self, x: Tensor, y: Tensor, label: Tensor, noise: torch.Generator) -> Tensor:
        """Return the (R,) negative evidence bounds of x given y, with the label loss of the codes."""
        mu, logvar = self._encode(x)
        z, _ = sample(mu, logvar, noise)
        gap = mu - label @ self.means_
        divergence = 0.5 * (gap.square() + logvar.exp() - 1 - logvar).sum(-1)
        variance = self.noise_.clamp_min(NOISE_MIN)
        error = 0.5 * ((mlp(self.decoder_, z) - x).square() * (-variance).exp() + variance).sum(-1)
        return (error + divergence).mean(1) + self.supervised * supervised_loss(mlp(self.head_, z), y)

    def _features(self, y: Tensor) -> Tensor:
        """Return what the prior's mean is linear in, (R, n, q): the class, or 1 and the number."""
        if y.is_floating_point():
            return torch.stack([torch.ones_like(y), y], -1)
        return functional.one_hot(y, self.source_.n_classes).to(self.means_.dtype)

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = mlp(self.encoder_, x).chunk(2, -1)
        return mu, logvar.clamp_min(LOGVAR_MIN)

    def _prior(self) -> tuple[Tensor, Tensor]:
        """Return means (R, v, d) and log weights (R, v) of the mixture that a target's code comes from."""
        source = self.source_
        if source.task == "classification":
            values = torch.arange(source.n_classes).expand(len(source.y), -1)
            weights = functional.one_hot(source.y, source.n_classes).to(self.means_.dtype).mean(1).log()
        else:
            levels = (torch.arange(GRID, dtype=source.y.dtype) + 0.5) / GRID
            values = source.y.quantile(levels, dim=1).T
            weights = torch.full_like(values, -math.log(GRID))
        return self._features(values) @ self.means_, weights

    def log_joint(self, z: Tensor, x: Tensor, widened: float = 1.0) -> Tensor:
        """Return log p(z) + sum over columns of log(N(x_i; decoder_i(z), noise_i) + slab), (R, k).

        Args:
            z: (R, k, d) codes.
            x: (R, k, d) standardised observations.
            widened: Factor of the noise's variance.
        """
        means, weights = self._prior()
        return _log_mixture(z, means, weights) + self._columns(mlp(self.decoder_, z), x, widened).sum(-1)

    def _columns(self, decoded: Tensor, x: Tensor, widened: float) -> Tensor:
        gaussian = self._gaussian(decoded, x, widened)
        return torch.logaddexp(gaussian, torch.full((), self._log_slab(), dtype=x.dtype))

    def _gaussian(self, decoded: Tensor, x: Tensor, widened: float = 1.0) -> Tensor:
        logvar = self.noise_.clamp_min(NOISE_MIN) + math.log(widened)
        return -0.5 * ((decoded - x).square() * (-logvar).exp() + logvar + math.log(2 * math.pi))

    def _log_slab(self) -> float:
        return math.log(self.slab) if self.slab else -math.inf

    def repaired(self, z: Tensor, x: Tensor) -> Tensor:
        """Return x (R, k, d) with each column moved to what the decoder says by the slab's share of it."""
        decoded = mlp(self.decoder_, z)
        trust = (self._gaussian(decoded, x) - self._log_slab()).sigmoid()
        return torch.lerp(decoded, x, trust)

    def _starts(self, x: Tensor) -> Tensor:
        """Return the source codes (R, m, starts, d) under which the widened columns of each target are likeliest."""
        codes = self._encode(self.source_.x[:, :CANDIDATES])[0]
        decoded, count = mlp(self.decoder_, codes), min(self.starts, codes.shape[1])
        chosen = []
        for one in x.unbind(1):  # one sample per run at a time keeps the table of differences small
            best = self._columns(decoded, one[:, None], self.widened).sum(-1).topk(count).indices
            chosen.append(codes.gather(1, best[..., None].expand(-1, -1, codes.shape[-1])))
        return torch.stack(chosen, 1)

    def _search(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (R, m, starts, d) of maximal density, and the posterior weights of the starts."""
        begin = self._starts(x)
        count = begin.shape[2]
        x = x.repeat_interleave(count, 1)
        search = Search(self.steps, self.step_size, self.widened)
        z = search.climb(lambda code, widened: self.log_joint(code, x, widened), begin.flatten(1, 2))
        weights = torch.unflatten(self.log_joint(z, x), 1, (-1, count)).softmax(-1)
        return torch.unflatten(z, 1, (-1, count)), weights

    def _codes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (R, m, k, d) of targets, and their weights (R, m, k)."""
        if self.codes == "encoder":
            return self._encode(x)[0][:, :, None], torch.ones_like(x[..., :1])
        z, weights = self._search(x)
        if self.codes == "optimised":
            return z, weights
        seen = self.repaired(z.flatten(1, 2), x.repeat_interleave(z.shape[2], 1))
        return self._encode(seen)[0].view_as(z), weights

    def _output(self, x: Tensor) -> Tensor:
        z, weights = self._codes(x)
        output = finish(mlp(self.head_, z.flatten(1, 2)), self.source_)
        return torch.einsum("rms,rms...->rm...", weights, torch.unflatten(output, 1, weights.shape[1:]))

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest code, and what the decoder leaves of x: the shift, where a slab took a column."""
        z, weights = self._codes(x)
        best = weights.argmax(-1)[..., None, None].expand(-1, -1, 1, z.shape[-1])
        code = z.gather(2, best)[:, :, 0]
        return code, x - mlp(self.decoder_, code)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ConditionalVae(LatentEstimator):
    """The same for dense shifts with finite C: a class has one c, and the one wins whose best s explains a target."""

    d_c: int = 4
    """Dimensions of the c of a class."""
    d_s: int = 2
    """Dimensions of s."""
    starts: int = 16
    """Source codes that the search for a target's s begins at, for every class."""
    steps: int = 200
    """Steps of Adam of that search."""
    step_size: float = 0.1
    """Their size; s may be far away, and nothing but the decoder holds it back."""
    widened: float = 30.0
    """The search begins with the noise's variance times this, and ends with the noise."""
    width: int = 32
    """Hidden units per layer of encoder and decoder."""
    epochs: int = 25
    """Passes over the source."""
    batch_size: int = 64
    """Samples per step."""
    lr: float = 1e-2
    """Largest step size of Adam on the source."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        if source.task == "regression":
            raise SampleError("A number has no finite set of c.", "Use VaeSlab, or pass classes.")
        runs, n, d = source.x.shape
        hidden, rng, dtype = [self.width] * 3, self._rng("weights"), source.x.dtype
        self.encoder_ = init_mlp([d + source.n_classes, *hidden, 2 * self.d_s], runs, rng, dtype)
        self.decoder_ = init_mlp([self.d_c + self.d_s, *hidden, d], runs, rng, dtype)
        drawn = torch.randn(source.n_classes, self.d_c, generator=rng, dtype=torch.float64).to(dtype)
        self.embeddings_ = drawn.expand(runs, -1, -1).clone().requires_grad_()
        self.noise_ = torch.full((runs, 1, d), NOISE_FIRST, dtype=dtype, requires_grad=True)
        label, noise = functional.one_hot(source.y, source.n_classes).to(dtype), self._rng("noise")

        def loss(index: Tensor) -> Tensor:
            return self._loss(source.x.index_select(1, index), label.index_select(1, index), noise)

        order = list(batches(n, self.batch_size, self.epochs, self._rng("order")))
        parameters = [*self.encoder_, *self.decoder_, self.embeddings_, self.noise_]
        adam(parameters, loss, order, [self.lr * rate(step / len(order)) for step in range(len(order))])
        for parameter in parameters:
            parameter.requires_grad_(False)

    def _loss(self, x: Tensor, label: Tensor, noise: torch.Generator) -> Tensor:
        mu, logvar = self._encode(x, label)
        s, _ = sample(mu, logvar, noise)
        explained = self.log_columns(s, label, x)
        return (gaussian_kl(mu, logvar) - explained).mean(1)

    def _encode(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = mlp(self.encoder_, torch.cat([x, label], -1)).chunk(2, -1)
        return mu, logvar.clamp_min(LOGVAR_MIN)

    def log_columns(self, s: Tensor, label: Tensor, x: Tensor, widened: float = 1.0) -> Tensor:
        """Return log p(x | c of the label, s), (R, k), for s (R, k, d_s), labels (R, k, K) and x (R, k, d)."""
        decoded = mlp(self.decoder_, torch.cat([label @ self.embeddings_, s], -1))
        logvar = self.noise_.clamp_min(NOISE_MIN) + math.log(widened)
        return log_normal(x, decoded, logvar)

    def _output(self, x: Tensor) -> Tensor:
        """Return the classes' shares by max over s of log p(x | c_y, s), (R, m, K)."""
        source = self.source_
        label = functional.one_hot(source.y, source.n_classes).to(x.dtype)
        codes = self._encode(source.x[:, :CANDIDATES], label[:, :CANDIDATES])[0]
        explained = [self._explained(x, codes, y) for y in range(source.n_classes)]
        return (torch.stack(explained, -1) + label.mean(1, keepdim=True).log()).softmax(-1)

    def _explained(self, x: Tensor, codes: Tensor, y: int) -> Tensor:
        """Return max over s of log p(x | c_y, s), (R, m)."""
        label = functional.one_hot(torch.tensor(y), self.source_.n_classes).to(x.dtype)
        count = min(self.starts, codes.shape[1])
        chosen = []
        for one in x.unbind(1):
            fits = self.log_columns(codes, label.expand(*codes.shape[:2], -1), one[:, None], self.widened)
            best = fits.topk(count).indices[..., None]
            chosen.append(codes.gather(1, best.expand(-1, -1, codes.shape[-1])))
        begin, many = torch.cat(chosen, 1), x.repeat_interleave(count, 1)
        labels = label.expand(*begin.shape[:2], -1)
        search = Search(self.steps, self.step_size, self.widened)
        s = search.climb(lambda code, widened: self.log_columns(code, labels, many, widened), begin)
        return torch.unflatten(self.log_columns(s, labels, many), 1, (-1, count)).amax(-1)


@dataclasses.dataclass(frozen=True)
class Search:
    """How a code is improved: steps of Adam, their size, and how wide the noise is to begin with."""

    steps: int
    step_size: float
    widened: float

    def climb(self, log_density: Callable[[Tensor, float], Tensor], begin: Tensor) -> Tensor:
        """Return codes (R, k, d) of higher density; every code has steps of its own, whatever is beside it.

        Args:
            log_density: Of the codes, (R, k), given a factor of the noise's variance.
            begin: Codes to begin with.
        """
        z = begin.clone().requires_grad_()
        optimiser = torch.optim.Adam([z], lr=self.step_size)
        for step in range(self.steps):
            widened = self.widened ** max(0.0, 1 - step / (ANNEALED * self.steps))
            with torch.enable_grad():
                (z.grad,) = torch.autograd.grad(-log_density(z, widened).sum(), z)
            optimiser.step()
        return z.detach()


def rate(t: float) -> float:
    """Return the relative step size of the fit at time t in [0, 1]."""
    return min(1.0, t / WARM) * 0.5 * (1 + math.cos(math.pi * t))


def _log_mixture(z: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """Log density (R, k) of z (R, k, d) under N(means, I), mixed by log weights (R, v)."""
    # |z - m|^2 by a matrix product: components times codes times dimensions would not fit a cache
    cross = torch.baddbmm((weights - 0.5 * means.square().sum(-1))[:, None], z, means.mT)
    mixed: Tensor = cross.logsumexp(-1) - 0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
    return mixed
