"""What comes in: arrays checked once, labels encoded, columns standardised, one run or many in the same shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from offsupport.core.errors import ConfigError, InputError

FARTHEST = 1e6
CONSTANT = 1e-12  # a column whose range is below this share of its largest value does not vary
Task = Literal["auto", "classification", "regression"]


@dataclass(frozen=True)
class Source:
    """Labelled source samples of R runs, ready for an estimator.

    Attributes:
        x: (R, n, d) standardised observations of the columns that vary.
        y: (R, n) class indices (long) or standardised targets (float).
        classes: The labels the indices stand for; None for regression.
        columns: Indices of the columns used; constant ones carry nothing and are left out.
        mean, scale: (R, 1, d) standardisation of x, in double precision.
        y_mean, y_scale: (R, 1) standardisation of a regression target, in double precision.
        batched: Whether the caller gave a run axis.
    """

    x: Tensor
    y: Tensor
    classes: np.ndarray[Any, Any] | None
    columns: Tensor
    width: int
    mean: Tensor
    scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    batched: bool

    @property
    def task(self) -> Literal["classification", "regression"]:
        """Whether y is a class or a number."""
        return "regression" if self.classes is None else "classification"

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return 0 if self.classes is None else len(self.classes)

    def select(self, runs: Tensor) -> Source:
        """Return the source of some of the runs."""
        parts = ("x", "y", "mean", "scale", "y_mean", "y_scale")
        return replace(self, **{name: getattr(self, name)[runs] for name in parts})

    def standardise(self, X: Any) -> Tensor:
        """Check observations to predict and return them as (R, m, d), standardised like the source."""
        x = _observations(X, "the samples to predict")
        if x.ndim != (3 if self.batched else 2):
            raise InputError(
                f"The samples to predict have {x.ndim} axes.", f"Pass {3 if self.batched else 2}, as in fit."
            )
        if x.shape[-1] != self.width:
            raise InputError(
                f"The samples to predict have {x.shape[-1]} columns, the source has {self.width}.",
                "Pass the same columns in the same order.",
            )
        x = x if self.batched else x[None]
        if len(x) != len(self.x):
            raise InputError(f"There are {len(x)} runs to predict and {len(self.x)} fitted ones.", "Pass as many.")
        # Beyond a million deviations nothing changes but the exponent, which single precision would overflow.
        return ((x[..., self.columns] - self.mean) / self.scale).clamp(-FARTHEST, FARTHEST).to(self.x.dtype)


def check_source(X: Any, y: Any, task: Task = "auto", dtype: torch.dtype = torch.float32) -> Source:
    """Check a labelled source sample and make it ready.

    Args:
        X: (n, d) observations, or (R, n, d) for R runs at once.
        y: (n,) or (R, n) labels of any kind, or numbers.
        task: ``auto`` takes numbers that are not whole as a regression target, everything else as classes.
        dtype: Floating-point type to compute in; standardising is done in double precision before, so a column
            keeps its digits however far from zero it lies.
    """
    x = _observations(X, "X")
    labels = np.asarray(y)
    if x.ndim not in (2, 3) or labels.shape != tuple(x.shape[:-1]):
        raise InputError(
            f"X has shape {tuple(x.shape)} and y has shape {labels.shape}.",
            "X is (n, d) and y is (n,), or both by run.",
        )
    batched = x.ndim == 3
    x, labels = (x, labels) if batched else (x[None], labels[None])
    width = x.shape[-1]
    columns = ((x.amax(1) - x.amin(1)) > CONSTANT * x.abs().amax(1).clamp_min(1e-30)).all(0).nonzero()[:, 0]
    if not len(columns):
        raise InputError("Every column of X is constant.", "Pass observations that vary.")
    x = x[..., columns]
    if x.shape[1] < max(8, 2 * x.shape[2]):
        raise InputError(
            f"X has {x.shape[1]} samples in {x.shape[2]} varying columns.",
            f"Pass at least {max(8, 2 * x.shape[2])} samples.",
        )
    mean, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True)
    encoded, classes, y_mean, y_scale = _labels(labels, task)
    encoded = encoded.to(dtype) if classes is None else encoded
    x = ((x - mean) / scale).to(dtype)
    return Source(x, encoded, classes, columns, width, mean, scale, y_mean, y_scale, batched)


def _observations(X: Any, what: str) -> Tensor:
    try:
        x = torch.as_tensor(X if isinstance(X, Tensor) else np.asarray(X, dtype=np.float64)).double()
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be read as numbers ({error}).", "Pass an array of floats.") from None
    if not bool(x.isfinite().all()):
        count = int((~x.isfinite()).sum())
        raise InputError(f"{what} has {count} values that are NaN or infinite.", "Fill or drop them first.")
    return x


def _labels(labels: np.ndarray[Any, Any], task: Task) -> tuple[Tensor, np.ndarray[Any, Any] | None, Tensor, Tensor]:
    if task not in ("auto", "classification", "regression"):
        raise ConfigError(f"The task is {task!r}.", "Use 'auto', 'classification' or 'regression'.")
    number = labels.dtype.kind == "f"
    if number and not np.isfinite(labels).all():
        raise InputError("y has values that are NaN or infinite.", "Drop those samples.")
    if task == "regression" or (task == "auto" and number and bool((labels != np.round(labels)).any())):
        y = torch.as_tensor(np.asarray(labels, dtype=np.float64))
        y_mean, y_scale = y.mean(1, keepdim=True), y.std(1, keepdim=True)
        if not bool((y_scale > 0).all()):
            raise InputError("y is constant.", "Pass targets that vary.")
        return (y - y_mean) / y_scale, None, y_mean, y_scale
    classes, index = np.unique(labels, return_inverse=True)
    encoded = torch.as_tensor(index.reshape(labels.shape)).long()
    if len(classes) < 2 or any(len(run.unique()) < len(classes) for run in encoded):
        raise InputError(
            f"y has {len(classes)} class{'es' * (len(classes) > 1)}, not all present in every run.",
            "Pass samples of at least two classes.",
        )
    one = torch.ones(len(encoded), 1, dtype=torch.float64)
    return encoded, classes, 0 * one, one
