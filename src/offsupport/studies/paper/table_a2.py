"""Table A2: hyper-parameters, read from the presets that every run uses, beside those the paper prints.

There is nothing to run, so there are no rows and no claims: ``hyper_parameters`` in the JSON holds the table.
"""

from __future__ import annotations

from typing import Any

from offsupport.studies.paper.table2 import METHODS
from offsupport.studies.published import SETTINGS
from offsupport.studies.tables import SCALES, TABLES, Table

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


def hyper_parameters() -> list[dict[str, Any]]:
    """Return every hyper-parameter of every method of Table 2 by preset; those with a printed value come first."""
    presets = [setting.preset for setting in SETTINGS.values()]
    lines = [
        _line(method, preset, name, value)
        for method in METHODS
        for preset in presets
        for name, value in _resolved(method, preset).items()
    ]
    return sorted(lines, key=lambda line: line["paper"] is None)


def _resolved(method: str, preset: str) -> dict[str, Any]:
    """The defaults of a method with what its preset changes."""
    from offsupport.core.config import build, to_dict
    from offsupport.methods import METHODS as REGISTERED

    adapter = REGISTERED[method]
    return to_dict(build(adapter.config_class, adapter.presets[preset], f"method {method!r}"))


def _line(method: str, preset: str, name: str, value: Any) -> dict[str, Any]:
    printed = PRINTED.get((method, preset, name))
    remark = REMARKS.get((name, preset)) if method in CONSTRAINED else None
    if name == "score_stats":
        remark = SCORED
    if printed is not None and value != printed:
        remark = f"differs from the printed {printed:g}"
    return {"method": method, "preset": preset, "name": name, "value": value, "paper": printed, "remark": remark}


TABLES.register("tableA2")(
    Table(
        name="tableA2",
        title="Hyper-parameters of the methods of Table 2, from the presets",
        scales=dict.fromkeys(SCALES, "read from the package; nothing is computed"),
        options=frozenset(),
        grid=lambda scale, options: [],
        rows=lambda records: [],
        claims=lambda records: [],
        more=lambda: {"hyper_parameters": hyper_parameters()},
    )
)
