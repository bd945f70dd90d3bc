"""iMSDA (Kong et al., 2022) with one source domain and the targets as the other.

A variational auto-encoder whose changing latents pass through a domain-dependent monotone flow, s~ = f_u(s); the
classifier sees [c, s~]. With a single target the flow can explain any s_hat, so nothing ties c_hat to its class: the
method is here because the paper compares with it. The reference code's batch normalisation per domain is left out (a
batch of one target has no variance), and predictions use the posterior mean.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from offsupport.latent.base import finish
from offsupport.latent.inputs import Source
from offsupport.latent.networks import Params, init_mlp, mlp, supervised_loss
from offsupport.latent.sigmoid_flow import parameter_count, sigmoid_flow
from offsupport.latent.vae import Vae, log_standard, sample


@dataclasses.dataclass(kw_only=True)
class Imsda(Vae):
    """iMSDA with the loss weights of the paper's synthetic study; u = 0 is the source, u = 1 the target."""

    entropy: float = 0.1
    """Weight of the target's entropy, for targets the model is sure enough of."""
    entropy_below: float = 0.5
    """Entropy, in nats, under which a target is sure enough."""
    capacity: float = 0.0
    """C in |KL - C|; 0 is the plain KL."""
    flow_units: int = 16
    """Hidden units of the flow of one latent dimension."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        runs, rng, dtype = len(source.x), self._rng("flow"), source.x.dtype
        embedding = torch.randn(2, 32, generator=rng, dtype=torch.float64).to(dtype)
        self.domains_ = embedding.expand(runs, -1, -1).clone().requires_grad_()
        self.hyper_ = init_mlp([32, 64, 64, self.d_s * parameter_count(self.flow_units)], runs, rng, dtype)
        small = (torch.rand(self.flow_units, self.flow_units, generator=rng, dtype=torch.float64) * 2 - 1) * 1e-3
        self.offsets_ = small.to(dtype).expand(runs, -1, -1).clone().requires_grad_()
        super()._fit(source, x_tgt)

    def _parameters(self) -> Params:
        return [*super()._parameters(), self.domains_, self.offsets_, *self.hyper_]

    def _head_width(self) -> int:
        return self.d_c + self.d_s

    def _loss(self, x: Tensor, y: Tensor, x_tgt: Tensor, noise: torch.Generator) -> Tensor:
        n = x.shape[1]
        both = torch.cat([x, x_tgt], 1)
        mu, logvar = self._encode(both)
        z, e = sample(mu, logvar, noise)
        loss = self.reconstruction * (mlp(self.decoder_, z) - both).square().sum(-1).mean(1)
        flows = self._flows()
        source, target = (self._invariant(part, flows[:, u]) for u, part in enumerate((z[:, :n], z[:, n:])))
        high, log_det = (torch.cat(pair, 1) for pair in zip(source, target, strict=True))
        posterior = log_standard(e) - 0.5 * logvar.sum(-1)  # log N(z; mu, exp(logvar)) in terms of the noise
        divergence = posterior - log_standard(high) - log_det
        for part in (divergence[:, :n], divergence[:, n:]):
            loss = loss + 0.5 * self.kl * (part.mean(1) - self.capacity).abs()
        output = mlp(self.head_, high)
        loss = loss + self._supervised_weight() * supervised_loss(output[:, :n], y)
        if y.is_floating_point():
            return loss
        return loss + self.entropy * gated_entropy(output[:, n:], self.entropy_below)

    def _flows(self) -> Tensor:
        """Return the flow parameters of both domains, (R, 2, d_s, count)."""
        return torch.unflatten(mlp(self.hyper_, self.domains_), -1, (self.d_s, -1))

    def _invariant(self, z: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return z~ = [c, f_u(s)] and log |d z~ / d z|."""
        s_high, log_det = sigmoid_flow(z[..., self.d_c :], flow, self.offsets_, self.flow_units)
        return torch.cat([z[..., : self.d_c], s_high], -1), log_det

    @property
    def noise_variance(self) -> float:
        """Variance of the Gaussian decoder that the loss weights stand for; each domain has half of the KL weight."""
        return self.kl / (4 * self.reconstruction)

    def _log_prior_of_source(self, z: Tensor) -> Tensor:
        high, log_det = self._invariant(z, self._flows()[:, 0])
        return log_standard(high) + log_det

    def _output(self, x: Tensor) -> Tensor:
        high, _ = self._invariant(self._encode(x)[0], self._flows()[:, 1])
        return finish(mlp(self.head_, high), self.source_)


def gated_entropy(logits: Tensor, below: float) -> Tensor:
    """Return the (R,) mean entropy of the samples (R, m, K) whose entropy is below a bound; 0 where none is."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    sure = (entropy < below).to(entropy.dtype)
    return (entropy * sure).sum(1) / sure.sum(1).clamp_min(1)
