"""iMSDA (Kong et al., 2022) with one source domain and the targets as the other.

A variational auto-encoder whose changing latents pass through a domain-dependent monotone flow, s~ = f_u(s); the
classifier sees [c, s~]. With a single target the flow can explain any s_hat, so nothing ties c_hat to its class: the
method is here because the paper compares with it. The reference code's batch normalisation per domain is left out (a
batch of one target has no variance), and predictions use the posterior mean.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.base import finish
from offsupport.latent.baselines.vae import Vae, log_standard, sample
from offsupport.latent.inputs import Source
from offsupport.latent.networks import Params, init_mlp, mlp, supervised_loss

# A deep dense sigmoidal flow (Huang et al., 2018) on each latent dimension: 1 -> units -> 1, strictly increasing.


CLIP = 1e-6  # how close to 0 or 1 a mixture of sigmoids may come before its logit is taken
LEAST = 1e-12  # the smallest derivative of a layer; its logarithm is taken
INVERSE_SOFTPLUS_1 = math.log(math.e - 1)  # slopes are 1 where the parameter is 0


def parameter_count(units: int) -> int:
    """Return the number of parameters of the flow of one dimension."""
    return (3 * units + 1) + (3 * units + units)


def sigmoid_flow(s: Tensor, flow: Tensor, offsets: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Apply the flow to every dimension on its own.

    Args:
        s: (R, n, d) values.
        flow: (R, d, parameter_count(units)) parameters.
        offsets: (R, units, units) offsets that tell the hidden outputs apart, shared by dimensions and domains.
        units: Hidden units.

    Returns:
        The (R, n, d) images and the (R, n) log-determinants.
    """
    runs, n, d = s.shape
    sizes = [units, units, units, 1, units, units, units, units]
    a, b, w, _, a2, b2, w2, u = torch.split(flow.flatten(0, 1)[..., None], sizes, 1)  # each (R d, units, 1)
    a, a2 = (functional.softplus(slopes + INVERSE_SOFTPLUS_1) for slopes in (a, a2))
    mix = (torch.unflatten(w.mT, 0, (runs, d)) + offsets.mT[:, None]).softmax(-1).flatten(0, 1)
    mix2, u = w2.softmax(1).mT, u.softmax(1).mT  # u: a convex mixture of the hidden outputs
    h, gain = _mixture(torch.addcmul(b, a, s.mT.reshape(runs * d, 1, n)), mix, a.mT * mix)
    out, gain2 = _mixture(torch.addcmul(b2, a2, u @ h), mix2, a2.mT * mix2)
    return out.view(runs, d, n).mT, ((u @ gain) * gain2).view(runs, d, n).log().sum(1)


def _mixture(before: Tensor, mix: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Mixture.apply(before, mix, tilt)  # type: ignore[no-untyped-call]
    return both


class _Mixture(torch.autograd.Function):
    """Logits of convex mixtures of sigmoids and their derivatives, with a backward pass of few passes over memory.

    m = mix @ sigmoid(before), t = sigmoid'(before); returns logit(m) and (tilt @ t) / (m (1 - m)), where ``tilt`` is
    ``mix`` times the slopes of the sigmoids by the input. Samples come last: a product with a single row of weights is
    several times slower the other way round.
    """

    @staticmethod
    def forward(ctx: Any, before: Tensor, mix: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid = torch.sigmoid(before)
        t = torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        m = (mix @ sigmoid).clamp_(CLIP, 1 - CLIP)
        inverse = torch.addcmul(m, m, m, value=-1).reciprocal_()
        slope = (tilt @ t).mul_(inverse).clamp_min_(LEAST)
        ctx.save_for_backward(sigmoid, t, mix, tilt, m, inverse, slope)
        return torch.logit(m), slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sigmoid, t, mix, tilt, m, inverse, slope = ctx.saved_tensors
        by_slope = torch.ops.aten.threshold_backward(grads[1], slope, LEAST)  # zero where the slope was clipped
        by_m = torch.addcmul(grads[0], by_slope * slope, m - 0.5, value=2).mul_(inverse)
        by_m = torch.ops.aten.hardtanh_backward(by_m, m, CLIP, 1 - CLIP)  # likewise
        by_t = by_slope.mul_(inverse)
        back = tilt.mT @ by_t
        before = torch.baddbmm(back, mix.mT, by_m).addcmul_(back, sigmoid, value=-2).mul_(t)
        return before, by_m @ sigmoid.mT, by_t @ t.mT


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
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
        for part in (divergence[:, :n], divergence[:, n:])[: 1 + bool(x_tgt.shape[1])]:
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
        high, _ = self._invariant(self._encode(self._seen(x))[0], self._flows()[:, 1])
        return finish(mlp(self.head_, high), self.source_)


def gated_entropy(logits: Tensor, below: float) -> Tensor:
    """Return the (R,) mean entropy of the samples (R, m, K) whose entropy is below a bound; 0 where none is."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    sure = (entropy < below).to(entropy.dtype)
    return (entropy * sure).sum(1) / sure.sum(1).clamp_min(1)
