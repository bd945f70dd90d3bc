"""TeSLA under the sparsity constraint: the teacher has low-rank updates of its own, at a pace of their own."""

import pytest
import torch
from parity_check import network
from tesla_reference import images

import offsupport

pytestmark = pytest.mark.filterwarnings("ignore:tesla.sc. rank")


@pytest.mark.parametrize(("preset", "share"), [("cifar10", 0.0), ("cifar100", 0.9)])
def test_the_teacher_follows_low_rank_updates_at_their_own_pace(preset, share):
    adapted = offsupport.adapt(network("batch"), "tesla+sc", preset=preset)
    (x,) = images([24])
    before = {name: parameter.detach().clone() for name, parameter in adapted.parameters_adapted.items()}
    adapted(x)
    kinds = set()
    for name, start in before.items():
        keeps = share if "low_rank" in name else 0.99
        kinds.add(keeps)
        student = adapted.parameters_adapted[name].detach()
        expected = keeps * start + (1 - keeps) * student
        torch.testing.assert_close(adapted.memory[f"teacher/{name}"], expected, rtol=1e-10, atol=1e-14)
    assert kinds == {share, 0.99}
    assert any(name.startswith("head.") for name in before)


def test_the_teacher_predicts_by_its_own_updates():
    adapted = offsupport.adapt(network("group"), "tesla+sc", preset="cifar100", lr=1e-2)
    for x in images([24] * 3):
        out = adapted(x)
    for name in adapted.memory:
        if name.endswith("low_rank.up"):
            adapted.memory[name] = torch.zeros_like(adapted.memory[name])
    assert (adapted.predict(x) - out).abs().max() > 1e-3


def test_merge_gives_the_network_that_predicts_which_is_the_teacher():
    adapted = offsupport.adapt(network("group"), "tesla+sc", preset="cifar100", lr=1e-2)
    for x in images([24] * 3):
        out = adapted(x)
    merged = adapted.merge()
    with torch.no_grad():
        torch.testing.assert_close(merged(x), out, rtol=1e-9, atol=1e-9)
        assert (adapted.model(x) - out).abs().max() > 1e-3
