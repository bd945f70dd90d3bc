"""MAE test-time training against plain loops, and what it must leave alone."""

import copy

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, ModelError
from offsupport.methods.mae_ttt import uncertainty
from offsupport.nn import Normalized, draw_masks, mae, resnet18
from offsupport.testing.case import same_bits

SHAPE = {"image": 8, "patch": 2, "dim": 8, "depth": 1, "heads": 2, "decoder_dim": 8, "decoder_depth": 1}
SHAPE |= {"decoder_heads": 2, "head_dim": 8, "head_depth": 1, "head_heads": 2}
FAST = {"lr": 0.05, "steps": 3, "masks": 5}


def network(seed=0, head="vit", normalized=True):
    torch.manual_seed(seed)
    net = mae("tiny/4", 4, head, **SHAPE)
    for parameter in net.parameters():
        nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    return (Normalized(net, [0.5] * 3, [0.2] * 3) if normalized else net).double().eval()


def images(n=3, seed=1):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def reference(net, x, generator, *, lr, steps, masks, em_steps=0, copies=1, separate=False):
    """One episode in the order of the paper; the head is moved by entropy steps alone."""
    net = copy.deepcopy(net).requires_grad_(True)
    inner = net.model
    encoder = [p for name, p in inner.named_parameters() if not name.startswith(("decoder", "classifier"))]
    everything = encoder + list(inner.classifier.parameters())
    one = torch.optim.SGD(everything, lr=lr, momentum=0.9)
    two = torch.optim.SGD(everything, lr=lr, momentum=0.9) if separate else one
    for _ in range(steps):
        drawn = draw_masks(masks, 16, 0.75, generator)
        standardised = ((x - 0.5) / 0.2).expand(masks, -1, -1, -1)
        pixels, target = inner.reconstruct(standardised, drawn), inner.target(standardised)
        loss = sum((pixels[n, j] - target[n, j]).square().mean() for n, j in drawn.mask.nonzero().tolist())
        step(one, loss / drawn.mask.sum(), everything)
        for _ in range(em_steps):
            step(two, entropy(net(x.expand(copies, -1, -1, -1))).mean(), everything)
    return net


def step(optimizer, loss, parameters):
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()


def close(a, b):
    assert (a - b).abs().max() <= 1e-8 * b.abs().max()


@pytest.mark.parametrize("em_steps", [0, 1, 2])
@pytest.mark.parametrize("optimizers", ["shared", "separate"])
def test_episodes_are_those_of_a_plain_loop(em_steps, optimizers):
    net, x = network(), images()
    method = {"em_steps": em_steps, "optimizers": optimizers}
    adapted = offsupport.adapt(net, "mae-ttt+em", **FAST, **method)
    logits = adapted(x)
    for i, image in enumerate(x.split(1)):
        # The reference classifies 32 copies; the method takes one forward pass for all of them.
        separate = optimizers == "separate"
        done = reference(
            net, image, adapted.generator_for(image), **FAST, em_steps=em_steps, copies=32, separate=separate
        )
        close(logits[i : i + 1], done(image))
    assert not torch.allclose(logits, net(x), rtol=1e-3)
    if not em_steps:
        close(logits, offsupport.adapt(net, "mae-ttt", **FAST)(x))


def test_shared_and_separate_momentum_differ():
    a, b = (offsupport.adapt(network(), "mae-ttt+em", **FAST, optimizers=o)(images()) for o in ("shared", "separate"))
    assert not torch.allclose(a, b)


def look(adapted, x):
    """Run one episode and return the model as it is at its end."""
    generator = adapted.generator_for(x)
    for _ in adapted.iterations(x, generator):
        pass
    moved = copy.deepcopy(adapted.model)
    adapted.restart()
    return moved


def moved(net, other):
    found = dict(other.named_parameters())
    return {name for name, p in net.named_parameters() if not torch.equal(p, found[name])}


