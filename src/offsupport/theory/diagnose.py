"""The diagnosis: is this shift recoverable, by which theorem, and if not, which assumption fails by how much.

`diagnose` measures and judges; `Diagnosis` keeps the numbers, and puts them into words at the end of this file.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from offsupport.core.errors import InputError
from offsupport.latent.extrapolator.estimator import Extrapolator
from offsupport.latent.process.draws import Draws, draw
from offsupport.latent.process.process import Process
from offsupport.theory.conditions import Verdict, theorem1, theorem2
from offsupport.theory.measure import Measures, measure
from offsupport.theory.picture import Picture, draw_latent, draw_manifolds, picture
from offsupport.theory.radius import Radius
from offsupport.theory.subject import Fitted, Subject, from_draws, from_estimator, source_of, view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from offsupport.theory.conditions import Verdict


@dataclass(frozen=True)
class Jacobians:
    """Jacobian norms and ranks: ``sampled`` values are attained, ``certified`` ones proven for all z."""

    sampled: float
    sampled_s: float
    certified: float | None
    certified_s: float | None
    lower: float | None
    min_rank: int
    mean_rank: float
    d_z: int


@dataclass(frozen=True)
class Separations:
    """Distance to the nearest other manifold: found on the boundary, proven there, found over the whole support."""

    boundary: float
    certified: float | None
    whole: float


@dataclass(frozen=True)
class Influences:
    """Influence sets at the target, and the range of their sizes over the source latents and the target."""

    s_at_target: tuple[int, ...]
    c_at_target: tuple[int, ...]
    exclusive_at_target: tuple[int, ...]
    s_size: tuple[int, int]
    c_size: tuple[int, int]
    exclusive_size: tuple[int, int]
    contrast: float


@dataclass(frozen=True)
class Dependences:
    """Mechanistic dependence: whether no split was found, the smallest margin, and the weakest split there.

    ``margin`` is None where fewer than two dimensions are moved by c alone.
    """

    connected: bool
    margin: float | None
    witness: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Diagnosis:
    """Everything about one target; print it, or `plot` it.

    Attributes:
        subject: What was diagnosed.
        known: Whether the generating function is known; otherwise all numbers are those of an estimate.
        distance: D(s_tgt, S_src); convention: what support and distance mean here; nearby: other distances.
        jacobian: Norms and ranks; None without a generator, as are the next ones.
        separation: Of the target's manifold from the others.
        radii: The distance Theorem 1 allows, three ways.
        influence: Which dimensions s and c move.
        dependence: Mechanistic dependence.
        theorem1: Verdict and conditions for dense shifts; theorem2: for sparse shifts.
    """

    subject: str
    known: bool
    distance: float
    convention: str
    nearby: tuple[tuple[str, float], ...]
    jacobian: Jacobians | None
    separation: Separations | None
    radii: tuple[Radius, ...]
    influence: Influences | None
    dependence: Dependences | None
    theorem1: Verdict
    theorem2: Verdict
    _picture: Picture

    def __str__(self) -> str:
        return describe(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and verdicts as plain JSON values; infinite ratios become None."""
        values = asdict(self)
        del values["_picture"]
        plain: dict[str, Any] = _plain(values)
        return plain

    def plot(self, ax: Axes | None = None, half: Literal["latent", "observed"] = "latent") -> Figure:
        """Draw support, target, radius and class manifolds.

        Args:
            ax: Draw only one half here; None: a new figure with both halves.
            half: Which one: the plane of s, or a plane of x.
        """
        if ax is not None:
            (draw_latent if half == "latent" else draw_manifolds)(self._picture, ax)
            return cast("Figure", ax.figure)
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        draw_latent(self._picture, left)
        draw_manifolds(self._picture, right)
        figure.suptitle(
            f"{self.subject}   Theorem 1: {self.theorem1.status}   Theorem 2: {self.theorem2.status}", fontsize=11
        )
        return figure


