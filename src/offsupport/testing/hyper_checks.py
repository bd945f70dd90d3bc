"""The promise that every hyper-parameter does something."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from offsupport.core.errors import ConfigError, ModelError
from offsupport.methods.registry import METHODS
from offsupport.nn.norm import norm_layers
from offsupport.testing.case import Case, all_same_bits, run, stream


def check_hyper_parameters(cases: Sequence[Case]) -> None:
    """Every hyper-parameter changes some logits, on some network, in some set-up of the others."""
    config = METHODS[cases[0].method].config_class
    names = [field.name for field in dataclasses.fields(config)]
    if not any(case.wrap().policy.layers for case in cases):
        # It weighs batch-norm statistics, and is idle where there are none.
        names = [name for name in names if name != "prior"]
    dead = [name for name in names if not _has_effect(cases, name)]
    if dead:
        raise AssertionError(f"These hyper-parameters change nothing: {', '.join(dead)}.")


def _has_effect(cases: Sequence[Case], name: str) -> bool:
    """Search set-ups of the other hyper-parameters until changing this one changes the logits."""
    for case in cases:
        fields = {field.name: field for field in dataclasses.fields(METHODS[case.method].config_class)}
        values, names = _candidates(case, fields[name]), list(fields)
        # What works together is declared together: the neighbours of a hyper-parameter are tried first.
        others = sorted(names, key=lambda other: abs(names.index(other) - names.index(name)))[1:]
        for base in _set_ups(case, [fields[other] for other in others]):
            if _differs(case, base, name, values):
                return True
    return False


def _set_ups(case: Case, others: Sequence[dataclasses.Field[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the defaults, a fast learner, and then each other hyper-parameter changed on top of that."""
    yield {}
    fast = {"lr": 0.05} if any(field.name == "lr" for field in others) else {}
    yield fast
    for field in others:
        for value in _candidates(case, field):
            yield {**fast, field.name: value}


def _differs(case: Case, base: Mapping[str, Any], name: str, values: Sequence[Any]) -> bool:
    reference = _outputs(case, base)
    for value in values:
        changed = _outputs(case, {**base, name: value})
        if reference and changed and not all_same_bits(reference, changed):
            return True
    return False


def _outputs(case: Case, hyper: Mapping[str, Any]) -> list[Tensor]:
    """Serve a stream with large and small batches; a combination that is refused gives nothing."""
    try:
        adapter = case.wrap(**hyper)
    except (ConfigError, ModelError):
        return []
    return run(adapter, [*stream(4, size=32), *stream(2, size=5, seed=1), *stream(1, size=32, seed=2)])


def _candidates(case: Case, field: dataclasses.Field[Any]) -> list[Any]:
    """Return other values that a hyper-parameter of this type and default may take."""
    hint = typing.get_type_hints(METHODS[case.method].config_class)[field.name]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    default = case.hyper.get(field.name, field.default)
    found = itertools.chain.from_iterable(_of_type(case, option, default) for option in options)
    return [value for value in found if value != default]


def _of_type(case: Case, option: Any, default: Any) -> list[Any]:
    if typing.get_origin(option) is typing.Literal:
        return list(typing.get_args(option))
    if option is bool:
        return [not default]
    if option is float:
        return [factor * default for factor in (0.0, 0.5, 5.0, 20.0)] + [0.9] if default else [0.1, 0.9, 2.0]
    if option is int:
        return [1, 6, 64]
    if option is str:
        return [name for name, _ in norm_layers(case.network())][:1]
    return []
