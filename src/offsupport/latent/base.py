"""What all estimators share: scikit-learn habits around mathematics that always sees R runs."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data
from torch import Tensor

from offsupport.core.errors import ModelError
from offsupport.core.seeds import derive_seed
from offsupport.latent.inputs import Array, SampleError, Source, Task, check_source

E = TypeVar("E", bound="LatentEstimator")


class UnfittedError(ModelError, NotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator was asked before it was fitted; scikit-learn's tools expect their own kind of error, too."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LatentEstimator(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator of y from x by way of latent variables, with scikit-learn's protocol.

    ``fit`` takes (n, d) arrays, or (R, n, d) for R independent runs at once; ``predict`` and the others then take and
    return a leading run axis too. Results are NumPy arrays.

    Attributes:
        classes_: The labels, sorted; None for a regression.
        n_features_in_: Columns seen in fit.
        feature_names_in_: Their names, where fit was given a frame with words for names; another order is refused.
        source_: The source as the estimator sees it.
    """

    # Tools ask an estimator whether it is a classifier before they show it any y: ``task`` is the answer.
    task: Task = "auto"
    """``auto`` takes numbers that are not whole as a regression target, everything else as classes."""
    random_state: int | np.random.RandomState | None = 0
    """Names the random draws; the same number gives the same fit. A RandomState is drawn from once per fit."""

    SEEDED_AS: ClassVar[str] = ""  # what draws are named after, if not after the class

    def fit(self: E, X: Any, y: Any, x_tgt: Any = None) -> E:
        """Fit to labelled source samples.

        Args:
            X: (n, d) observations.
            y: (n,) labels (of any kind) or numbers.
            x_tgt: (m, d) unlabelled targets, for the estimators that train on them or look at them.
        """
        self.source_: Source = check_source(X, y, self.task)
        self.classes_ = self.source_.classes
        self._check_columns(X, reset=True)
        self._seed = _seed(self.random_state)
        with torch.random.fork_rng(devices=[]):
            self._fit(self.source_, None if x_tgt is None else self._ready(x_tgt)[1])
        return self

    @torch.no_grad()
    def predict(self, X: Any) -> Array:
        """Return a label or number for every sample."""
        source, x = self._ready(X)
        if source.task == "classification":
            assert source.classes is not None  # noqa: S101 - told to the type checker
            return self._out(source.classes[self._output(x).argmax(-1).numpy()])
        return self._out((self._output(x) * source.y_scale + source.y_mean).numpy())

    @available_if(lambda self: self.task != "regression")  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def predict_proba(self, X: Any) -> Array:
        """Return the class probabilities of every sample, columns in the order of ``classes_``."""
        source, x = self._ready(X)
        if source.task == "regression":
            raise ModelError("A regression has no class probabilities.", "Use predict.")
        return self._out(self._output(x).numpy())

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy of the predicted labels, or R^2 of the predicted numbers; runs are taken together."""
        predicted, truth = np.ravel(self.predict(X)), np.ravel(np.asarray(y))
        measure = r2_score if self.source_.task == "regression" else accuracy_score
        return float(measure(truth, predicted))

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return the estimated invariant and changing variables (c_hat, s_hat) of every sample."""
        _, x = self._ready(X)
        c_hat, s_hat = self._latents(x)
        return self._out(c_hat.numpy()), self._out(s_hat.numpy())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        # "auto" does not know before it has seen y; a fitted estimator does, which is when scorers ask.
        task = self.source_.task if self.task == "auto" and self.__sklearn_is_fitted__() else self.task
        if task == "classification":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        if task == "regression":
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "source_" in vars(self)

    @abstractmethod
    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        """Fit to standardised samples (R, n, d)."""

    @abstractmethod
    def _output(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K), or standardised predictions (R, m), for standardised samples (R, m, d)."""

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise ModelError(f"{type(self).__name__} has no latent variables.", "Use Extrapolator, Vae, VaeSlab or Imsda.")

    def _ready(self, X: Any) -> tuple[Source, Tensor]:
        if not self.__sklearn_is_fitted__():
            raise UnfittedError(f"This {type(self).__name__} is not fitted.", "Call fit(X, y) first.")
        x = self.source_.standardise(X)
        self._check_columns(X, reset=False)
        return self.source_, x

    def _check_columns(self, X: Any, reset: bool) -> None:
        """Remember the number and names of the columns, or compare them with those of fit."""
        if self.source_.batched:  # scikit-learn knows no run axis, and arrays of three axes have no names
            self.n_features_in_ = self.source_.width
            return
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as error:
            raise SampleError(str(error).strip(), "Pass the columns of fit, in their order.") from None

    def _rng(self, *part: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.SEEDED_AS or type(self).__name__, self._seed, *part))

    def _out(self, value: Array) -> Array:
        return value if self.source_.batched else value[0]


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the number that draws are named after: the one given, or one drawn from what is given."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def finish(output: Tensor, source: Source) -> Tensor:
    """Turn network outputs into probabilities, or drop the last axis of a regression."""
    return output.softmax(-1) if source.task == "classification" else output[..., 0]