def test_reconstruction_moves_the_encoder_and_leaves_decoder_and_head():
    net = network()
    names = moved(net, look(offsupport.adapt(net, "mae-ttt", **FAST), images(1)))
    assert names == {name for name, _ in net.named_parameters() if "decoder" not in name and "classifier" not in name}
    names = moved(net, look(offsupport.adapt(net, "mae-ttt", tune="encoder-without-tokens", **FAST), images(1)))
    assert not names & {"model.cls_token", "model.mask_token"}
    assert "model.norm.weight" in names
    names = moved(net, look(offsupport.adapt(net, "mae-ttt", tune="all", **FAST), images(1)))
    assert any("decoder" in name for name in names)
    assert not any("classifier" in name for name in names)


def test_entropy_steps_move_encoder_and_head_and_not_the_decoder():
    net = network()
    names = moved(net, look(offsupport.adapt(net, "mae-ttt+em", **FAST), images(1)))
    assert names == {name for name, _ in net.named_parameters() if "decoder" not in name}


def test_stale_momentum_does_not_move_the_head_in_the_reconstruction_stage():
    adapted = offsupport.adapt(network(), "mae-ttt+em", **{**FAST, "steps": 2})
    heads, x = [], images(1)
    apply = adapted.apply_gradients

    def watching(gradients):
        apply(gradients)
        heads.append(adapted.model.model.classifier.head.weight.detach().clone())

    adapted.apply_gradients = watching
    adapted(x)
    assert torch.equal(heads[1], heads[2])  # second reconstruction step, with momentum from the entropy step before it
    assert not torch.equal(heads[2], heads[3])


@pytest.mark.parametrize("method", ["mae-ttt", "mae-ttt+em"])
def test_every_image_starts_from_the_source_and_nothing_is_left(method):
    net = network()
    adapted = offsupport.adapt(net, method, **FAST)
    before = {name: p.clone() for name, p in adapted.model.named_parameters()}
    first = adapted(images())
    assert all(same_bits(p, before[name]) for name, p in adapted.model.named_parameters())
    assert not adapted.snapshot().optimizer
    assert same_bits(adapted(images()), first)


@pytest.mark.parametrize("method", ["mae-ttt", "mae-ttt+em"])
def test_a_learning_rate_of_zero_is_no_adaptation(method):
    net, x = network(), images()
    logits = offsupport.adapt(net, method, **{**FAST, "lr": 0.0})(x)
    assert same_bits(logits, torch.cat([net(image) for image in x.split(1)]).detach())


def test_an_image_has_the_same_numbers_wherever_it_stands():
    adapted = offsupport.adapt(network(), "mae-ttt+em", **FAST)
    x = images(5)
    whole = adapted(x)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert same_bits(adapted(x[order]), whole[order])
    for size in (1, 2):
        assert same_bits(torch.cat([adapted(part) for part in x.split(size)]), whole)
    other = offsupport.adapt(network(), "mae-ttt+em", seed=1, **FAST)(x)
    assert not torch.allclose(other, whole)


def test_entropy_falls_in_the_entropy_stage():
    net, x = network(), images(8)
    adapted = offsupport.adapt(net, "mae-ttt+em", lr=0.05, steps=2, masks=2, em_steps=3)
    seen = []
    descend = adapted._descend_uncertainty
    adapted._descend_uncertainty = lambda loss: (seen.append(loss.item()), descend(loss))
    adapted(x)
    rounds = torch.tensor(seen).view(8, 2, 3)
    assert (rounds[..., 2] < rounds[..., 0]).all()


def test_information_on_copies_has_no_gradient_and_plain_entropy_has():
    net = network().requires_grad_(True)
    copies = images(1).expand(32, -1, -1, -1)
    size = {}
    for loss in ("entropy", "information", "marginal"):
        found = torch.autograd.grad(uncertainty(net(copies), loss), list(net.parameters()), allow_unused=True)
        size[loss] = max(float(g.abs().max()) for g in found if g is not None)
    assert size["information"] < 1e-12
    assert size["entropy"] > 1e-3
    assert size["marginal"] == pytest.approx(size["entropy"])
    different = torch.autograd.grad(uncertainty(net(images(32)), "information"), net.model.norm.weight)[0]
    assert different.abs().max() > 1e-4
    with pytest.raises(ConfigError, match="copies of one image"):
        offsupport.adapt(network(), "mae-ttt+em", em_loss="information")


