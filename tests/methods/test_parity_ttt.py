"""TTT against a plain loop: copies turned one by one, a fresh copy of the source model for each episode."""

from __future__ import annotations

import copy

import pytest
import torch
from parity_check import BATCH_NORM, SIZES, assert_close, make_optimizer, network, step
from tesla_reference import images
from torch import Tensor, nn

import offsupport
from offsupport.augment import flip, shifted, turned
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.engine.adapter import draws_for
from offsupport.nn import WithRotation, with_rotation_head
from offsupport.testing import NETWORKS

SMALL = (1, 2, 1, 3, 1, 1, 2, 1, 4, 1)


def two_headed(norm: str, branch: str | None = "relu1") -> WithRotation:
    """A network with a head on the maps (8, 4, 4) of its second stage, or on its features."""
    net = network(norm)
    torch.manual_seed(3)
    head = nn.Linear(12, 4) if branch is None else nn.Sequential(nn.Flatten(), nn.Linear(128, 4))
    return WithRotation(net, head.double(), branch)


def run_layers(layers, x: Tensor, images: int, prior: float) -> Tensor:
    """Batch norm blends the statistics of so many images with those of ``prior`` of the source."""
    for layer in layers:
        if isinstance(layer, BATCH_NORM):
            rows = x.detach().transpose(0, 1).flatten(1)
            mean = (images * rows.mean(1) + prior * layer.running_mean) / (images + prior)
            var = (images * rows.var(1, unbiased=False) + prior * layer.running_var) / (images + prior)
            shape = (1, -1) + (1,) * (x.dim() - 2)
            normal = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
            x = normal * layer.weight.view(shape) + layer.bias.view(shape)
        else:
            x = layer(x)
    return x


