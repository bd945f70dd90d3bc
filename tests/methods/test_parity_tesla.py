"""TeSLA and TeSLA-s against a plain loop: student, teacher with its statistics, policy and running moments."""

from __future__ import annotations

import itertools

import pytest
import torch
from parity_check import BATCH_NORM, SIZES, assert_close, change, moved, network
from tesla_reference import Reference, images

import offsupport

LR = {"adam": 2e-3, "sgd": 5e-3}


def statistics(net):
    layers = [layer for layer in net if isinstance(layer, BATCH_NORM)]
    found = [torch.stack([layer.running_mean, layer.running_var]) for layer in layers]
    return torch.cat(found, 1) if found else torch.empty(2, 0)


def moot(net):
    """Biases in front of batch norm: their gradient is rounding alone, which Adam makes steps of."""
    layers = list(net.named_children())
    return {f"{name}.bias" for (name, _), (_, after) in itertools.pairwise(layers) if isinstance(after, BATCH_NORM)}


def assert_tesla_parity(adapted, reference, stream):
    """Logits and everything that is carried on agree after each batch."""
    left_out = moot(reference.net)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in reference.net.state_dict().items():
            if name in left_out:
                continue
            assert_close(adapted.model.state_dict()[name].double(), value.double(), f"student {name} after batch {t}")
        for name, value in reference.teacher.named_parameters():
            if not name.startswith("head.") and name not in left_out:
                assert_close(adapted.memory[f"teacher/{name}"], value.detach(), f"teacher {name} after batch {t}")
        assert_close(adapted.memory["teacher_statistics"], statistics(reference.teacher), f"statistics of batch {t}")
        table = torch.cat([reference.selection[:, None], reference.magnitudes], 1).detach()
        assert_close(adapted.memory["policy"], table, f"policy after batch {t}")
    assert not any(adapted.events[name] for name in ("bad_loss", "bad_grad", "bad_param", "bad_input"))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_tesla(norm, optimizer):
    net, start, stream = network(norm), network(norm), images(SIZES)
    options = {"lr": LR[optimizer], "optimizer": optimizer, "decay": 0.9}
    adapted = offsupport.adapt(start, "tesla", collapse="off", **options)
    assert_tesla_parity(adapted, Reference(net, **options), stream)
    assert "head" not in moved(net, start)
    assert {"conv0", "norm0", "conv2", "norm3"} <= moved(net, start)
    assert change(net, start) > 0.001
    assert adapted.memory["policy"].abs().max() > 0.3
    steps = sum(size >= 16 for size in SIZES)
    assert adapted.passes["backward"] == 3 * steps
    # Of the teacher: the adversarial view, five others of which one serves the policy as well, and the prediction.
    assert adapted.passes["forward"] == (1 + 5 + 1 + 2) * steps + len(SIZES) - steps


@pytest.mark.parametrize(
    "options",
    [
        {"score_stats": "running"},
        {"score_stats": "running", "bn_momentum": 0.3},
        {"rotation": "full", "sampling": "learned"},
        {"views": 1, "lambda_kl": 0.3, "lambda_norm": 7.0, "policy_lr": 0.5},
        {"policy_length": 1, "decay": 0.5},
        {"queue": 3, "neighbours": 4},
        {"queue": 40, "neighbours": 2, "views": 0},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_of_tesla(options):
    net, start, stream = network("batch"), network("batch"), images(SIZES[:7], seed=1)
    adapted = offsupport.adapt(start, "tesla", collapse="off", lr=2e-3, **options)
    assert_tesla_parity(adapted, Reference(net, lr=2e-3, **options), stream)


# A bias before batch norm has no gradient but rounding, and Adam makes steps of whatever there is: there, SGD.
@pytest.mark.parametrize(("norm", "optimizer"), [("batch", "sgd"), ("group", "adam")])
@pytest.mark.parametrize("options", [{}, {"align_weight": 0.5, "moment_window": 50, "ridge": 0.2}], ids=["", "options"])
def test_tesla_s(norm, optimizer, options):
    net, start, stream = network(norm), network(norm), images(SIZES)
    source_stream = images((40, 32, 7), seed=5)
    source = offsupport.source_stats(start, source_stream, method="tesla-s")
    options = {**options, "lr": {"adam": 2e-3, "sgd": 1e-4}[optimizer], "optimizer": optimizer}
    reference = Reference(net, **options)
    reference.see_source(source_stream)
    assert_close(source.tensors["feature_mean"], reference.source[0], "source mean")
    assert_close(source.tensors["feature_cov"], reference.source[1], "source covariance")
    adapted = offsupport.adapt(start, "tesla-s", source=source, collapse="off", **options)
    assert_tesla_parity(adapted, reference, stream)
    for name, value in zip(("mean", "cov", "count"), reference.moments, strict=True):
        assert_close(adapted.memory[f"moments/{name}"].double(), torch.as_tensor(value).double(), name)
    assert change(net, start) > 0.001


def test_alignment_draws_features_to_the_source():
    source_stream, stream = images((64, 64), seed=5), images([32] * 12, seed=2)
    gaps = []
    for weight in (0.0, 5.0):
        start = network("group")
        source = offsupport.source_stats(start, source_stream, method="tesla-s")
        adapted = offsupport.adapt(start, "tesla-s", source=source, align_weight=weight, moment_window=64, lr=3e-3)
        for x in stream:
            adapted(x)
        gaps.append((adapted.memory["moments/mean"] - source.tensors["feature_mean"]).norm().item())
    assert gaps[1] < 0.7 * gaps[0]


def test_the_teacher_keeps_its_parameters_at_decay_one_and_is_the_student_at_zero():
    stream = images([24] * 3)
    for decay, twin in ((1.0, "start"), (0.0, "student")):
        start = network("batch")
        adapted = offsupport.adapt(start, "tesla", decay=decay)
        for x in stream:
            adapted(x)
        model = start if twin == "start" else adapted.model
        for name, parameter in model.named_parameters():
            if not name.startswith("head."):
                assert torch.equal(adapted.memory[f"teacher/{name}"], parameter)


def test_every_parameter_of_the_teacher_has_its_own_decay():
    adapted = offsupport.adapt(network("batch"), "tesla")
    decays = adapted.decays()
    assert set(decays.values()) == {0.99}
    own = decays | {"conv1.weight": 0.0}
    adapted.decays = lambda: own
    for x in images([24] * 2):
        adapted(x)
    teacher = {name: adapted.memory[f"teacher/{name}"] for name in ("conv0.weight", "conv1.weight")}
    assert torch.equal(teacher["conv1.weight"], adapted.model.conv1.weight)
    assert not torch.equal(teacher["conv0.weight"], adapted.model.conv0.weight)


def test_a_norm_layer_that_is_called_twice_moves_twice():
    """The pass that serves the policy and the mean prediction counts as two for each call of a layer."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    parts = [torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3), norm, torch.nn.Flatten()]
    net = torch.nn.Sequential(*parts, torch.nn.Linear(64, 4)).double().eval()
    (x,) = images([24])
    adapted = offsupport.adapt(net, "tesla")
    teacher = adapted.teacher()
    with adapted.norm_statistics.using("ema"), torch.no_grad():
        seen = adapted._look(x, teacher)
        teacher.statistics.copy_(start := torch.rand_like(teacher.statistics))
        adapted.network(x)
        expected = teacher.statistics.clone()
        teacher.statistics.copy_(start)
        seen.pass_again(teacher.statistics)
    assert_close(teacher.statistics, expected, "statistics after the pass")
    assert (seen.kept < 0.85).all()
