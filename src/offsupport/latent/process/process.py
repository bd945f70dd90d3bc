"""Data-generating processes of the paper's synthetic study: z = [c, s], x = g(z), y from c alone, targets off support.

What the paper leaves open is a field of `Process`; `preset` names the published set-up and one that satisfies every
assumption of the theorem it belongs to. `draws.draw` draws runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, nearest
from offsupport.latent.process.generator import Activation, Weights

Shift = Literal["dense", "sparse"]
Task = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One synthetic set-up; the defaults are those of the reported tables."""

    shift: Shift = "dense"
    """Whether s may influence every observed dimension or only d_s of them."""
    task: Task = "classification"
    """Classification: y in {0, 1}, c | y ~ N(2y, I). Regression: y ~ U(0, 4), c | y ~ N(y, I)."""
    d_c: int = 4
    """Dimensions of the invariant variable."""
    d_s: int = 2
    """Dimensions of the changing variable."""
    d_h: int | None = None
    """Sparse: dimensions c is mapped to before s enters. None: d_c, or 2 d_c when the influence varies."""
    n_source: int = 10_000
    """Labelled source samples per run."""
    embedding: Literal["sample", "fixed"] = "sample"
    """Classification: a fresh c per sample, or one c per class and run (finite C, as Theorem 1 assumes)."""
    d_continuous: int = 0
    """Trailing dimensions of c that carry no label, N(0, I) per sample; they join s in Theorem 1."""
    s_sd: float = 1.0
    """Standard deviation of s on the source before truncation."""
    radius: float = 3.0
    """Radius of the source support of s (half the side of a box)."""
    shape: Literal["ball", "box"] = "ball"
    """Shape of the source support of s."""
    dependence: float = 0.0
    """Mean of s given c: ``dependence`` times (the first d_s coordinates of c minus their mean); 0 is no edge c - s."""
    direction: Literal["uniform", "axis", "diagonal"] = "uniform"
    """Where s_tgt lies at its distance from the origin: anywhere, on the first axis, or on the main diagonal."""
    layers: int = 4
    """Linear layers of the generator."""
    width: int | None = None
    """Hidden width of the generator; None: its output dimension (square layers)."""
    activation: Activation = "leaky"
    """leaky and smooth keep a width-d generator invertible; relu, as published, does not."""
    slope: float = 0.2
    """Slope for negative inputs of the leaky and smooth activations."""
    weights: Weights = "bounded"
    """bounded: singular values within ``condition`` of each other; uniform: U(-1, 1) entries, unit columns, the
    best-conditioned quarter of the draws (about three times as ill-conditioned at width 6); torch: as torch.nn.Linear
    starts, U(-1, 1) / sqrt(fan-in), which shrinks what passes through it."""
    condition: float = 3.0
    """Largest condition number of a ``bounded`` weight matrix; 1 makes them orthogonal."""
    bias: float = 1.0
    """Biases of the generator are U(-bias, bias)."""
    influence: Literal["fixed", "varying"] = "fixed"
    """Sparse: whether the dimensions s influences are the same for every z."""
    permute: bool = False
    """Sparse: shuffle the observed dimensions of each run."""
    noise: float = 0.0
    """Observation noise, as a fraction of each observed dimension's source standard deviation."""

    def __post_init__(self) -> None:
        for name in ("d_c", "d_s", "n_source", "layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "It must be at least 1.")
        if not 0 <= self.d_continuous < self.d_c:
            raise ConfigError(f"d_continuous is {self.d_continuous}.", f"It must be from 0 to {self.d_c - 1}.")
        if self.condition < 1 or self.s_sd <= 0 or self.radius <= 0 or self.noise < 0:
            raise ConfigError(
                "condition, s_sd, radius or noise is out of range.",
                "condition is at least 1, s_sd and radius are positive, noise is not negative.",
            )
        if not 0 < self.slope <= 1:
            raise ConfigError(f"slope is {self.slope}.", "It must be above 0 and at most 1.")
        if self.shift == "sparse" and not self.d_s <= self.hidden:
            raise ConfigError(
                f"d_h is {self.hidden}, fewer than the {self.d_s} dimensions s is added to.", "Raise d_h."
            )

    @property
    def hidden(self) -> int:
        """Dimensions of h = MLP(c) in the sparse generator."""
        return self.d_h or (2 * self.d_c if self.influence == "varying" else self.d_c)

    @property
    def d_z(self) -> int:
        """Latent dimensions."""
        return self.d_c + self.d_s

    @property
    def d_x(self) -> int:
        """Observed dimensions."""
        if self.shift == "dense":
            return self.d_z
        return self.hidden if self.influence == "varying" else self.hidden + self.d_s

    def in_support(self, s: Tensor) -> Tensor:
        """Say which s (..., d_s) lie in the source support."""
        size = s.norm(dim=-1) if self.shape == "ball" else s.abs().amax(-1)
        return size <= self.radius


_PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "table": {"dense": {}, "sparse": {}},
    "paper": {"dense": {"activation": "relu"}, "sparse": {"activation": "relu"}},
    "assumptions": {
        "dense": {"activation": "smooth", "embedding": "fixed"},
        "sparse": {"activation": "smooth", "d_h": 9},
    },
}


def preset(name: str, shift: Shift = "dense", **changes: Any) -> Process:
    """Return a named set-up: ``table`` (the defaults), ``paper`` (as published) or ``assumptions`` (the theorem holds).

    Args:
        name: Which set-up.
        shift: ``dense`` or ``sparse``.
        **changes: Fields of `Process` to set differently.
    """
    if name not in _PRESETS:
        raise ConfigError(f"Unknown process preset {name!r}.", nearest(name, _PRESETS))
    if shift not in _PRESETS[name]:
        raise ConfigError(f"Unknown shift {shift!r}.", nearest(shift, _PRESETS[name]))
    return build(Process, {"shift": shift, **_PRESETS[name][shift], **changes}, f"process preset {name!r}")