def test_one_forward_pass_stands_for_copies():
    net = network().requires_grad_(True)
    one, copies = images(1), images(1).expand(32, -1, -1, -1)
    for loss in ("entropy", "marginal"):
        parameters = [p for name, p in net.named_parameters() if "decoder" not in name and "mask_token" not in name]
        pair = [torch.autograd.grad(uncertainty(net(x), loss), parameters) for x in (one, copies)]
        for a, b in zip(*pair, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


CHANGES = [
    {"steps": 2}, {"masks": 6}, {"mask_ratio": 0.5}, {"weight_decay": 0.5}, {"optimizer": "adam"}, {"momentum": 0.5},
    {"tune": "all"}, {"recon_views": "crops"}, {"online": True}, {"lr": 0.01}, {"online": True, "min_batch": 9},
]  # fmt: skip
EM_CHANGES = [
    {"em_steps": 2}, {"em_views": "crops"}, {"em_views": "crops", "em_images": 3},
    {"em_views": "crops", "em_loss": "marginal"}, {"em_views": "crops", "em_loss": "information"},
    {"online": True, "em_loss": "information"}, {"online": True, "em_loss": "marginal"}, {"optimizers": "separate"},
]  # fmt: skip


def test_every_option_has_an_effect():
    x = images(2)
    for method, changes in (("mae-ttt", CHANGES), ("mae-ttt+em", CHANGES + EM_CHANGES)):
        outputs = [offsupport.adapt(network(), method, **{**FAST, **change})(x) for change in [{}, *changes]]
        for i, a in enumerate(outputs):
            for j in range(i):
                assert not torch.allclose(a, outputs[j], rtol=1e-6), (method, i, j)


def test_online_goes_on_from_batch_to_batch_and_learns_from_all_images():
    net, x = network(), images(4)
    adapted = offsupport.adapt(net, "mae-ttt", online=True, **{**FAST, "steps": 1, "masks": 8})
    generator = copy.deepcopy(adapted.generator)
    first = adapted(x)
    plain = copy.deepcopy(net).requires_grad_(True)
    encoder = [p for name, p in plain.model.named_parameters() if not name.startswith(("decoder", "classifier"))]
    each = ((x - 0.5) / 0.2).repeat_interleave(2, 0)
    loss = plain.model.loss(each, draw_masks(8, 16, 0.75, generator))
    step(torch.optim.SGD(encoder, lr=0.05), loss, encoder)
    close(first, plain(x))
    assert not torch.allclose(adapted(x), first)
    assert adapted.snapshot().optimizer


@pytest.mark.parametrize("optimizers", ["shared", "separate"])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_an_online_stream_can_be_saved_and_taken_up(optimizers, rule, tmp_path):
    options = {**FAST, "online": True, "optimizers": optimizers, "optimizer": rule, "lr": 0.01}
    adapted = offsupport.adapt(network(), "mae-ttt+em", **options)
    adapted(images())
    adapted.save(tmp_path / "a.safetensors")
    expected = adapted(images(seed=2))
    again = offsupport.load_adapted(network(), tmp_path / "a.safetensors")
    assert same_bits(again(images(seed=2)), expected)
    again.reset()
    assert same_bits(again(images()), offsupport.adapt(network(), "mae-ttt+em", **options)(images()))


def test_one_bad_episode_does_not_spoil_the_others():
    net, x = network(), images(4)
    expected = offsupport.adapt(net, "mae-ttt", **FAST)(x)
    bad = x.clone()
    bad[2] *= 1e200  # finite, but its square is not
    adapted = offsupport.adapt(net, "mae-ttt", **FAST)
    logits = adapted(bad)
    rest = [0, 1, 3]
    assert same_bits(logits[rest], expected[rest])
    assert adapted.events["out_of_range"] == 1
    assert logits.isfinite().all()


def test_normalisation_outside_the_autoencoder_is_part_of_the_model():
    inner, x = network(normalized=False), images(1)
    wrapped = offsupport.adapt(Normalized(inner, [0.5] * 3, [0.2] * 3).double(), "mae-ttt", **FAST)
    plain = offsupport.adapt(inner, "mae-ttt", input_range=None, **FAST)
    generator = wrapped.generator_for(x)
    plain.generator_for = lambda _: generator
    close(wrapped(x), plain((x - 0.5) / 0.2))


def test_the_linear_head_normalises_by_source_statistics():
    net = network(head="linear")
    net.model.classifier[0].running_mean.normal_()
    adapted = offsupport.adapt(net, "mae-ttt+em", **FAST)
    x = images()
    assert same_bits(adapted(x), torch.cat([adapted(image) for image in x.split(1)]))
    assert adapted.events["small_batch"] == 0


def test_passes_are_counted():
    adapted = offsupport.adapt(network(), "mae-ttt+em", **FAST, em_steps=2)
    adapted(images(2))
    assert adapted.passes == {"forward": 2 * (3 * 3 + 1), "backward": 2 * 3 * 3}


def test_refusals_say_what_to_do():
    with pytest.raises(ModelError, match=r"holds no masked autoencoders.*use 'tent' or 'shot'"):
        offsupport.adapt(resnet18(width=8), "mae-ttt")
    with pytest.raises(ModelError, match=r"no classifier.*cifar10-mae-tiny"):
        offsupport.adapt(mae("tiny/4"), "mae-ttt")
    for ratio in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match="above 0 and below 1"):
            offsupport.adapt(network(), "mae-ttt", mask_ratio=ratio)
    with pytest.raises(ConfigError, match="leaves none of 16 patches"):
        offsupport.adapt(network(), "mae-ttt", mask_ratio=0.99)
    for name, value in {"steps": 0, "masks": 0, "weight_decay": -1, "em_steps": -1, "em_images": 0}.items():
        with pytest.raises(ConfigError, match=name):
            offsupport.adapt(network(), "mae-ttt+em", **{name: value})


