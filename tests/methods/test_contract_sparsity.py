"""Methods under the sparsity constraint keep the promises that all methods make."""

import pytest

from offsupport.methods import METHODS
from offsupport.testing import CHECKS, NETWORKS, Case, check_memory, refusal
from offsupport.testing.promises import check_hyper_parameters

# Methods of many passes per batch, or with moments of source features, are left to the slow suite.
HEAVY = ("ttac+sc", "tesla+sc", "tesla-s+sc")
METHODS_HERE = ("tent+sc", "shot+sc", "eata+sc", "sar+sc", *HEAVY)
QUICK = {"tent+sc": ("batch_norm", "layer_norm"), "shot+sc": ("no_norm",), "sar+sc": ("group_norm",)}
QUICK |= dict.fromkeys(HEAVY, ())
REFUSED = {("tent+sc", "no_norm"), ("eata+sc", "no_norm"), ("sar+sc", "no_norm")}
CASES = {
    (method, network): Case(method, factory)
    for method in METHODS_HERE
    for network, factory in NETWORKS.items()
    if (method, network) not in REFUSED
}


def row(method, network):
    marks = [] if network in QUICK.get(method, ("batch_norm",)) else [pytest.mark.slow]
    return pytest.param(CASES[method, network], marks=marks, id=f"{method}/{network}")


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@pytest.mark.parametrize("case", [row(*key) for key in CASES])
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
