"""Every method on every network through the same promises; `offsupport.testing` holds the checks."""

import dataclasses
import itertools
import re
from typing import ClassVar

import pytest
import torch
from torch import nn

from offsupport.engine.source_stats import SourceStats
from offsupport.methods import METHODS, Adapter, MethodConfig, MethodInfo, StepConfig, register_method
from offsupport.nn import affine_parameters
from offsupport.testing import CHECKS, NETWORKS, Case, check_memory, check_method, contract, refusal
from offsupport.testing.promises import check_hyper_parameters

# A method for which source statistics are optional is checked with them and without.
ROWS = [(name, True) for name in METHODS] + [
    (name, False) for name in METHODS if METHODS[name].info.source == "optional"
]
EPISODIC = tuple(name for name in METHODS if name.startswith("mae-ttt"))
# Methods of others, each with the network and the few checks that the quick suite has for it; the slow one has more.
PEERS = ("lame", "t3a", "rotta", "note", "rdumb", "roid", "cmf", "deyo", "cotta", "petta", "rpl", "neo", "actmad")
PEERS = dict.fromkeys((*PEERS, "adacontrast", "rmt"), "batch_norm") | {"foa": "mae", "ttt": "rotation"}
FIRST = ("reset", "save_load", "partly_bad", "faults")
# Those that step for every image take seconds for a check; the quick suite has the first ones of these too.
PATIENT = ("memo", *EPISODIC)
REFUSED = {(name, network) for name in EPISODIC for network in NETWORKS if network != "mae"} | {
    *((name, network) for name in ("bn", "minimal") for network in ("mae", "group_norm", "layer_norm", "no_norm")),
    ("tent", "no_norm"),
    ("eata", "no_norm"),
    ("sar", "no_norm"),
    *((name, "no_norm") for name in ("rotta", "note", "rdumb", "roid", "cmf", "deyo", "petta", "rpl", "actmad")),
    *(("foa", network) for network in NETWORKS if network != "mae"),
    *(("tttpp", network) for network in NETWORKS if network != "projection"),
    *(("ttt", network) for network in NETWORKS if network != "rotation"),
}
# Methods that run on one network alone.
ONLY = {"tttpp": "projection", "foa": "mae", "ttt": "rotation"}
# What a head of training adds is idle but for the method that uses it.
IDLE = {(method, "projection") for method in METHODS if method != "tttpp"}
IDLE |= {(method, "rotation") for method in METHODS if method != "ttt"}
# So is a decoder, and transformers are covered by layer norm.
IDLE |= {(method, "mae") for method in METHODS if method not in (*EPISODIC, "foa")}
# Few copies and short episodes keep methods that step for every single image quick, and say the same.
HYPER = {"memo": {"copies": 4}, **{name: {"steps": 1, "masks": 4} for name in EPISODIC}}
HYPER |= {"cotta": {"views": 2}, "foa": {"population": 4}, "ttt": {"copies": 4, "steps": 1}}
HYPER |= {"adacontrast": {"bank": 32, "queue": 32, "vote_after": 16}}
# A step in every batch of a check.
HYPER |= {name: {"capacity": 12, "update_every": 24} for name in ("rotta", "note", "petta")}
CASES = {
    f"{method}{'' if source else '-without-source'}/{network}": Case(method, factory, HYPER.get(method, {}), source)
    for method, source in ROWS
    for network, factory in NETWORKS.items()
    if (method, network) not in REFUSED | IDLE and (source or network in ("batch_norm", "group_norm"))
}


