"""Table 4: how many entropy steps MAE test-time training needs; accuracy averaged over corruptions."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.results.rows import Claim, Row
from offsupport.studies.mae_arms import (
    ADAPTED,
    APART,
    Arm,
    Arms,
    abouts,
    accuracy_row,
    adapted_models,
    arm_cells,
    by_arm,
    compare,
    compare_shifts,
    episode_cells,
    hard,
    scale_of,
    whole,
)
from offsupport.studies.tables import Table, TableOptions, register_table

COLUMNS: dict[str, int | None] = {"source": None, "em-0": 0, "em-1": 1, "em-2": 2, "em-3": 3}
"""Entropy steps by column; em-0 is MAE-TTT."""
ALONE = {"only-1": 1, "only-3": 3}
"""Entropy steps without reconstruction, by column."""
PRINTED = {"source": 50.29, "em-0": 59.12, "em-1": 63.99, "em-2": 65.09, "em-3": 65.01}
"""Accuracy in percent on ImageNet100-C, ViT-L/16; deviations over three seeds 0.35, 0.25, 0.23 and 0.39."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: every number of entropy steps on the same images."""
    found = scale_of("table4", scale)
    models = adapted_models(found)
    arms = [Arm(model, steps) for model in models for steps in COLUMNS.values()]
    if found.alone:
        arms += [Arm(model, steps, reconstructs=False) for model in models for steps in ALONE.values()]
    return [*arm_cells(found, arms, options), *episode_cells(found)]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the accuracy of every column, for each source model; where shifts differ in kind, for each kind."""
    arms = by_arm(records)
    found = []
    for model in ADAPTED:
        name = "mae-ttt+em" if model == "probe" else f"mae-ttt+em ({model})"
        # Table 3 may have left single columns of the joint model in the same folder.
        if Arm(model, 2) not in arms:
            continue
        found += _accuracies(arms, model, name)
        if any(steps in arms for steps in (Arm(model, k, reconstructs=False) for k in ALONE.values())):
            shifted = hard(arms, model)
            found += _accuracies(arms, model, f"{name} (source errs on over 10 %)", shifted)
        for shift in APART:
            found += _accuracies(arms, model, f"{name} ({shift})", [shift])
    return found


def _accuracies(arms: Arms, model: str, name: str, shifts: Sequence[str] | None = None) -> list[Row]:
    """Return a row for each column, over all shifts that are averaged, or over these."""
    found = []
    columns = {column: Arm(model, steps) for column, steps in COLUMNS.items()}
    columns |= {column: Arm(model, steps, reconstructs=False) for column, steps in ALONE.items()}
    for column, arm in columns.items():
        laid = arms.get(arm, {})
        parts = whole(laid) if shifts is None else [part for shift in shifts for part in laid.get(shift, [])]
        printed = PRINTED.get(column) if model == "probe" and shifts is None else None
        found += [accuracy_row(name, column, parts, printed)] if parts else []
    return found


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask whether reconstruction helps, whether entropy steps help, whether more of them do, and what harms."""
    arms, found = by_arm(records), []
    for model in ADAPTED:
        for more, less, sentence in _STEPS:
            found += compare(arms, Arm(model, more), Arm(model, less), f"{sentence} ({model} model)")
        if Arm(model, 1, reconstructs=False) in arms:
            found += _claims_on_parts(arms, model)
        for shift in APART:
            sentence = f"MAE-TTT has a lower error than no adaptation on {shift} ({model} model)"
            found += compare(arms, Arm(model, 0), Arm(model), sentence, shift)
            sentence = f"three entropy steps have a lower error than none on {shift} ({model} model)"
            found += compare(arms, Arm(model, 3), Arm(model, 0), sentence, shift)
    return found


_STEPS = (
    (0, None, "MAE-TTT has a lower error than no adaptation"),
    (1, 0, "one entropy step has a lower error than none"),
    (2, 1, "a second entropy step lowers the error further"),
    (3, 2, "a third entropy step lowers the error further"),
)


def _claims_on_parts(arms: Arms, model: str) -> list[Claim]:
    """Ask whether both parts are needed, and whether all of it is true of shifts drawn anew."""
    of, found = f"({model} model)", []
    for steps, words in (
        (1, "one entropy step with reconstruction has"),
        (3, "three entropy steps with reconstruction have"),
    ):
        both, alone = Arm(model, steps), Arm(model, steps, reconstructs=False)
        found += compare(arms, both, alone, f"{words} a lower error than without {of}")
    found += compare(arms, Arm(model, 3), Arm(model, 0), f"three entropy steps have a lower error than none {of}")
    for arm, words in ((Arm(model, 3), "after"), (Arm(model, 3, reconstructs=False), "without")):
        sentence = f"three entropy steps {words} reconstruction have a lower error than no adaptation {of}"
        found += compare(arms, arm, Arm(model), sentence)
    pairs = {
        f"MAE-TTT has a lower error than no adaptation {of}": (Arm(model, 0), Arm(model)),
        f"one entropy step has a lower error than none {of}": (Arm(model, 1), Arm(model, 0)),
        f"three entropy steps have a lower error than none {of}": (Arm(model, 3), Arm(model, 0)),
        f"three entropy steps with reconstruction have a lower error than without {of}": (
            Arm(model, 3),
            Arm(model, 3, reconstructs=False),
        ),
    }
    for sentence, (better, worse) in pairs.items():
        found += compare_shifts(arms, better, worse, sentence)
    return found


register_table(
    Table(
        name="table4",
        title="MAE test-time training with 0 to 3 entropy steps (severity 5; the paper's numbers: ImageNet100-C)",
        scales=abouts("table4"),
        options=frozenset({"seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
