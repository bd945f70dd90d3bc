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
from offsupport.latent.vae import Vae, log_normal, sample


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
        z = sample(mu, logvar, noise)
        loss = self.reconstruction * (mlp(self.decoder_, z) - both).square().sum(-1).mean(1)
        flows = self._flows()
        invariant = []
        for domain, part in enumerate((slice(0, n), slice(n, None))):
            z_high, log_det = self._invariant(z[:, part], flows[:, domain])
            invariant.append(z_high)
            zero = torch.zeros_like(z_high)
            posterior = log_normal(z[:, part], mu[:, part], logvar[:, part])
            divergence = (posterior - log_normal(z_high, zero, zero) - log_det).mean(1)
            loss = loss + 0.5 * self.kl * (divergence - self.capacity).abs()
        loss = loss + self._supervised_weight() * supervised_loss(mlp(self.head_, invariant[0]), y)
        if y.is_floating_point():
            return loss
        return loss + self.entropy * gated_entropy(mlp(self.head_, invariant[1]), self.entropy_below)

    def _flows(self) -> Tensor:
        """Return the flow parameters of both domains, (R, 2, d_s, count)."""
        return mlp(self.hyper_, self.domains_).unflatten(-1, (self.d_s, -1))

    def _invariant(self, z: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return z~ = [c, f_u(s)] and log |d z~ / d z|."""
        s_high, log_det = sigmoid_flow(z[..., self.d_c :], flow, self.offsets_, self.flow_units)
        return torch.cat([z[..., : self.d_c], s_high], -1), log_det

    def _output(self, x: Tensor) -> Tensor:
        high, _ = self._invariant(self._encode(x)[0], self._flows()[:, 1])
        return finish(mlp(self.head_, high), self.source_)


def gated_entropy(logits: Tensor, below: float) -> Tensor:
    """Return the (R,) mean entropy of the samples (R, m, K) whose entropy is below a bound; 0 where none is."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    sure = (entropy < below).to(entropy.dtype)
    return (entropy * sure).sum(1) / sure.sum(1).clamp_min(1)
