"""The contracts of methods, corruptions and data sets as checks, also for those registered outside this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from offsupport.core.errors import ModelError
from offsupport.testing import promises
from offsupport.testing.case import Case, promise
from offsupport.testing.data import check_corruption, check_dataset
from offsupport.testing.networks import NETWORKS, Factory, toy_images, train
from offsupport.testing.promises import check_hyper_parameters, check_memory

__all__ = [
    "CHECKS",
    "NETWORKS",
    "Case",
    "check_corruption",
    "check_dataset",
    "check_memory",
    "check_method",
    "contract",
    "refusal",
    "toy_images",
    "train",
]

CHECKS: dict[str, Callable[[Case], None]] = {
    name.removeprefix("check_"): check
    for name, check in vars(promises).items()
    if name.startswith("check_") and name not in ("check_memory", "check_hyper_parameters")
}
"""The checks of one method on one network, by name; the docstring of each is the promise it holds."""


def check_method(name: str, networks: Mapping[str, Factory] | None = None, **hyper: Any) -> None:
    """Put a registered method through its contract; an ``AssertionError`` says which promise it breaks, and where.

    A method may refuse a network when wrapping it, with a :class:`ModelError` and a remedy, but not all of them.

    Args:
        name: What the method is registered as.
        networks: Factories of networks for images (N, 3, 8, 8) in [0, 1], trained by :func:`train`; by default
            :data:`NETWORKS`. A factory returns the same weights each time.
        **hyper: Hyper-parameters to check it with.

    Example:
        >>> check_method("bn", {"batch_norm": NETWORKS["batch_norm"]})
    """
    for where, check in contract(name, networks, **hyper):
        _run(where, check)


def contract(
    name: str, networks: Mapping[str, Factory] | None = None, *, source: bool = True, **hyper: Any
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield every check of a method as (``method/network/check``, callable), for a test runner to make its own tests.

    Args:
        name: What the method is registered as.
        networks: As in :func:`check_method`.
        source: Whether a method for which source statistics are optional gets them.
        **hyper: Hyper-parameters to check it with.
    """
    cases = {key: Case(name, factory, hyper, source) for key, factory in (networks or NETWORKS).items()}
    accepted = [case for case in cases.values() if refusal(case) is None]
    promise(bool(accepted), f"{name} refuses every network.")
    for key, case in cases.items():
        if case in accepted:
            yield from ((f"{name}/{key}/{check}", partial(run, case)) for check, run in CHECKS.items())
    yield f"{name}/memory", partial(check_memory, accepted[0])
    yield f"{name}/hyper_parameters", partial(check_hyper_parameters, accepted)


def _run(where: str, check: Callable[[], None]) -> None:
    try:
        check()
    except AssertionError as broken:
        raise AssertionError(f"{where}: {broken}") from broken


def refusal(case: Case) -> ModelError | None:
    """Return the error by which a method refuses a network when wrapping it, or None when it takes it."""
    try:
        case.wrap()
    except ModelError as error:
        promise(bool(error.remedy), f"{case.method} refuses a network without saying what to do instead.")
        return error
    return None
