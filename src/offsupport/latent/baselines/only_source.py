"""Only-source: a network from x to y, trained on the source and trusted everywhere."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from offsupport.latent.base import LatentEstimator, finish
from offsupport.latent.inputs import Source
from offsupport.latent.networks import adam, batches, init_mlp, mlp, supervised_loss


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class OnlySource(LatentEstimator):
    """The baseline that does not extrapolate; the paper's encoder shape and optimiser."""

    width: int = 32
    """Hidden units per layer."""
    layers: int = 4
    """Linear layers."""
    epochs: int = 25
    """Passes over the source."""
    batch_size: int = 128
    """Samples per step; the paper does not state its own."""
    lr: float = 2e-3
    """Step size of Adam."""
    standardise: bool = True
    """Whether the network sees columns of mean 0 and deviation 1, or the units of x."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        sizes = [source.x.shape[-1], *[self.width] * (self.layers - 1), source.n_classes or 1]
        self.params_ = init_mlp(sizes, len(source.x), self._rng("weights"), source.x.dtype)
        order = batches(source.x.shape[1], self.batch_size, self.epochs, self._rng("order"))
        x = self._seen(source.x)
        adam(self.params_, lambda i: supervised_loss(mlp(self.params_, x[:, i]), source.y[:, i]), order, self.lr)

    def _output(self, x: Tensor) -> Tensor:
        return finish(mlp(self.params_, self._seen(x)), self.source_)

    def _seen(self, x: Tensor) -> Tensor:
        return x if self.standardise else self.source_.raw(x)
