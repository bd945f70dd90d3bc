"""The Extrapolator beside scikit-learn's estimators, on the source and after a shift, also where it loses.

Real tables: three columns of every test sample are pushed 5 to 20 standard deviations off. Made tables: latents c and s
make twelve columns; either s itself is drawn six times as wide (every column moves), or three columns of each sample,
other ones each time, are pushed. Nothing is tuned, and nobody is told what moved. All targets of a set are asked about
together. ``--json`` prints the numbers (`results/extrapolator_tables.json`), else the table of docs/extrapolate.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from offsupport.core.progress import progress
from offsupport.latent import Extrapolator

Array = np.ndarray[Any, Any]
Problem = tuple[Array, Array, Array, Array, Array]
"""Source samples and labels; test samples as they are, and moved; their labels."""
SEEDS = 3
MOST = 100  # test samples of a real table: sets of up to 32 of the digits' 64 columns take a while to search
STORED = Path(__file__).parents[1] / "results" / "extrapolator_tables.json"


def pushed(X: Array, scale: Array, rng: np.random.Generator, same: bool) -> Array:
    """Push three columns of every sample off: the same ones, or other ones each time."""
    moved = X.copy()
    columns = rng.permuted(np.tile(np.arange(X.shape[1]), (len(X), 1)), axis=1)[:, :3]
    columns = np.broadcast_to(columns[:1], columns.shape) if same else columns
    far = rng.uniform(5, 20, columns.shape) * rng.choice([-1, 1], columns.shape)
    np.put_along_axis(moved, columns, np.take_along_axis(X, columns, 1) + far * scale[columns], 1)
    return moved


def real(load: Callable[..., Any]) -> Callable[[int], Problem]:
    """Return the problem of a real table, by seed."""

    def problem(seed: int) -> Problem:
        X, y = load(return_X_y=True)
        X, test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=seed)
        test, y_test = test[:MOST], y_test[:MOST]
        return X, y, test, pushed(test, X.std(0), np.random.default_rng(seed), same=True), y_test

    return problem


def made(n: int, classes: int, every: bool) -> Callable[[int], Problem]:
    """Return a problem of n samples, 6 latents c and 3 latents s, and so many classes (0: numbers), by seed."""

    def problem(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        inner, outer = rng.normal(size=(9, 16)) / 3, rng.normal(size=(16, 12)) / 4
        direction = rng.normal(size=(6, max(classes, 1)))

        def observe(c: Array, s: Array, noise: Array) -> Array:
            return np.tanh(np.hstack([c, s]) @ inner) @ outer + np.hstack([c, s]) @ inner[:, :12] + 0.05 * noise

        c, s, noise = rng.normal(size=(n + 600, 6)), rng.laplace(size=(n + 600, 3)), rng.normal(size=(n + 600, 12))
        score = c @ direction + 0.3 * rng.normal(size=(n + 600, max(classes, 1)))
        y = score.argmax(1) if classes else score[:, 0]
        X = observe(c, s, noise)
        test = X[n:]
        moved = observe(c[n:], 6 * s[n:], noise[n:]) if every else pushed(test, X[:n].std(0), rng, same=False)
        return X[:n], y[:n], test, moved, y[n:]

    return problem


TABLES: dict[str, tuple[str, Callable[[int], Problem]]] = {
    "wine, 3 columns": ("classification", real(load_wine)),
    "breast cancer, 3 columns": ("classification", real(load_breast_cancer)),
    "digits, 3 columns": ("classification", real(load_digits)),
    "diabetes, 3 columns": ("regression", real(load_diabetes)),
    "2 classes, n 2,000, other 3 of 12 columns": ("classification", made(2000, 2, every=False)),
    "5 classes, n 500, other 3 of 12 columns": ("classification", made(500, 5, every=False)),
    "numbers, n 500, other 3 of 12 columns": ("regression", made(500, 0, every=False)),
    "2 classes, n 2,000, s six times as wide": ("classification", made(2000, 2, every=True)),
    "5 classes, n 500, s six times as wide": ("classification", made(500, 5, every=True)),
    "numbers, n 500, s six times as wide": ("regression", made(500, 0, every=True)),
}


def models(task: str) -> dict[str, Any]:
    """Return what is compared, as people use it: defaults, columns standardised where that matters."""
    if task == "classification":
        return {
            "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
            "neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(15)),
            "random forest": RandomForestClassifier(random_state=0),
            "gradient boosting": HistGradientBoostingClassifier(random_state=0),
            "Extrapolator": Extrapolator(task="classification"),
        }
    return {
        "linear": make_pipeline(StandardScaler(), Ridge()),
        "neighbours": make_pipeline(StandardScaler(), KNeighborsRegressor(15)),
        "random forest": RandomForestRegressor(random_state=0),
        "gradient boosting": HistGradientBoostingRegressor(random_state=0),
        "Extrapolator": Extrapolator(task="regression"),
    }


def score(task: str, predicted: Array, y: Array) -> float:
    """Return the accuracy, or the mean squared error in units of the variance."""
    if task == "classification":
        return float((predicted == y).mean())
    return float(((predicted - y) ** 2).mean() / y.var())


def measure() -> dict[str, Any]:
    """Return both scores of every model on every table, the mean over the seeds, and the seconds all of it took."""
    torch.set_num_threads(1)
    started, rows = time.perf_counter(), []
    with progress("Tables", len(TABLES) * SEEDS * len(models("regression"))) as advance:
        for name, (task, problem) in TABLES.items():
            scores: dict[str, list[list[float]]] = {}
            for seed in range(SEEDS):
                X, y, test, moved, y_test = problem(seed)
                for model, estimator in models(task).items():
                    estimator.fit(X, y)
                    both = [score(task, estimator.predict(data), y_test) for data in (test, moved)]
                    scores.setdefault(model, []).append(both)
                    advance()
            means = {model: [round(float(v), 3) for v in np.mean(values, 0)] for model, values in scores.items()}
            rows.append({"table": name, "metric": "accuracy" if task == "classification" else "mse", "scores": means})
    return {"seeds": SEEDS, "rows": rows, "seconds": round(time.perf_counter() - started, 1)}


def table(result: dict[str, Any]) -> str:
    """Return the numbers as the table of the docs: on the source / moved, the best after the shift in bold."""
    names = list(result["rows"][0]["scores"])
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for row in result["rows"]:
        best = (max if row["metric"] == "accuracy" else min)(moved for _, moved in row["scores"].values())
        cells = []
        for given, moved in row["scores"].values():
            shown = _number(moved)
            cells.append(f"{_number(given)} / " + (f"**{shown}**" if shown == _number(best) else shown))
        lines.append(f"| {row['table']}{' (mse)' * (row['metric'] == 'mse')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def main() -> None:
    """Measure, or show what is stored, as JSON or as the table of the docs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stored", action="store_true", help="do not measure; show results/extrapolator_tables.json")
    options = parser.parse_args()
    result = json.loads(STORED.read_text()) if options.stored else measure()
    if options.json:
        json.dump(result, sys.stdout, indent=1)
    else:
        print(table(result))


if __name__ == "__main__":
    main()