# Where a method goes through every check in the quick suite; on other networks it goes through a few, so that every
# method meets every network and every check, and other checks on each network.
HOME = dict.fromkeys(METHODS, "batch_norm") | {"source": "no_norm", "shot": "group_norm", "sar": "layer_norm"}
HOME |= PEERS | {"memo": "group_norm", "tesla": "layer_norm", "tttpp": "projection", "mae-ttt+em": "mae"}
# The slow suite has the rest, but for methods of many passes per batch: all of it where it matters most, a sixth
# elsewhere. What mae-ttt has, mae-ttt+em has too: each of its steps is one of mae-ttt and then some of entropy.
HEAVY = {"memo": {"group_norm"}, "tesla": {"batch_norm", "layer_norm"}, "tesla-s": {"batch_norm"}, "mae-ttt": set()}
HEAVY |= {"mae-ttt+em": {"mae"}, "auto": {"batch_norm", "layer_norm"}} | {name: set() for name in PEERS}


def promises():
    for (where, case), (name, check) in itertools.product(CASES.items(), CHECKS.items()):
        method, _, network = where.partition("/")
        method = method.removesuffix("-without-source")
        home = network == HOME[method] and case.source and (name in FIRST or method not in (*PEERS, *PATIENT))
        few = due(method, network, name)
        if home or few or network in HEAVY.get(method, NETWORKS):
            quick = (home or (few and method not in HEAVY)) and (name != "absurd" or (home and method not in HEAVY))
            yield pytest.param(case, check, id=f"{where}-{name}", marks=[] if quick else [pytest.mark.slow])


def due(method, network, check):
    """Whether a check is one of the few of this method on this network."""
    return (list(METHODS).index(method) + list(NETWORKS).index(network) + list(CHECKS).index(check)) % 6 == 0


@pytest.mark.parametrize(("case", "check"), list(promises()))
def test_promise(case, check):
    check(case)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_refused_is_refused_when_wrapping_with_a_remedy(method):
    refused = {network for network, factory in NETWORKS.items() if refusal(Case(method, factory))}
    assert refused == {network for name, network in REFUSED if name == method}


@pytest.mark.parametrize("method", sorted({method for method, _ in REFUSED}))
def test_a_refusal_names_a_method_that_serves(method):
    for network in sorted(network for name, network in REFUSED if name == method):
        remedy = refusal(Case(method, NETWORKS[network])).remedy
        named = [name for name in re.findall(r"'([\w+-]+)'", remedy) if name in METHODS]
        assert any(refusal(Case(name, NETWORKS[network])) is None for name in named), (network, remedy)


@pytest.mark.parametrize(
    ("method", "source"),
    # What tesla has, tesla-s has too.
    [pytest.param(*row, marks=[pytest.mark.slow] if row[0] in {"tesla", *PATIENT, *PEERS} else []) for row in ROWS],
)
def test_every_hyper_parameter_has_an_effect(method, source):
    if not source:
        return  # Without source statistics, what acts on them is idle by design.
    cases = [case for name, case in CASES.items() if name.startswith(f"{method}/")]
    if method == "memo":  # With the one step per image that is its default, momentum would be searched for long.
        cases = [dataclasses.replace(case, hyper={"copies": 2, "steps": 2}) for case in cases]
    check_hyper_parameters(cases)


@pytest.mark.parametrize(
    "method",
    [pytest.param(n, marks=[pytest.mark.slow] if n in {"tesla", *PATIENT, *PEERS} else []) for n in METHODS],
)
def test_memory_is_constant(method):
    if method in EPISODIC:
        check_memory(CASES[f"{method}/mae"], batches=24)
        return
    network = ONLY.get(method, "batch_norm_1d")
    # What is kept of one batch is kept of every one; methods that step for each image show it in fewer.
    # The monitor of auto fills its window, which takes longer.
    hyper = {"monitor": False} if method == "auto" else HYPER.get(method, {})
    check_memory(Case(method, NETWORKS[network], hyper), batches=16 if method in ("memo", "ttt") else 100)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name in PEERS or name not in HEAVY])
def test_memory_is_constant_over_two_thousand_batches(method):
    check_memory(
        Case(method, NETWORKS[ONLY.get(method, "batch_norm")], HYPER.get(method, {})),
        batches=2000,
    )


def test_contract_names_every_check_once():
    names = [where for where, _ in contract("bn")]
    assert len(names) == len(set(names)) == 6 * len(CHECKS) + 2
    assert "bn/one_pixel/reset" in names


