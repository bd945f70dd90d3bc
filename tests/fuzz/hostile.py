"""Hostile inputs: mutations of valid ones and generated ones, each tried under a timer and a limit of memory."""

from __future__ import annotations

import contextlib
import copy
import json
import signal
import sys
import warnings
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from offsupport.core.errors import OffsupportError

INPUTS = {
    "grid recipes": 2000,
    "training recipes": 500,
    "results": 2000,
    "run folders": 1000,
    "manifests": 1500,
    "saved streams": 500,
    "cards": 1000,
    "safetensors": 1200,
    "saved adapters": 1500,
    "saved statistics": 500,
    "models": 1000,
    "npy": 2000,
    "pictures": 2500,
    "csv": 1500,
    "command line": 500,
    "batches": 1000,
    "cells": 500,
    "requests": 1000,
}
"""How many inputs each door gets: 20,000 together, and more."""
SECONDS = 5
WAITING = 30
"""Seconds without an answer that are a hang whatever the processor did: a machine may be busy, a pipe may be empty."""
GROWTH = 1 << 30
CODES = (0, 2, 3, 4, 130, None)


def inputs(door: str):
    """Return the settings of a test that tries a door with its share of the inputs, the same ones at every run."""
    return settings(
        max_examples=INPUTS[door],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class Hang(BaseException):
    """Not an Exception: what catches those must not hide it."""


@contextlib.contextmanager
def bounded():
    """Raise :class:`Hang` after too long, and let allocations past the limit fail."""
    if sys.platform == "win32":
        yield
        return
    import resource

    def stop(_number, _frame):
        raise Hang(f"no answer after {SECONDS} s of computing, or {WAITING} s of waiting")

    before = [signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    try:
        if pages:
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GROWTH, limits[1]))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WAITING)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def attempt(call, *arguments):
    """Call under the limits and return whether it was accepted.

    A sentence of ours is a refusal, and so is what the system says of a path, which the command line prints as one. All
    else is a defect.
    """
    code = 0
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(*arguments)
        except (OffsupportError, OSError):
            return False
        except SystemExit as end:
            code = end.code
    assert code in CODES, f"exit code {code}"
    return code in (0, None)


# Bytes.


TOKENS = [
    b"\x00", b"\xff" * 4, b"\xff" * 8, b"\x00" * 16, b"\x7f\xff\xff\xff", b"\x80", b"\r", b"\n", b'"', b"{", b"[" * 200,
    b"]", b"}", b",", b"9" * 40, b"-1", b"NaN", b"1e999", b"&a [*a]", b"*a", b"\xef\xbb\xbf", b"\x1b[2J", b"../", b"%s",
    b"null", b"true", b"!!python/object/apply:os.mkdir [x]", b"\xed\xa0\x80",
]  # fmt: skip


def edited(seed: bytes):
    """Return a strategy of ``seed`` with one to four edits: bytes changed, put in, taken out, repeated, cut off."""
    edit = st.tuples(
        st.sampled_from(["flip", "put", "over", "drop", "repeat", "cut"]),
        st.integers(0, max(0, len(seed) - 1)),
        st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=8)),
        st.integers(1, 64),
    )
    return st.lists(edit, min_size=1, max_size=4).map(lambda edits: _apply_edits(seed, edits))


def _apply_edits(seed: bytes, edits) -> bytes:
    data = bytearray(seed)
    for kind, at, token, length in edits:
        at = min(at, len(data))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << length % 8
        elif kind == "put":
            data[at:at] = token
        elif kind == "over":
            data[at : at + len(token)] = token
        elif kind == "drop":
            del data[at : at + length]
        elif kind == "repeat":
            data[at:at] = data[at : at + length] * 3
        elif kind == "cut":
            del data[at:]
    return bytes(data)


# Values, as JSON and YAML have them.


def _nested(levels: int):
    value = []
    for _ in range(levels):
        value = [value]
    return value


WORDS = [
    "",
    "x",
    "../../x",
    "a" * 300,
    "os:getcwd",
    "\x1b[31m",
    "\ud800",
    "nan",
    "1e400",
    "fog",
    "tent",
    "none",
    "\u202e",
]
NUMBERS = [0, -1, 1, 5, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e-320, float("nan"), float("inf")]
ODD = [None, True, False, [], {}, [[]], {"": None}, _nested(30), _nested(400), [1, "a", None], {"a": {"b": {"c": 1}}}]
LEAF = st.one_of(st.sampled_from([*WORDS, *NUMBERS, *ODD]), st.integers(), st.floats(), st.text(max_size=6))
JUNK = st.one_of(LEAF, st.lists(LEAF, max_size=3), st.dictionaries(st.text(max_size=4), LEAF, max_size=3))


def places(tree, here=()):
    """Return the path of every value in a tree of lists and dictionaries, the root first."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [here, *(path for name, value in inside for path in places(value, (*here, name)))]


def altered(tree):
    """Return a strategy of ``tree`` with one or two of its values replaced, removed or renamed."""
    change = st.tuples(st.sampled_from(places(tree)), st.sampled_from(["set", "set", "set", "drop", "rename"]), JUNK)
    return st.lists(change, min_size=1, max_size=2).map(lambda changes: _apply_changes(tree, changes))


def _apply_changes(tree, changes):
    for path, kind, value in changes:
        tree = _changed(tree, path, kind, copy.deepcopy(value))
    return tree


def _changed(tree, path, kind, value):
    if not path:
        return value
    if not isinstance(tree, (dict, list)) or (
        isinstance(tree, list) and not (isinstance(path[0], int) and path[0] < len(tree))
    ):
        return tree  # an earlier change took the place away
    tree = copy.copy(tree)
    if len(path) > 1 and (isinstance(tree, list) or path[0] in tree):
        tree[path[0]] = _changed(tree[path[0]], path[1:], kind, value)
    elif kind == "set":
        tree[path[0]] = value
    elif isinstance(tree, dict) and path[0] in tree:
        old = tree.pop(path[0])
        if kind == "rename":
            tree[str(value)[:20]] = old
    elif isinstance(tree, list):
        del tree[path[0]]
    return tree


def as_json(tree) -> bytes:
    """Write a tree down, NaN and halves of characters included, as somebody hostile would."""
    return json.dumps(tree).encode()
