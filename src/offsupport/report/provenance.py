"""What a click on a number opens: the cells behind it, what they were computed from, and how to compute them again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offsupport.bench.store import Record
from offsupport.report.words import evidence_text, interval_text, unit_text, value_text
from offsupport.studies.adaptation import AdaptConfig

PARTS = ("settings", "result", "origin")
"""What is told of a cell: what was asked, what it took, what it was computed from."""
_OPTIONS = (
    *("dataset", "severity", "protocol", "model", "limit", "block", "order", "preset"),
    *("batch_size", "source_images", "threads"),
)
"""Settings of an adaptation cell that ``bench run`` has an option for, one value each."""
_AXES = {"corruption": "corruptions", "method": "methods"}
Values = Mapping[str, Any]


def sources(payload: Values, behind: Values, records: Sequence[Record], request: Values) -> dict[str, Any] | None:
    """Return what the page embeds, or None where no cell is known.

    Args:
        payload: Rows and claims as ``reproduce --json`` prints them.
        behind: Under ``rows`` and ``claims`` the keys of the cells behind each of them, in the same order.
        records: The results.
        request: What was asked for.
    """
    known = {record.key: i for i, record in enumerate(records)}
    entries = {}
    for part, describe in (("rows", _row), ("claims", _claim)):
        for i, (item, keys) in enumerate(zip(payload[part], behind.get(part, ()), strict=False)):
            own = [records[known[key]] for key in keys if key in known]
            title, facts = describe(item)
            entries[f"{part}-{i}"] = {
                "title": title,
                "facts": list((facts | _effort(own)).items()),  # pairs, as the page keeps their order
                "cells": [known[record.key] for record in own],
                "command": command(request, own),
            }
    if not entries:
        return None
    common, cells = _factored([_told(record) for record in records])
    for cell, record in zip(cells, records, strict=True):
        cell["key"] = record.key
    return {"parts": list(PARTS), "entries": entries, "common": common, "cells": cells}


def command(request: Values, records: Sequence[Record]) -> str:
    """Return what to type to compute results again, into a folder of their own."""
    if request.get("verb") == "reproduce":
        asked = {name: value for name, value in request["options"].items() if value}
        if isinstance(asked.get("methods"), list | tuple):
            asked["methods"] = ",".join(asked["methods"])
        options = {"scale": request["scale"], **asked, **_data(records), "out": "again"}
        return f"offsupport reproduce {request['table']} {_typed(options)}"
    return _bench_command(records) or _rerun(records)


def _bench_command(records: Sequence[Record]) -> str:
    """``bench run`` with options, where options can say it; else nothing."""
    configs = [record.cell.config for record in records]
    if not configs or any(record.cell.kind != "adapt" or not _sayable(record.cell.config) for record in records):
        return ""
    shared = {name: configs[0].get(name) for name in _OPTIONS}
    if any(config.get(name) != value for config in configs for name, value in shared.items()):
        return ""
    defaults = {field.name: field.default for field in dataclasses.fields(AdaptConfig)}
    changed = {name: value for name, value in shared.items() if name == "dataset" or value != defaults[name]}
    options: dict[str, Any] = {name.replace("_", "-"): value for name, value in changed.items()}
    if "model" in options:
        options["model"] = options["model"].partition("@")[0]
    for name, option in _AXES.items():
        values = dict.fromkeys(str(config[name]) for config in configs if config[name] is not None)
        options |= {option: ",".join(values)} if values else {}
    seeds = 1 + max(config["seed"] for config in configs)
    options |= {"seeds": seeds} if seeds > 1 else {}
    return f"offsupport bench run {_typed({**options, **_data(records), 'out': 'again'})}"


def _sayable(config: Values) -> bool:
    plain = not config["hyper"] and config.get("shard") is None and config["source_split"] == "train"
    return plain and not isinstance(config["corruption"], list | tuple)


def _rerun(records: Sequence[Record]) -> str:
    lines = [f"rm cells/{record.key}.json" for record in records]
    return "\n".join([*lines, "# then the command that made this run, with the folder of this page as --out"])


def _data(records: Sequence[Record]) -> dict[str, str]:
    sets = {str(record.cell.config.get("dataset", "digits")) for record in records}
    return {} if all(name.startswith("digits") for name in sets) else {"data": "DATA"}


def _typed(options: Values) -> str:
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items())


def _row(row: Values) -> tuple[str, dict[str, str]]:
    facts = {unit_text(row): value_text(row), "95 % interval": interval_text(row), "predictions": f"{row['n']:,}"}
    facts |= {"printed in the paper": value_text(row, "paper")} if row["paper"] is not None else {}
    facts |= {"deviation over seeds": f"{row['deviation']:.2f}"} if row.get("deviation") is not None else {}
    return f"{row['method']}, {row['column']}", facts


def _claim(claim: Values) -> tuple[str, dict[str, str]]:
    evidence = claim["evidence"]
    facts = {"verdict": claim["verdict"].replace("-", " "), "quantity": evidence["quantity"]}
    facts |= {"measured": evidence_text(evidence), "predictions": f"{evidence['n']:,}"}
    return claim["claim"], facts


def _effort(records: Sequence[Record]) -> dict[str, str]:
    """Seeds and seconds of all cells together."""
    seeds = sorted({seed for record in records for seed in _seeds(record)})
    seconds = sum(record.timing.get("seconds", 0.0) for record in records)
    found = {"seeds": _ranges(seeds), "seconds, all cells": f"{seconds:.1f}" if seconds else ""}
    return {name: words for name, words in found.items() if words}


def _seeds(record: Record) -> Iterable[int]:
    config = record.cell.config
    if "seed" in config:
        return [int(config["seed"])]
    return range(config["first"], config["first"] + config["runs"]) if "first" in config else []


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in ascending order as a person would write them: 0 to 4, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in spans)


def _told(record: Record) -> dict[str, dict[str, Any]]:
    told = {"error", "n", "metric"}
    measured = {name: value for name, value in record.deterministic.items() if name in told}
    events = {name: count for name, count in record.deterministic.get("events", {}).items() if count}
    result = {**measured, **record.timing, **({"events": events} if events else {})}
    settings = {"kind": record.cell.kind, **record.cell.config}
    return dict(zip(PARTS, (settings, result, dict(record.provenance)), strict=True))


def _factored(cells: Sequence[Mapping[str, dict[str, Any]]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take out what all cells share, so that a thousand of them stay small."""
    common: dict[str, Any] = {}
    for part in PARTS:
        first = cells[0][part] if cells else {}
        common[part] = {n: v for n, v in first.items() if all(n in cell[part] and cell[part][n] == v for cell in cells)}
    rest = [{part: {n: v for n, v in cell[part].items() if n not in common[part]} for part in PARTS} for cell in cells]
    return common, rest
