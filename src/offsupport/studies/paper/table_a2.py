"""Table A2: hyper-parameters, read from the presets that every run uses, beside those the paper prints.

There is nothing to run, so there are no rows and no claims: ``hyper_parameters`` in the JSON holds the table.
"""

from __future__ import annotations

from typing import Any

from offsupport.results.rows import Listing
from offsupport.studies.paper.table2 import METHODS
from offsupport.studies.published import SETTINGS
from offsupport.studies.tables import SCALES, Table, register_table

_COLUMNS = ("rank", "ratio_l", "ratio_s")
_PRINTED = {"imagenet": (4, 5, 1e-3), "cifar100": (16, 2, 1e-1), "cifar10": (64, 1, 1e-5)}
CONSTRAINED = ("tesla+sc", "tesla-s+sc")
"""The paper prints hyper-parameters of the constraint alone."""
PRINTED = {
    (method, preset, name): value
    for method in CONSTRAINED
    for preset, values in _PRINTED.items()
    for name, value in zip(_COLUMNS, values, strict=True)
}
REMARKS = {
    ("lr", "imagenet"): "not printed: the paper's code halves the step size of TeSLA here",
    ("teacher_decay", "cifar10"): "not printed: the decay of the low-rank part in the paper's code",
    ("teacher_decay", "cifar100"): "not printed: the decay of the low-rank part in the paper's code",
    ("teacher_decay", "imagenet"): "not printed: the decay of the low-rank part in the paper's code",
}
"""Of the constrained methods, by hyper-parameter and preset."""
SCORED = "published: running; the statistics of the batch were better on the extra corruptions"


def hyper_parameters() -> Listing:
    """Return every hyper-parameter of every method of Table 2 by preset; those with a printed value come first."""
    presets = [setting.preset for setting in SETTINGS.values()]
    lines = [
        (method, preset, name, value, PRINTED.get((method, preset, name)), _remark(method, preset, name, value))
        for method in METHODS
        for preset in presets
        for name, value in _resolved(method, preset).items()
    ]
    names = ("method", "preset", "name", "value", "paper", "remark")
    paper = names.index("paper")
    return Listing("hyper_parameters", names, sorted(lines, key=lambda line: line[paper] is None))


def _resolved(method: str, preset: str) -> dict[str, Any]:
    """The defaults of a method with what its preset changes."""
    from offsupport.core.config import to_dict
    from offsupport.engine.registry import method_config

    return to_dict(method_config(method, preset))


def _remark(method: str, preset: str, name: str, value: Any) -> str | None:
    printed = PRINTED.get((method, preset, name))
    if printed is not None and value != printed:
        return f"differs from the printed {printed:g}"
    if name == "score_stats":
        return SCORED
    return REMARKS.get((name, preset)) if method in CONSTRAINED else None


register_table(
    Table(
        name="tableA2",
        title="Hyper-parameters of the methods of Table 2, from the presets",
        scales=dict.fromkeys(SCALES, "read from the package; nothing is computed"),
        grid=lambda scale, options: [],  # the package says it all: there is nothing to compute
        listings=lambda: [hyper_parameters()],
    )
)