class Detour(nn.Module):
    """Holds an autoencoder that it does not use."""

    def __init__(self):
        super().__init__()
        self.inner = network(normalized=False)
        self.head = nn.Linear(192, 4).double()

    def forward(self, x):
        return self.head(x.flatten(1))


def test_an_autoencoder_that_is_not_used_is_refused():
    with pytest.raises(ModelError, match="not used in its forward pass"):
        offsupport.adapt(Detour(), "mae-ttt", **FAST)(images(1))


def test_defaults_are_those_of_the_reference():
    config = offsupport.adapt(network(), "mae-ttt+em").config
    stated = {"lr": 5e-3, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0, "steps": 20, "masks": 128}
    stated |= {"mask_ratio": 0.75, "tune": "encoder", "em_steps": 1, "em_loss": "entropy", "em_views": "copies"}
    stated |= {"optimizers": "shared", "online": False}
    assert {name: getattr(config, name) for name in stated} == stated


@pytest.mark.slow
def test_vit_large_at_224_pixels_takes_one_step_of_each_kind():
    torch.manual_seed(0)
    net = mae("vit-l/16", classes=1000)
    adapted = offsupport.adapt(net, "mae-ttt+em", steps=1, masks=2, inplace=True)
    logits = adapted(torch.rand(1, 3, 224, 224))
    assert logits.shape == (1, 1000)
    assert logits.isfinite().all()
    assert adapted.passes == {"forward": 3, "backward": 2}
    assert not any(adapted.events.values())


@pytest.mark.parametrize("method", ["mae-ttt", "mae-ttt+em"])
def test_the_sparsity_constraint_composes_and_stays_out_of_what_is_not_tuned(method):
    net, x = network(), images(2)
    adapted = offsupport.adapt(net, f"{method}+sc", rank=2, **FAST)
    start = adapted.snapshot()
    assert not torch.allclose(adapted(x), offsupport.adapt(net, method, **FAST)(x))
    updates = [name for name in adapted.parameters_adapted if "low_rank" in name]
    assert any("blocks.0.mlp.fc1" in name for name in updates)
    assert not any("decoder" in name for name in updates)
    assert any("classifier" in name for name in updates) == (method == "mae-ttt+em")
    after = adapted.snapshot()
    assert all(same_bits(after.parameters[name], value) for name, value in start.parameters.items())
    still = offsupport.adapt(net, f"{method}+sc", rank=2, **{**FAST, "lr": 0.0})(x)
    close(still, torch.cat([net(image) for image in x.split(1)]))