def diagnose(
    process_or_estimator: Process | Draws | Fitted,
    x_tgt: Any = None,
    *,
    X: Any = None,
    y: Any = None,
    run: int = 0,
    distance: float | None = None,
    points: int = 1024,
    seed: int = 0,
) -> Diagnosis:
    """Say whether a target is recoverable, with all numbers the two theorems ask for.

    Args:
        process_or_estimator: A known process, runs of one (from `offsupport.latent.draw`), or a fitted estimator.
        x_tgt: (d_x,) one target; for a process one of its own (default: its first).
        X: Estimators only: (n, d_x) source samples; an `Extrapolator` remembers its own.
        y: Estimators only: (n,) labels or numbers.
        run: Processes only: which run of the draws; of a bare process, the seed of the run.
        distance: Bare processes only: distance of the target's s from the origin; None: twice the support's radius.
        points: Latents at which Jacobians are taken.
        seed: Of samples and searches; the same seed gives the same diagnosis.
    """
    if isinstance(process_or_estimator, Process):
        distance = 2 * process_or_estimator.radius if distance is None else distance
        drawn = draw(process_or_estimator, [run], [distance], dtype=torch.float64)
        subject = from_draws(drawn, x_tgt)
    elif isinstance(process_or_estimator, Draws):
        subject = from_draws(process_or_estimator, x_tgt, run)
    elif isinstance(process_or_estimator, Fitted):
        subject = _fitted(process_or_estimator, x_tgt, X, y)
    else:
        kind = type(process_or_estimator).__name__
        raise InputError(
            f"Cannot diagnose a {kind}.", "Pass a Process, draw(process, [seed], [distance]) or a fitted estimator."
        )
    return _report(subject, measure(subject, points, seed))


def _fitted(estimator: Fitted, x_tgt: Any, X: Any, y: Any) -> Subject:
    if isinstance(estimator, Extrapolator) and x_tgt is not None:
        X, y = source_of(estimator) if X is None else (X, y)
        estimator = view(estimator, x_tgt)
    if x_tgt is None or X is None or y is None:
        raise InputError("An estimator is diagnosed with a target and its source.", "Pass x_tgt, X= and y=.")
    return from_estimator(estimator, x_tgt, X, y)


def _report(subject: Subject, m: Measures) -> Diagnosis:
    return Diagnosis(
        subject=subject.name,
        known=subject.draws is not None,
        distance=m.distance,
        convention=subject.convention,
        nearby=subject.nearby,
        jacobian=_jacobians(subject, m),
        separation=None
        if m.separation is None
        else Separations(m.separation.boundary, m.separation.certified, m.separation.whole),
        radii=m.radii,
        influence=_influences(m),
        dependence=_dependences(m),
        theorem1=theorem1(subject, m),
        theorem2=theorem2(subject, m),
        _picture=picture(subject, m),
    )


def _jacobians(subject: Subject, m: Measures) -> Jacobians | None:
    if m.rank is None:
        return None
    found = next(radius for radius in m.radii if radius.way == "sampled")
    known = m.constants
    return Jacobians(
        sampled=found.J_u,
        sampled_s=found.J_u_s,
        certified=None if known is None else known.upper,
        certified_s=None if known is None else known.upper_s,
        lower=None if known is None else known.lower,
        min_rank=int(m.rank.min()),
        mean_rank=float(m.rank.double().mean()),
        d_z=subject.z.shape[-1],
    )


def _influences(m: Measures) -> Influences | None:
    sets = m.influence
    if sets is None:
        return None
    s, c, exclusive = sets.s, sets.c, sets.exclusive
    return Influences(
        s_at_target=_indices(s[-1]),
        c_at_target=_indices(c[-1]),
        exclusive_at_target=_indices(exclusive[-1]),
        s_size=_sizes(s),
        c_size=_sizes(c),
        exclusive_size=_sizes(exclusive),
        contrast=float(sets.contrast.mean()),
    )


def _dependences(m: Measures) -> Dependences | None:
    found = m.dependence
    if found is None:
        return None
    i = int(found.margin.argmin())
    margin = float(found.margin[i])
    return Dependences(
        connected=bool(found.connected().all()),
        margin=None if math.isinf(margin) else margin,
        witness=(_indices(found.witness[i]), _indices(found.rows[i] & ~found.witness[i])),
    )


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())


