"""Which of the published KL weights is used: the one under which a model explains held-out source samples best.

The process seeds are none of those the tables report, and no label of a target is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.results.intervals import Floats, difference_estimate, mean_estimate
from offsupport.results.rows import Claim, Row, below
from offsupport.studies.latent_runs import KL, TRANSDUCTIVE, LikelihoodConfig
from offsupport.studies.tables import Table, TableOptions, register_table

WEIGHTS = (0.1, 0.01, 0.001)
RUNS = {"smoke": 2, "paper": 20}


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: methods x shifts x published weights."""
    for method in options.methods or ():
        if method not in TRANSDUCTIVE:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, TRANSDUCTIVE))
    return [
        LikelihoodConfig(
            method=method,
            shift=shift,
            options={"kl": kl},
            runs=options.runs or RUNS[scale],
        ).cell()
        for method in options.methods or TRANSDUCTIVE
        for shift in ("dense", "sparse")
        for kl in WEIGHTS
    ]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the log-likelihood per sample of every model, with a bootstrap interval over runs."""
    found = []
    for record in records:
        estimate = mean_estimate(_nats(record))
        found.append(
            Row(
                method=str(record.cell.config["method"]),
                column=_column(record.cell.config),
                metric="log-likelihood",
                unit="nats",
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                n=estimate.n,
                cells=(record.key,),
            )
        )
    return found


def claims(records: Sequence[Record]) -> list[Claim]:
    """Check that the weight in use explains the held-out source better than each of the others."""
    by = {(r.cell.config["method"], r.cell.config["shift"], r.cell.config["options"]["kl"]): r for r in records}
    found = []
    for method, shift, kl in by:
        used = KL[method, "classification", shift]
        if kl == used or (method, shift, used) not in by:
            continue
        pair = by[method, shift, used], by[method, shift, kl]
        ours, theirs = (-_nats(record) for record in pair)
        lost = replace(difference_estimate(ours, theirs), cells=tuple(record.key for record in pair))
        sentence = f"{method} explains the {shift} source better with a KL weight of {used:g} than with {kl:g}"
        found.append(below(sentence, lost, f"-log p({used:g}) + log p({kl:g}), per sample", unit="nats"))
    return found


def _nats(record: Record) -> Floats:
    return np.array(record.deterministic["nats"], dtype=np.float64)[:, None]


def _column(config: Mapping[str, Any]) -> str:
    return f"{config['shift']}, kl {config['options']['kl']:g}"


register_table(
    Table(
        name="kl-choice",
        record=True,
        title="Likelihood of held-out source samples by the weight of the KL term",
        scales={scale: f"{runs} runs, process seeds from 10,000" for scale, runs in RUNS.items()},
        options=frozenset({"methods", "runs"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