# The checks themselves are checked: a method that breaks a promise is caught, by the check of that promise ------------

ONE = {"group_norm": NETWORKS["group_norm"]}


@pytest.fixture
def registered():
    """Register methods for the time of a test."""
    names = []

    def add(cls, config=StepConfig):
        info = MethodInfo(
            name=cls.__name__.lower(), summary="", paper="", adapts="", scored="", norm="any", source="none", single=""
        )
        register_method(info, config)(cls)
        names.append(info.name)
        return info.name

    yield add
    for name in names:
        del METHODS._items[name]


class Careful(Adapter):
    """Minimises the negative largest probability; keeps every promise."""

    def trainable(self):
        return affine_parameters(self.model)

    def step(self, x):
        logits = self.network(x)
        self.descend(-logits.softmax(1).amax(1).mean())
        return logits


class Forgetful(Careful):
    """Keeps state that it did not declare."""

    drift = 0.0

    def step(self, x):
        self.drift += 0.1
        return super().step(x) + self.drift


class Leaky(Careful):
    """Keeps every batch for ever."""

    def step(self, x):
        self.__dict__.setdefault("seen", []).append(x.clone())
        return super().step(x)


class Gambler(Careful):
    """Draws from the global generator."""

    def step(self, x):
        return super().step(x) * (1 + 0.01 * torch.rand(()))


class Reckless(Careful):
    """Steps past the guard."""

    def step(self, x):
        logits = self.network(x)
        grads = torch.autograd.grad(logits.logsumexp(1).mean(), list(self.parameters_adapted.values()))
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters_adapted.values(), grads, strict=True):
                parameter -= 0.01 * gradient
        return logits


class Vandal(Careful):
    """Changes the model's buffers."""

    def step(self, x):
        for buffer in self.model.buffers():
            buffer.add_(1)
        return super().step(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdleConfig(StepConfig):
    idle: float = 1.0


class Idle(Careful):
    """Has a hyper-parameter that does nothing."""

    config_class: ClassVar[type[MethodConfig]] = IdleConfig


def test_a_method_that_keeps_its_promises_passes(registered):
    check_method(registered(Careful), ONE)


@pytest.mark.parametrize(
    ("cls", "config", "where", "sentence"),
    [
        (Forgetful, StepConfig, "group_norm/reset", "same stream gives other logits"),
        (Leaky, StepConfig, "memory", "more bytes of tensors"),
        (Gambler, StepConfig, "group_norm/deterministic", "Two runs"),
        (Reckless, StepConfig, "group_norm/faults", "not counted"),
        (Vandal, StepConfig, "batch_norm/keys", "buffers"),
        (Idle, IdleConfig, "hyper_parameters", "change nothing: idle.$"),
    ],
)
def test_a_broken_promise_is_named(registered, cls, config, where, sentence):
    network = where.partition("/")[0] if "/" in where else "group_norm"
    name = registered(cls, config)
    checks = dict(contract(name, {network: NETWORKS[network]}))
    with pytest.raises(AssertionError, match=sentence):
        checks[f"{name}/{where}"]()


def test_check_method_says_where_a_promise_is_broken(registered):
    with pytest.raises(AssertionError, match=r"^forgetful/group_norm/reset: After"):
        check_method(registered(Forgetful), ONE)


def test_refusing_everything_is_no_way_to_pass():
    with pytest.raises(AssertionError, match="refuses every network"):
        check_method("bn", ONE)


def test_optional_source_statistics_are_used_where_asked_for():
    assert isinstance(CASES["eata/batch_norm"].wrap().source, SourceStats)
    assert CASES["eata-without-source/batch_norm"].wrap().source is None


def test_networks_are_the_same_each_time_and_not_shared():
    for factory in NETWORKS.values():
        first, second = factory(), factory()
        assert all(
            torch.equal(a, b) and a is not b for a, b in zip(first.parameters(), second.parameters(), strict=True)
        )
        assert isinstance(first, nn.Module)
