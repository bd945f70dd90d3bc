"""TeSLA+SC and TeSLA-s+SC against the plain loop of TeSLA over two-branch layers, in the student and in the teacher."""

from __future__ import annotations

import pytest
import torch
from parity_check import SIZES, assert_close, make_optimizer, network
from tesla_reference import Reference, images
from test_parity_sparsity import RANK, low_rank_parameters, with_branches
from test_parity_tesla import moot, statistics
from torch import Tensor, nn

import offsupport


class ConstrainedReference(Reference):
    """TeSLA whose network has two branches in each layer, the classifier included."""

    def __init__(self, net: nn.Sequential, **options):
        options = {"ratio_l": 1.0, "penalty": "l1", "ratio_s": 1e-3, "prox": 0.01, "teacher_decay": None, **options}
        super().__init__(net, **options)
        low = low_rank_parameters(net)
        self.gates = [gate for name, gate in low.items() if name.endswith("gate")]
        own = [p for name, p in named(net).items() if "low_rank" not in name and not name.startswith("head.")]
        groups = [{"params": own}, {"params": list(low.values()), "lr": self.o["ratio_l"] * self.o["lr"]}]
        self.opt = make_optimizer(self.o["optimizer"], groups, self.o["lr"])

    def step(self) -> None:
        if self.o["penalty"] == "l1":
            (self.o["ratio_s"] * torch.cat([gate.abs() for gate in self.gates]).mean()).backward()
        super().step()
        if self.o["penalty"] == "prox":
            for gate in self.gates:
                gate.data = gate.data.sign() * (gate.data.abs() - self.o["prox"]).clamp(min=0)

    def decay(self, name: str) -> float:
        own = self.o["teacher_decay"]
        return super().decay(name) if own is None or "low_rank" not in our_name(name) else own


def our_name(name: str) -> str:
    """What the library calls a parameter of a two-branch layer."""
    layer, _, rest = name.partition(".")
    branch = {"up.weight": "low_rank.up", "down.weight": "low_rank.down", "gate": "low_rank.gate"}
    return f"{layer}.{branch.get(rest, rest.removeprefix('host.'))}"


def named(net: nn.Sequential) -> dict[str, Tensor]:
    return {our_name(name): parameter for name, parameter in net.named_parameters()}


def assert_same(actual, net, what, left_out) -> None:
    for name, value in named(net).items():
        if name not in left_out:
            # Updates are matrices here, and kernels in the published form.
            assert_close(actual[name].detach(), value.detach().reshape(actual[name].shape), f"{name} of the {what}")


def assert_constrained_parity(adapted, reference, stream) -> None:
    """Logits and everything that is carried on agree after each batch."""
    student = dict(adapted.model.named_parameters())
    assert set(student) == set(named(reference.net))
    shared = {"head.weight", "head.bias"}  # the teacher has an update of the classifier, but no classifier of its own
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        assert_same(student, reference.net, f"student after batch {t}", moot(reference.net))
        teacher = {name[len("teacher/") :]: adapted.memory[name] for name in adapted.memory if "teacher/" in name}
        assert set(teacher) == set(student) - shared
        assert_same(teacher, reference.teacher, f"teacher after batch {t}", moot(reference.net) | shared)
        assert_close(adapted.memory["teacher_statistics"], statistics(reference.teacher), f"statistics of batch {t}")
        table = torch.cat([reference.selection[:, None], reference.magnitudes], 1).detach()
        assert_close(adapted.memory["policy"], table, f"policy after batch {t}")
    assert not any(adapted.events[name] for name in ("bad_loss", "bad_grad", "bad_param", "bad_input"))


LR = {"adam": 2e-3, "sgd": 5e-3}
SET_UPS = {
    "teacher_decay 0": {"teacher_decay": 0.0},
    "teacher_decay 0.9": {"teacher_decay": 0.9},
    "ratios": {"ratio_l": 3.0, "ratio_s": 5.0},
    "prox": {"penalty": "prox", "prox": 0.12, "teacher_decay": 0.9},
}
# A bias before batch norm has no gradient but rounding, and Adam makes steps of whatever there is: there, SGD.
CASES = pytest.mark.parametrize(
    ("norm", "optimizer", "set_up"),
    [*(("batch", "sgd", name) for name in SET_UPS), ("group", "adam", "teacher_decay 0.9")],
)


def assert_moved(adapted, set_up) -> None:
    assert min(p.detach().abs().max() for name, p in adapted.low_rank.items() if name.endswith("up")) > 1e-4
    assert (torch.cat(list(adapted.gates.values())) == 0).any() == (set_up == "prox")


@CASES
def test_tesla(norm, optimizer, set_up):
    plain = network(norm)
    options = {"lr": LR[optimizer], "optimizer": optimizer, "decay": 0.95, **SET_UPS[set_up]}
    adapted = offsupport.adapt(plain, "tesla+sc", rank=RANK, collapse="off", **options)
    reference = ConstrainedReference(with_branches(plain, adapted), **options)
    assert_constrained_parity(adapted, reference, images(SIZES))
    assert_moved(adapted, set_up)


@CASES
def test_tesla_s(norm, optimizer, set_up):
    plain, source_stream = network(norm), images((40, 32, 7), seed=5)
    options = {"lr": LR[optimizer], "optimizer": optimizer, "decay": 0.95, **SET_UPS[set_up]}
    if optimizer == "sgd":
        # The divergence is so steep at the start that steps along all of it let rounding grow past any tolerance.
        options |= {"lr": 1e-3, "align_weight": 1e-3, "ridge": 0.5}
    source = offsupport.source_stats(plain, source_stream, method="tesla-s+sc")
    adapted = offsupport.adapt(plain, "tesla-s+sc", source=source, rank=RANK, collapse="off", **options)
    reference = ConstrainedReference(with_branches(plain, adapted), **options)
    reference.see_source(source_stream)
    assert_constrained_parity(adapted, reference, images(SIZES))
    assert_moved(adapted, set_up)
    for name, value in zip(("mean", "cov", "count"), reference.moments, strict=True):
        assert_close(adapted.memory[f"moments/{name}"].double(), torch.as_tensor(value).double(), name)
