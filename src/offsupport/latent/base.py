"""What all estimators share: scikit-learn habits around mathematics that always sees R runs."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from offsupport.core.errors import ModelError
from offsupport.core.seeds import derive_seed
from offsupport.latent.inputs import Source, Task, check_source

E = TypeVar("E", bound="LatentEstimator")
Array = np.ndarray[Any, Any]


@dataclasses.dataclass(kw_only=True)
class LatentEstimator(ABC):
    """An estimator of y from x by way of latent variables.

    ``fit`` takes (n, d) arrays, or (R, n, d) for R independent runs at once; ``predict`` and the others then take and
    return a leading run axis too. Results are NumPy arrays.
    """

    task: Task = "auto"
    """``auto`` takes numbers that are not whole as a regression target, everything else as classes."""
    random_state: int = 0
    """Names the random draws; the same value gives the same fit."""

    def fit(self: E, X: Any, y: Any, x_tgt: Any = None) -> E:
        """Fit to labelled source samples.

        Args:
            X: (n, d) observations.
            y: (n,) labels (of any kind) or numbers.
            x_tgt: (m, d) unlabelled targets, for the estimators that train on them; the others ignore it.
        """
        self.source_: Source = check_source(X, y, self.task)
        self.classes_ = self.source_.classes
        with torch.random.fork_rng(devices=[]):
            self._fit(self.source_, None if x_tgt is None else self.source_.standardise(x_tgt))
        return self

    @torch.no_grad()
    def predict(self, X: Any) -> Array:
        """Return a label or number for every sample."""
        source, x = self._ready(X)
        if source.task == "classification":
            assert source.classes is not None  # noqa: S101 - told to the type checker
            return self._out(source.classes[self._output(x).argmax(-1).numpy()])
        return self._out((self._output(x) * source.y_scale + source.y_mean).numpy())

    @torch.no_grad()
    def predict_proba(self, X: Any) -> Array:
        """Return the class probabilities of every sample, columns in the order of ``classes_``."""
        source, x = self._ready(X)
        if source.task == "regression":
            raise ModelError("A regression has no class probabilities.", "Use predict.")
        return self._out(self._output(x).numpy())

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return the estimated invariant and changing variables (c_hat, s_hat) of every sample."""
        _, x = self._ready(X)
        c_hat, s_hat = self._latents(x)
        return self._out(c_hat.numpy()), self._out(s_hat.numpy())

    @abstractmethod
    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        """Fit to standardised samples (R, n, d)."""

    @abstractmethod
    def _output(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K), or standardised predictions (R, m), for standardised samples (R, m, d)."""

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise ModelError(f"{type(self).__name__} has no latent variables.", "Use Extrapolator, Vae or Imsda.")

    def _ready(self, X: Any) -> tuple[Source, Tensor]:
        if not hasattr(self, "source_"):
            raise ModelError(f"This {type(self).__name__} is not fitted.", "Call fit(X, y) first.")
        return self.source_, self.source_.standardise(X)

    def _rng(self, *part: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(type(self).__name__, self.random_state, *part))

    def _out(self, value: Array) -> Array:
        return value if self.source_.batched else value[0]


def finish(output: Tensor, source: Source) -> Tensor:
    """Turn network outputs into probabilities, or drop the last axis of a regression."""
    return output.softmax(-1) if source.task == "classification" else output[..., 0]
