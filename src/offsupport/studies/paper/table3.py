"""Table 3: training regimes of a masked autoencoder, and test-time training of the probe, per corruption."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import STANDARD
from offsupport.results.rows import Claim, Row
from offsupport.studies.mae_arms import (
    APART,
    PUBLISHED,
    SHIFTS,
    Arm,
    abouts,
    accuracy_row,
    adapted_models,
    arm_cells,
    by_arm,
    compare,
    episode_cells,
    scale_of,
    whole,
)
from offsupport.studies.tables import Table, TableOptions, register_table

OURS = 1
"""Entropy steps of "Ours"; the paper does not say how many its Table 3 took."""
ROWS = {
    "joint-train": Arm("joint"),
    "fine-tune": Arm("finetune"),
    "vit-probe": Arm("probe"),
    "mae-ttt": Arm("probe", 0),
    "mae-ttt+em": Arm("probe", OURS),
    "mae-ttt (joint)": Arm("joint", 0),
    "mae-ttt+em (joint)": Arm("joint", OURS),
}
MORE = {"mae-ttt+em, 3 steps": Arm("probe", 3), "3 steps alone": Arm("probe", 3, reconstructs=False)}
"""Rows where entropy steps without reconstruction are run as well."""
_ORDER = (
    *("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_noise", "glass_blur"),
    *("impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "shot_noise", "snow", "zoom_blur"),
)
_PRINTED = {
    "joint-train": (62.3, 4.5, 26.7, 39.9, 25.7, 30.0, 5.8, 16.3, 5.8, 45.3, 30.9, 45.9, 7.1, 25.1, 31.8),
    "fine-tune": (67.5, 7.8, 33.9, 32.4, 36.4, 38.2, 22.0, 15.7, 23.9, 51.2, 37.4, 51.9, 23.7, 37.6, 37.1),
    "vit-probe": (68.3, 6.4, 24.2, 31.6, 38.6, 38.4, 17.4, 18.4, 18.2, 51.2, 32.2, 49.7, 18.2, 35.9, 32.2),
    "mae-ttt": (69.1, 9.8, 34.4, 50.7, 44.7, 50.7, 30.5, 36.9, 32.4, 63.0, 41.9, 63.0, 33.0, 42.8, 45.9),
    "mae-ttt+em": (73.8, 14.0, 33.6, 69.0, 47.8, 64.6, 38.6, 42.2, 36.6, 68.4, 32.4, 67.4, 41.2, 51.2, 35.4),
}
"""Accuracy in percent on ImageNet-C, ViT-L/16."""
PRINTED = {
    method: {**dict(zip(_ORDER, values, strict=True)), "avg": round(statistics.fmean(values), 2)}
    for method, values in _PRINTED.items()
}
"""Averages are those of the printed entries: MAE-TTT has 43.25, where 45.92 is printed, and "Ours" 47.75 (47.77)."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; what Table 4 has computed in the same folder is not computed again."""
    found = scale_of("table3", scale)
    adapted = adapted_models(found)
    arms = [arm for arm in ROWS.values() if arm.em_steps is None or arm.model in adapted]
    arms += MORE.values() if found.alone else ()
    return [*arm_cells(found, arms, options), *episode_cells(found)]


_SHIFTS = tuple(dict.fromkeys((*STANDARD, *SHIFTS, *APART)))


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the accuracy of every row on every corruption and on average."""
    arms, found = by_arm(records), []
    for method, arm in {**ROWS, **MORE}.items():
        columns, printed = arms.get(arm, {}), PRINTED.get(method, {})
        for corruption in (name for name in _SHIFTS if name in columns):
            dataset = columns[corruption][0].dataset
            row = accuracy_row(method, f"{dataset}/{corruption}", columns[corruption], printed.get(corruption))
            found.append(row)
        if columns.keys() - APART in ({*STANDARD}, {*PUBLISHED}, {*SHIFTS}):
            found.append(accuracy_row(method, f"{dataset}/avg", whole(columns), printed.get("avg")))
    return found


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask of each adapted model whether test-time training helps, whether entropy steps do, and on what."""
    arms, found = by_arm(records), []
    for model in ("probe", "joint"):
        plain, ttt, ours = Arm(model), Arm(model, 0), Arm(model, OURS)
        of = "" if model == "probe" else f" ({model} model)"
        found += compare(arms, ttt, plain, f"MAE-TTT has a lower error than the model it adapts{of}")
        found += compare(arms, ours, ttt, f"entropy steps lower the error of MAE-TTT{of}")
        for corruption in _SHIFTS:
            sentence = f"entropy steps lower the error of MAE-TTT on {corruption}{of}"
            found += compare(arms, ours, ttt, sentence, corruption)
        for corruption in _SHIFTS if MORE["3 steps alone"] in arms else ():
            sentence = f"MAE-TTT has a lower error than the model it adapts on {corruption}{of}"
            found += compare(arms, ttt, plain, sentence, corruption)
    return found


register_table(
    Table(
        name="table3",
        title="Masked autoencoders per corruption (severity 5; the paper's numbers: ImageNet-C)",
        scales=abouts("table3"),
        options=frozenset({"seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
