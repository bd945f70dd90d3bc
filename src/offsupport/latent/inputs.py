"""What comes in: arrays checked once, labels encoded, columns standardised, one run or many in the same shape."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_array, column_or_1d
from torch import Tensor

from offsupport.core.errors import ConfigError, InputError

FARTHEST = 1e6
CONSTANT = 1e-12  # a column whose range is below this share of its largest value does not vary
SQUARABLE = 1e100  # beyond this, or below its inverse, squares leave double precision: moments are taken in other units
MANY = 30  # whole numbers of more different values may well be a quantity: "auto" takes them for classes, and says so
Task = Literal["auto", "classification", "regression"]
Array = np.ndarray[Any, Any]


class SampleError(InputError, ValueError, TypeError):
    """Samples or labels that cannot be used; scikit-learn's tools expect a ValueError or TypeError of an estimator."""


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
        task: Whether y is a class or a number; n_classes: Number of classes, 0 for regression.
    """

    x: Tensor
    y: Tensor
    classes: Array | None
    columns: Tensor
    width: int
    mean: Tensor
    scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    batched: bool
    task: Literal["classification", "regression"] = field(init=False)
    n_classes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", "regression" if self.classes is None else "classification")
        object.__setattr__(self, "n_classes", 0 if self.classes is None else len(self.classes))

    def select(self, runs: Tensor) -> Source:
        """Return the source of some of the runs."""
        parts = ("x", "y", "mean", "scale", "y_mean", "y_scale")
        return replace(self, **{name: getattr(self, name)[runs] for name in parts})

    def raw(self, x: Tensor) -> Tensor:
        """Return standardised samples (R, m, d) in the units they were given in."""
        return (x * self.scale + self.mean).to(x.dtype)

    def standardise(self, X: Any) -> Tensor:
        """Check observations to predict and return them as (R, m, d), standardised like the source."""
        x = observations(X, "the samples to predict")
        if x.ndim != (3 if self.batched else 2):
            raise SampleError(
                f"The samples to predict have {x.ndim} axes.", f"Pass {3 if self.batched else 2}, as in fit."
            )
        if x.shape[-1] != self.width:
            raise SampleError(  # in the words that scikit-learn's own checks look for
                f"X has {x.shape[-1]} features, but predict is expecting {self.width} features as input.",
                "Pass the columns of fit, in their order.",
            )
        x = x if self.batched else x[None]
        if len(x) != len(self.x):
            raise SampleError(f"There are {len(x)} runs to predict and {len(self.x)} fitted ones.", "Pass as many.")
        # Beyond a million deviations nothing changes but the exponent, which single precision would overflow.
        return _scaled(x[..., self.columns], self.mean, self.scale).clamp(-FARTHEST, FARTHEST).to(self.x.dtype)


def check_source(X: Any, y: Any, task: Task = "auto", dtype: torch.dtype = torch.float32) -> Source:
    """Check a labelled source sample and make it ready.

    Args:
        X: (n, d) observations, or (R, n, d) for R runs at once.
        y: (n,) or (R, n) labels of any kind, or numbers.
        task: ``auto`` takes numbers that are not whole as a regression target, everything else as classes.
        dtype: Floating-point type to compute in; standardising is done in double precision before, so a column
            keeps its digits however far from zero it lies.
    """
    x = observations(X, "X")
    labels = _label_array(y, x.ndim)
    if x.ndim not in (2, 3) or labels.shape != tuple(x.shape[:-1]):
        raise SampleError(
            f"X has shape {tuple(x.shape)} and y has shape {labels.shape}.",
            "X is (n, d) and y is (n,), or both by run.",
        )
    batched = x.ndim == 3
    x, labels = (x, labels) if batched else (x[None], labels[None])
    width = x.shape[-1]
    # Halves: the range of columns near the largest number there is would not be finite.
    columns = ((x.amax(1) / 2 - x.amin(1) / 2) > CONSTANT / 2 * x.abs().amax(1)).all(0).nonzero()[:, 0]
    least = max(8, 2 * len(columns))
    if x.shape[1] < least:
        count = f"{x.shape[1]} sample{'s' * (x.shape[1] > 1)}"
        raise SampleError(f"X has {count} in {len(columns)} varying columns.", f"Pass at least {least} samples.")
    if not len(columns):
        raise SampleError("Every column of X is constant.", "Pass observations that vary.")
    x = x[..., columns]
    mean, scale = _moments(x)
    encoded, classes, y_mean, y_scale = _labels(labels, task)
    encoded = encoded.to(dtype) if classes is None else encoded
    x = _scaled(x, mean, scale).to(dtype)
    return Source(x, encoded, classes, columns, width, mean, scale, y_mean, y_scale, batched)


def observations(X: Any, what: str) -> Tensor:
    """Return (n, d) or (R, n, d) observations in double precision; ``what`` names them in errors."""
    X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    try:
        # torch can share neither the memory of reversed views (negative strides) nor that of read-only maps.
        array = check_array(X, dtype=np.float64, order="C", allow_nd=True, ensure_all_finite=False)
        x = torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise SampleError(f"{what} cannot be read as numbers ({error}).", "Pass an array of floats.") from None
    if not bool(x.isfinite().all()):
        count = int((~x.isfinite()).sum())
        raise SampleError(f"{what} has {count} values that are NaN or infinite.", "Fill or drop them first.")
    return x


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation along axis 1, which is kept; of any numbers double precision can hold."""
    largest = x.abs().amax(1, keepdim=True)
    unit = torch.where((largest > SQUARABLE) | (largest < 1 / SQUARABLE), largest, 1.0)
    unit = torch.where(unit > 0, unit, 1.0)
    return (x / unit).mean(1, keepdim=True) * unit, (x / unit).std(1, keepdim=True) * unit


