"""Methods under the sparsity constraint keep the promises that all methods make."""

import itertools

import pytest

from offsupport.methods import METHODS, StepConfig
from offsupport.testing import CHECKS, NETWORKS, Case, check_memory, refusal
from offsupport.testing.case import run, stream
from offsupport.testing.promises import check_hyper_parameters, check_reset

# Methods of many passes per batch, or with moments of source features, are left to the slow suite.
HEAVY = ("ttac+sc", "tesla+sc", "tesla-s+sc")
METHODS_HERE = ("tent+sc", "shot+sc", "eata+sc", "sar+sc", *HEAVY)
QUICK = {("tent+sc", "batch_norm"), ("shot+sc", "no_norm"), ("sar+sc", "group_norm")}
WHOLE = QUICK | {("tent+sc", "layer_norm"), ("eata+sc", "batch_norm")}
REFUSED = {("tent+sc", "no_norm"), ("eata+sc", "no_norm"), ("sar+sc", "no_norm")}
# Heads of training and a decoder are idle in all of them, and transformers are covered by layer norm.
HERE = [name for name in NETWORKS if name not in ("projection", "rotation", "mae")]
CASES = {
    (method, network): Case(method, NETWORKS[network])
    for method in METHODS_HERE
    for network in HERE
    if (method, network) not in REFUSED
}


def promises():
    """Every check on some pairs; on each other one in seven, so that every pair of the three is met once."""
    for (key, case), (name, check) in itertools.product(CASES.items(), CHECKS.items()):
        method, network = key
        quick = key in QUICK and (name != "absurd" or method == "tent+sc")
        places = METHODS_HERE.index(method), HERE.index(network), list(CHECKS).index(name)
        if key in WHOLE or sum(places) % 7 == 0:
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(case, check, id=f"{method}/{network}-{name}", marks=marks)


@pytest.mark.parametrize(("case", "check"), list(promises()))
def test_promise(case, check):
    check(case)


@pytest.mark.parametrize("method", METHODS_HERE)
def test_the_same_networks_are_refused_as_without(method):
    refused = {network for network, factory in NETWORKS.items() if refusal(Case(method, factory))}
    assert refused == {network for network, f in NETWORKS.items() if refusal(Case(METHODS.plain(method), f))}


@pytest.mark.parametrize(
    "method", METHODS_HERE[:1] + tuple(pytest.param(m, marks=pytest.mark.slow) for m in METHODS_HERE[1:])
)
def test_every_hyper_parameter_has_an_effect(method):
    check_hyper_parameters([case for (name, _), case in CASES.items() if name == method])


@pytest.mark.parametrize("penalty", ["l1", "prox"])
def test_memory_is_constant(penalty):
    check_memory(Case("tent+sc", NETWORKS["batch_norm_1d"], {"penalty": penalty}), batches=100)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@pytest.mark.parametrize("hyper", [{"penalty": "prox", "prox": 0.05}, {"freeze_base": True, "gates": False}], ids=str)
def test_promises_of_other_set_ups(hyper, check):
    check(Case("tent+sc", NETWORKS["group_norm"], hyper))


STEPPING = [name for name in METHODS if issubclass(METHODS[name].config_class, StepConfig)]
HOMES = {"tttpp": "projection", "ttt": "rotation"}
FEW = {"memo": {"copies": 2}, "ttt": {"copies": 2, "steps": 1}, "cotta": {"views": 2}}
FEW |= {name: {"capacity": 12, "update_every": 24} for name in ("rotta", "note", "petta")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in STEPPING if not name.startswith("mae-ttt")])
def test_every_method_that_takes_steps_composes_with_the_constraint_and_minimal_statistics(name):
    """Masked autoencoders have no batch norm, and so no statistics to follow."""
    hyper = FEW.get(name, {}) | {"statistics": "minimal", "rank": 2}
    case = Case(f"{name}+sc", NETWORKS[HOMES.get(name, "batch_norm")], hyper)
    adapter = case.wrap(collapse="off")
    logits = run(adapter, stream(4))
    assert all(each.isfinite().all() for each in logits)
    assert adapter.passes["backward"] > 0 or METHODS[name].steps_at_will
    check_reset(case)