class Reference:
    def __init__(self, net, *, lr=1e-3, optimizer="sgd", momentum=0.0, steps=10, copies=32, mirror=True, **options):
        self.net, self.lr, self.optimizer, self.momentum = net, lr, optimizer, momentum
        self.steps, self.copies, self.mirror, self.options = steps, copies, mirror, options
        self.prior, self.shift = options.get("prior", 16.0), options.get("shift", 0.125)
        self.generator = torch.Generator().manual_seed(0)
        self.online = self.started(net)

    def started(self, net):
        body, names = net.backbone, list(dict(net.backbone.named_children()))
        last = names.index("relu1" if net.branch else "relu3")
        learnt = [p for layer in list(body)[: last + 1] for p in layer.parameters()]
        learnt += list(net.rotation.parameters()) if self.options.get("tune") != "encoder" else []
        optimizer = make_optimizer(self.optimizer, learnt, self.lr, self.momentum)
        return net, list(body)[: last + 1], optimizer

    def run(self, stream):
        for x in stream:
            if self.options.get("online"):
                self.learn(*self.online, x, self.generator)
                yield run_layers(self.net.backbone, x, len(x), self.prior).detach()
                continue
            logits = []
            for episode in [x] if self.options.get("together") else x.split(1):
                fresh = copy.deepcopy(self.net)
                self.learn(*self.started(fresh), episode, draws_for(episode, "ttt", 0))
                logits.append(run_layers(fresh.backbone, episode, len(episode), self.prior).detach())
            yield torch.cat(logits)

    def learn(self, net, shared, optimizer, x, generator):
        each = max(1, self.copies // len(x))
        for _ in range(self.steps):
            copies = torch.stack([image for image in x for _ in range(each)])
            copies = shifted(copies, round(self.shift * 8), generator)
            copies = flip(copies, generator) if self.mirror else copies
            turns = torch.randint(4, (len(copies),), generator=generator).tolist()
            copies = torch.stack([torch.rot90(image, k, (1, 2)) for image, k in zip(copies, turns, strict=True)])
            told = net.rotation(run_layers(shared, copies, len(x), self.prior)).log_softmax(1)
            step(optimizer, -sum(row[k] for row, k in zip(told, turns, strict=True)) / len(turns))


CASES = {
    "episodes": ("batch", SMALL, {"copies": 8}, {}),
    "features": ("group", SMALL, {"copies": 5, "steps": 2, "momentum": 0.5, "lr": 0.02}, {"branch": None}),
    "encoder": ("batch", SMALL, {"copies": 6, "steps": 3, "tune": "encoder", "mirror": False, "shift": 0.3}, {}),
    "together": ("batch", SIZES, {"together": True, "steps": 2, "prior": 4.0, "lr": 0.05}, {}),
    "online": ("group", SIZES, {"online": True, "optimizer": "adam"}, {"steps": 1}),
    "online, batch norm": ("batch", SIZES, {"online": True, "lr": 0.05, "copies": 64, "steps": 3}, {}),
}


@pytest.mark.parametrize(("norm", "sizes", "options", "settings"), CASES.values(), ids=CASES)
def test_ttt(norm, sizes, options, settings):
    branch = settings.get("branch", "relu1")
    net, start, stream = two_headed(norm, branch), two_headed(norm, branch), images(sizes)
    steps = {"steps": settings["steps"]} if "steps" in settings else {}
    reference = Reference(net, **options, **steps)
    adapted = offsupport.adapt(start, "ttt", collapse="off", **options)
    still = offsupport.adapt(start, "ttt", collapse="off", **{**options, "lr": 0.0})
    change = 0.0
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        change = max(change, (expected - still(x)).abs().max().item())
        for name, value in net.state_dict().items():
            assert_close(adapted.model.state_dict()[name].double(), value.double(), f"{name} after batch {t}")
    assert change > 1e-4
    moved = {name for name, p in adapted.model.named_parameters() if not torch.equal(p, start.get_parameter(name))}
    if not options.get("online"):
        assert not moved
    else:
        assert {"backbone.conv0.weight", "backbone.norm1.weight", "rotation.1.weight"} <= moved
        assert not any(name.startswith(("backbone.conv2", "backbone.hidden", "backbone.head")) for name in moved)


def test_steps_make_turns_easier_to_tell():
    net, (x,) = two_headed("group"), images([16])
    adapted = offsupport.adapt(net, "ttt", online=True, lr=0.05, steps=40, copies=64, mirror=False, shift=0.0)
    quarters = torch.arange(64) % 4

    @torch.no_grad()
    def wrong(model):
        told = model.both(turned(x.repeat_interleave(4, 0), quarters))[1]
        return float(nn.functional.cross_entropy(told, quarters))

    before = wrong(net)
    adapted(x)
    assert wrong(adapted.model) < before - 0.2


def test_an_image_gets_the_same_answer_whatever_came_before_and_beside_it():
    net, (x, other) = two_headed("batch"), images([4, 3])
    adapted = offsupport.adapt(net, "ttt", copies=6, steps=2, lr=0.05, collapse="off")
    together = adapted(x)
    adapted(other)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(adapted(x[order]), together[order], rtol=1e-12, atol=0)


def test_what_the_head_does_not_depend_on_is_not_adapted_nor_updated():
    for branch, name in ((None, "head"), ("relu1", "conv2")):
        net = two_headed("batch", branch)
        adapted = offsupport.adapt(net, "ttt+sc", online=True, rank=2, lr=0.05)
        assert not any(each.startswith(f"backbone.{name}") for each in adapted.parameters_adapted)
        assert any("low_rank" in each for each in adapted.parameters_adapted)
        assert not any(each.startswith("rotation") and "low_rank" in each for each in adapted.parameters_adapted)


@pytest.mark.parametrize("method", ["shot", "cotta"])
def test_to_other_methods_the_head_is_idle(method):
    net, (x,) = two_headed("batch"), images([24])
    adapted = offsupport.adapt(net, method, collapse="off")
    plain = offsupport.adapt(net.backbone, method, collapse="off")
    assert not any(name.startswith("rotation") for name in adapted.parameters_adapted)
    for _ in range(2):
        assert torch.equal(adapted(x), plain(x))


def test_a_model_without_the_head_is_refused_and_told_what_would_serve():
    with pytest.raises(ModelError, match="no head for it") as error:
        offsupport.adapt(NETWORKS["batch_norm"](), "ttt")
    for word in ("digits-rotation", "offsupport.nn.WithRotation", "'memo'"):
        assert word in error.value.remedy


def test_images_that_do_not_turn_into_their_own_shape_are_refused():
    net = with_rotation_head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))
    adapted = offsupport.adapt(net, "ttt")
    before = adapted.snapshot().flat()
    with pytest.raises(InputError, match="another shape"):
        adapted(torch.rand(2, 3, 8, 6))
    assert all(torch.equal(value, before[name]) for name, value in adapted.snapshot().flat().items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"copies": 0}, "copies"),
        ({"shift": 0.5}, "shift"),
        ({"online": True, "together": True}, "online=True"),
    ],
)
def test_ranges(options, words):
    with pytest.raises(ConfigError, match=words):
        offsupport.adapt(NETWORKS["rotation"](), "ttt", **options)