def _sizes(masks: Tensor) -> tuple[int, int]:
    sizes = masks.sum(-1)
    return int(sizes.min()), int(sizes.max())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# A diagnosis in words: the verdict first, then the numbers behind it.


_MARKS = {"holds": "+", "fails": "x", "unknown": "?"}


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict as one sentence."""
    verdicts = (diagnosis.theorem1, diagnosis.theorem2)
    holding = [v.theorem for v in verdicts if v.status == "holds"]
    if holding:
        return f"Recoverable: {holding[0]} applies, every assumption is certified."
    reasons = [f"{v.theorem} fails at {', '.join(c.name for c in v.failed())}" for v in verdicts if v.status == "fails"]
    if len(reasons) == len(verdicts):
        start = "No guarantee" if diagnosis.known else "No guarantee, by the fitted model"
        return f"{start}: {'; '.join(reasons)}."
    ending = f" ({reasons[0]})" if reasons else ""
    return f"Undecided: nothing refutes {_open(diagnosis)}, and not every assumption can be certified{ending}."


def describe(diagnosis: Diagnosis) -> str:
    """Return the whole diagnosis as lines of text."""
    lines = [headline(diagnosis), "", f"Target of: {diagnosis.subject}"]
    lines += [f"  off the support by {diagnosis.distance:.4g}; the support is {diagnosis.convention}"]
    lines += [f"  distance to the {name}: {value:.4g}" for name, value in diagnosis.nearby]
    if diagnosis.jacobian is None:
        lines += ["  no decoder: Jacobians, separation, radius, influence and dependence are unknown"]
    lines += _geometry(diagnosis) + _structure(diagnosis)
    for verdict in (diagnosis.theorem1, diagnosis.theorem2):
        lines += ["", *_verdict(verdict)]
    return "\n".join(lines)


def _geometry(diagnosis: Diagnosis) -> list[str]:
    lines = []
    apart = diagnosis.separation
    if apart is not None:
        proven = "" if apart.certified is None else f", proven at least {apart.certified:.4g}"
        lines.append(f"  manifold separation {apart.boundary:.4g} on the boundary{proven}; {apart.whole:.4g} inside")
    if diagnosis.radii:
        lines.append(
            f"  {'Theorem 1 radius':<18}{'J_u':>9}{'radius':>11}{'ratio':>9}{'J_u^s':>11}{'radius':>11}{'ratio':>9}"
        )
    for r in diagnosis.radii:
        left = f"{r.J_u:>9.3g}{r.radius:>11.3g}{r.ratio:>9.3g}"
        lines.append(f"    {r.way:<16}{left}{r.J_u_s:>11.3g}{r.radius_s:>11.3g}{r.ratio_s:>9.3g}")
    return lines


def _structure(diagnosis: Diagnosis) -> list[str]:
    lines = []
    sets, link = diagnosis.influence, diagnosis.dependence
    if sets is not None:
        lines.append(
            f"  s moves {_range(sets.s_size)} dimensions of x, c {_range(sets.c_size)}, c alone "
            f"{_range(sets.exclusive_size)}; contrast {sets.contrast:.3g}"
        )
    if link is not None and link.margin is not None:
        state = "connected" if link.connected else "split"
        lines.append(
            f"  dimensions of c alone: {state}, margin {link.margin:.3g}, weakest split {_split(link.witness)}"
        )
    return lines


def _verdict(verdict: Verdict) -> list[str]:
    width = max(len(c.name) for c in verdict.conditions)
    lines = [f"{verdict.theorem}: {verdict.status}"]
    return lines + [f"  {_MARKS[c.status]} {c.name:<{width}}  {c.evidence}" for c in verdict.conditions]


def _open(diagnosis: Diagnosis) -> str:
    names = [v.theorem for v in (diagnosis.theorem1, diagnosis.theorem2) if v.status == "unknown"]
    return " or ".join(names)


def _range(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} to {size[1]}"


def _split(sides: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return " | ".join("{" + ", ".join(map(str, side)) + "}" for side in sides)
