"""The paper's own estimator: a variational auto-encoder trained on the source and the target together.

Objective (appendix on the synthetic experiments): reconstruction, KL on the source, classification on the source from
c_hat, likelihood of c_hat on the target and, for dense shifts, the distance of s_hat on the target.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from offsupport.core.errors import InputError
from offsupport.latent.base import LatentEstimator, finish
from offsupport.latent.inputs import Array, Source
from offsupport.latent.networks import Params, adam, batches, init_mlp, mlp, supervised_loss

LOGVAR_MIN = -10.0  # keeps exp(-logvar) finite when an observation pins its latent


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Vae(LatentEstimator):
    """Variational auto-encoder with the published weights; what the text leaves open is an option."""

    shift: Literal["dense", "sparse"] = "dense"
    """Dense shifts add the distance of s_hat."""
    d_c: int = 4
    """Dimensions of c_hat."""
    d_s: int = 2
    """Dimensions of s_hat."""
    kl: float = 0.01
    """Weight of the KL term; published range 0.1, 0.01, 0.001."""
    reconstruction: float = 0.1
    """Weight of the squared reconstruction error."""
    likelihood: float = 0.1
    """Weight of the target likelihood."""
    distance: float = 0.01
    """Weight of the distance of s_hat on the target."""
    supervised: float | None = None
    """Weight of the label loss; None: 1 for classes, 0.1 for numbers, as published."""
    prior: Literal["normal", "classes"] = "normal"
    """Target likelihood under N(0, I), or under the source's mixture of classes in c_hat."""
    reconstruct_target: bool = True
    """Whether the target is reconstructed as well."""
    target_every: int = 1
    """Steps from one that sees the target to the next."""
    standardise: bool = True
    """Whether the networks see columns of mean 0 and deviation 1, or the units of x."""
    distance_to: Literal["origin", "support"] = "origin"
    """Distance of s_hat to the origin, or to the ball that holds 99.9 % of the source batch."""
    width: int = 32
    """Hidden units per layer."""
    epochs: int = 25
    """Passes over the source."""
    batch_size: int = 256
    """Samples per step; the paper does not state its own."""
    lr: float = 2e-3
    """Step size of Adam."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        if x_tgt is None:
            raise InputError(f"{type(self).__name__} trains on its targets.", "Call fit(X, y, x_tgt).")
        runs, n, d_x = source.x.shape
        d_z, hidden, rng = self.d_c + self.d_s, [self.width] * 3, self._rng("weights")
        self.encoder_ = init_mlp([d_x, *hidden, 2 * d_z], runs, rng, source.x.dtype)
        self.decoder_ = init_mlp([d_z, *hidden, d_x], runs, rng, source.x.dtype)
        self.head_ = init_mlp([self._head_width(), source.n_classes or 1], runs, rng, source.x.dtype)
        noise, step = self._rng("noise"), itertools.count(1)
        seen, target = self._seen(source.x), self._seen(x_tgt)

        def loss(index: Tensor) -> Tensor:
            beside = target if next(step) % self.target_every == 0 else target[:, :0]
            return self._loss(seen.index_select(1, index), source.y.index_select(1, index), beside, noise)

        adam(self._parameters(), loss, self._order(n, x_tgt), self.lr)

    def _order(self, n: int, x_tgt: Tensor) -> Iterator[Tensor]:
        rng = self._rng("order")
        for _ in range(self.epochs):
            yield from batches(n, self.batch_size, 1, rng)
            self._after_epoch(x_tgt)  # the step of its last batch is taken when the next one is asked for

    def _after_epoch(self, x_tgt: Tensor) -> None:
        """Look at the model after a pass over the source; for those who study the fit."""

    def _seen(self, x: Tensor) -> Tensor:
        return x if self.standardise else self.source_.raw(x)

    def _parameters(self) -> Params:
        return [*self.encoder_, *self.decoder_, *self.head_]

    def _head_width(self) -> int:
        return self.d_c

    def _loss(self, x: Tensor, y: Tensor, x_tgt: Tensor, noise: torch.Generator) -> Tensor:
        mu, logvar = self._encode(torch.cat([x, x_tgt], 1))
        z, _ = sample(mu, logvar, noise)
        n = x.shape[1]
        z_src, z_tgt = z[:, :n], z[:, n:]
        seen, decoded = (torch.cat([x, x_tgt], 1), z) if self.reconstruct_target else (x, z_src)
        c_src, c_tgt = z_src[..., : self.d_c], z_tgt[..., : self.d_c]
        loss = self.reconstruction * (mlp(self.decoder_, decoded) - seen).square().sum(-1).mean(1)
        loss = loss + self.kl * gaussian_kl(mu[:, :n], logvar[:, :n]).mean(1)
        loss = loss + self._supervised_weight() * supervised_loss(mlp(self.head_, c_src), y)
        if not x_tgt.shape[1]:
            return loss
        loss = loss - self.likelihood * self._log_prior(c_tgt, c_src, y).mean(1)
        if self.shift == "dense":
            loss = loss + self.distance * self._distance(z_src[..., self.d_c :], z_tgt[..., self.d_c :]).mean(1)
        return loss

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = mlp(self.encoder_, x).chunk(2, -1)
        return mu, logvar.clamp_min(LOGVAR_MIN)

    def _supervised_weight(self) -> float:
        if self.supervised is not None:
            return self.supervised
        return 1.0 if self.source_.task == "classification" else 0.1

    def _log_prior(self, c: Tensor, c_src: Tensor, y: Tensor) -> Tensor:
        """Log density of c (R, m, d_c): standard normal, or diagonal Gaussians of the source's classes, mixed."""
        if self.prior == "normal" or y.is_floating_point():
            return log_standard(c)
        member = torch.nn.functional.one_hot(y, self.source_.n_classes).to(c).mT  # (R, K, n)
        count = member.sum(-1, keepdim=True).clamp_min(1)
        mean = member @ c_src / count
        var = (member @ c_src.square() / count - mean.square()).clamp_min(1e-2)
        terms = (
            log_normal(c[:, :, None], mean[:, None], var.log()[:, None]) + (count[..., 0] / y.shape[1]).log()[:, None]
        )
        mixed: Tensor = terms.logsumexp(-1)
        return mixed

    def _distance(self, s_src: Tensor, s_tgt: Tensor) -> Tensor:
        size = s_tgt.square().sum(-1)
        if self.distance_to == "origin":
            return size
        radius = s_src.detach().norm(dim=-1).quantile(0.999, dim=1, keepdim=True)
        beyond: Tensor = size.clamp_min(1e-12).sqrt() - radius
        return beyond.clamp_min(0).square()

    @torch.no_grad()
    def log_likelihood(self, X: Any, draws: int = 128) -> Array:
        """Return an importance-weighted estimate (Burda et al., 2016) of log p(x) of source samples, in nats.

        The loss weights are a Gaussian decoder in disguise (see ``noise_variance``), so models with different weights
        are compared as densities of the standardised observations.

        Args:
            X: (n, d) samples from the source, or (R, n, d).
            draws: Draws from the posterior per sample; more only raise the estimate.
        """
        x = self._seen(self._ready(X)[1])
        mu, logvar = self._encode(x)
        noise = self._rng("likelihood")
        weights = []
        for _ in range(draws):
            z, e = sample(mu, logvar, noise)
            residual = (mlp(self.decoder_, z) - x) / self.noise_variance**0.5
            decoder = log_standard(residual) - 0.5 * x.shape[-1] * math.log(self.noise_variance)
            weights.append(decoder + self._log_prior_of_source(z) - log_standard(e) + 0.5 * logvar.sum(-1))
        return self._out((torch.stack(weights).logsumexp(0) - math.log(draws)).numpy())

    @property
    def noise_variance(self) -> float:
        """Variance of the Gaussian decoder that the loss weights stand for.

        Dividing ``reconstruction * |x - x_hat|^2 + kl * KL`` by ``kl`` gives a negative evidence bound whose squared
        error has the factor 1 / (2 variance).
        """
        return self.kl / (2 * self.reconstruction)

    def _log_prior_of_source(self, z: Tensor) -> Tensor:
        return log_standard(z)

    def _output(self, x: Tensor) -> Tensor:
        return finish(mlp(self.head_, self._encode(self._seen(x))[0][..., : self.d_c]), self.source_)

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu = self._encode(self._seen(x))[0]
        return mu[..., : self.d_c], mu[..., self.d_c :]


def sample(mu: Tensor, logvar: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw from N(mu, exp(logvar)) and return the standard noise too; all runs share it, so none depends on others."""
    e = torch.randn(mu.shape[1:], generator=noise, dtype=mu.dtype)
    return torch.addcmul(mu, (0.5 * logvar).exp(), e), e


def gaussian_kl(mu: Tensor, logvar: Tensor) -> Tensor:
    """KL(N(mu, exp(logvar)) || N(0, I)), summed over the last axis."""
    return 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(-1)


def log_normal(z: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    """Log density of N(mu, exp(logvar)) at z, summed over the last axis."""
    return -0.5 * ((z - mu).square() * (-logvar).exp() + logvar + math.log(2 * math.pi)).sum(-1)


def log_standard(z: Tensor) -> Tensor:
    """Log density of N(0, I) at z, summed over the last axis."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