def _scaled(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    # Halves are exact, and keep a difference of two numbers near the largest there is finite.
    return (x / 2 - mean / 2) / (scale / 2)


def _label_array(y: Any, axes: int) -> Array:
    """Return labels as an array, without the second axis of a single column."""
    if y is None:
        raise SampleError("The estimator requires y to be passed, but the target y is None.", "Call fit(X, y).")
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if axes == 2 and labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.dtype.kind == "O":
        kinds = {str if isinstance(label, str) else float for label in labels.flat}
        if len(kinds) > 1:
            raise SampleError("y mixes words and other labels.", "Pass labels of one kind, for example all as strings.")
    return labels


def _labels(labels: Array, task: Task) -> tuple[Tensor, Array | None, Tensor, Tensor]:
    """Return encoded labels, their classes (None: numbers), and mean and scale of the numbers."""
    if task not in ("auto", "classification", "regression"):
        raise ConfigError(f"The task is {task!r}.", "Use 'auto', 'classification' or 'regression'.")
    number = labels.dtype.kind == "f"
    if number and not np.isfinite(labels).all():
        raise SampleError("y has values that are NaN or infinite.", "Drop those samples.")
    whole = not number or bool((labels == np.round(labels)).all())
    if task == "classification" and not whole:
        raise SampleError(
            "Unknown label type: y has numbers that are not whole.", "Use task='regression', or pass classes."
        )
    if task == "regression" or not whole:
        return _numbers(labels)
    try:
        classes, index = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise SampleError(f"y has labels that cannot be compared ({error}).", "Pass labels of one kind.") from None
    if task == "auto" and len(classes) > MANY and labels.dtype.kind in "iuf":
        warnings.warn(
            f"y has {len(classes)} different whole numbers, which task='auto' takes for classes; say "
            "task='regression' if they are a quantity, task='classification' if they are not.",
            UserWarning,
            stacklevel=4,
        )
    encoded = torch.as_tensor(index.reshape(labels.shape)).long()
    if len(classes) < 2 or any(len(run.unique()) < len(classes) for run in encoded):
        raise SampleError(
            f"y has {len(classes)} class{'es' * (len(classes) > 1)}, not all present in every run.",
            "Pass samples of at least two classes.",
        )
    one = torch.ones(len(encoded), 1, dtype=torch.float64)
    return encoded, classes, 0 * one, one


def _numbers(labels: Array) -> tuple[Tensor, None, Tensor, Tensor]:
    try:
        y = torch.as_tensor(np.array(labels, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SampleError(f"y cannot be read as numbers ({error}).", "Use task='classification'.") from None
    if not bool(y.isfinite().all()):
        raise SampleError("y has values that are NaN or infinite.", "Drop those samples.")
    y_mean, y_scale = _moments(y)
    if not bool((y_scale > 0).all()):
        raise SampleError("y is constant.", "Pass targets that vary.")
    return _scaled(y, y_mean, y_scale), None, y_mean, y_scale
