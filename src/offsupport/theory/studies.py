"""What the two theorems promise, measured on processes that satisfy their assumptions.

`sparse_study`: accuracy and identifiability at distances up to ten times the support's radius. `inside_study`: accuracy
inside the certified radius of Theorem 1, which is each run's own. What happens where the assumptions fail is in `gap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offsupport.latent.draws import Draws, draw, oracle
from offsupport.latent.extrapolator import Extrapolator
from offsupport.latent.process import preset
from offsupport.theory.diagnose import diagnose
from offsupport.theory.identifiability import r2

SPARSE_DISTANCES = (3.5, 9.0, 18.0, 30.0)
"""Up to ten times the radius of the source support."""
FRACTIONS = (0.25, 0.5, 1.0)
"""Of the certified radius, beyond the edge of the support."""
IDENTIFIED = 250  # targets per distance that the R^2 of c is taken over


@dataclass
class Study:
    """Outcomes of some runs.

    Attributes:
        accuracy: By method and column, one accuracy per run.
        scores: By name, one number per run.
        failing: By assumption, in how many runs it fails.
    """

    accuracy: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)

    def add(self, method: str, column: str, right: Tensor) -> None:
        """Append runs: ``right`` (R, m) says which targets were predicted right."""
        self.accuracy.setdefault(method, {}).setdefault(column, []).extend(right.double().mean(-1).tolist())


def sparse_study(seeds: Sequence[int], targets: int) -> Study:
    """Measure the sparse estimator on the sparse ``assumptions`` preset.

    R^2 of c from c_hat is that of `identifiability.r2` over the run's targets at all distances, half of them held out;
    their c_hat come from one call.

    Args:
        seeds: Runs.
        targets: Predicted per run and distance.
    """
    draws = draw(preset("assumptions", "sparse"), seeds, SPARSE_DISTANCES, n_targets=max(IDENTIFIED, targets))
    process = draws.process
    estimator = Extrapolator(shift="sparse", d_c=process.d_c, d_s=process.d_s).fit(draws.x, draws.y)
    study = Study()
    ceiling = oracle(draws, draws.c_tgt)
    for at, distance in enumerate(SPARSE_DISTANCES):
        column, y = f"sparse-{distance:g}", draws.y_tgt[:, at, :targets]
        predicted = torch.as_tensor(estimator.predict(draws.x_tgt[:, at, :targets]))
        study.add("extrapolator", column, predicted == y)
        study.add("given-c", column, ceiling[:, at, :targets] == y)
    c_hat = torch.as_tensor(estimator.latents(draws.x_tgt.flatten(1, 2))[0])
    study.scores["r2_c"] = [_r2(c, found) for c, found in zip(draws.c_tgt.flatten(1, 2), c_hat, strict=True)]
    return study


def inside_study(seeds: Sequence[int], targets: int) -> Study:
    """Measure the dense estimator on the dense ``assumptions`` preset, inside each run's certified radius.

    Args:
        seeds: Runs.
        targets: Predicted per run and fraction of the radius.
    """
    process, study = preset("assumptions", "dense"), Study()
    for seed in seeds:
        verdict = diagnose(process, run=seed, distance=process.radius, points=64)
        radius = next(found.radius_s for found in verdict.radii if found.way == "certified")
        study.scores.setdefault("certified_radius", []).append(radius)
        distances = [process.radius + fraction * radius for fraction in FRACTIONS]
        _add_inside(study, draw(process, [seed], distances, n_targets=targets))
    return study


def _add_inside(study: Study, draws: Draws) -> None:
    estimator = Extrapolator(shift="dense", d_c=draws.process.d_c, d_s=draws.process.d_s).fit(draws.x, draws.y)
    ceiling = oracle(draws, draws.c_tgt)
    for at, fraction in enumerate(FRACTIONS):
        predicted = torch.as_tensor(estimator.predict(draws.x_tgt[:, at]))
        study.add("extrapolator", f"inside-{fraction:g}", predicted == draws.y_tgt[:, at])
        study.add("given-c", f"inside-{fraction:g}", ceiling[:, at] == draws.y_tgt[:, at])


def _r2(c: Tensor, c_hat: Tensor) -> float:
    rows = torch.randperm(len(c), generator=torch.Generator().manual_seed(0))
    half = len(c) // 2
    return r2(c_hat, c, rows[:half], rows[half:])
