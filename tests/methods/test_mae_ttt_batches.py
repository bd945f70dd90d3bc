"""MAE test-time training on batches of different images: information maximisation against a slow, plain loop."""

import copy

import pytest
import torch

import offsupport
from offsupport.core.errors import ConfigError
from offsupport.nn import Normalized, mae
from offsupport.nn.mae import draw_masks

SHAPE = {"image": 8, "patch": 2, "dim": 16, "depth": 2, "heads": 2, "decoder_dim": 8, "decoder_depth": 1}
SHAPE |= {"decoder_heads": 2, "head_dim": 16, "head_depth": 1, "head_heads": 2}
STEPS = {"steps": 2, "masks": 8, "lr": 0.01, "em_lr": 0.003}
INFORMATION = {"together": True, "em_loss": "information", "optimizers": "separate"}


def network():
    torch.manual_seed(0)
    return Normalized(mae("digits/8", classes=4, **SHAPE), [0.5] * 3, [0.25] * 3).double().eval()


def images(n=4, seed=1):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def information(logits):
    """Mean entropy minus the entropy of the mean, image by image and class by class."""
    n, classes = logits.shape
    p = [[logits[i, k].exp() / logits[i].exp().sum() for k in range(classes)] for i in range(n)]
    each = sum(-p[i][k] * p[i][k].log() for i in range(n) for k in range(classes)) / n
    mean = [sum(p[i][k] for i in range(n)) / n for k in range(classes)]
    return each - sum(-m * m.log() for m in mean)


class Plain:
    """SGD with momentum, or Adam, one parameter after the other."""

    def __init__(self, rule, lr):
        self.rule, self.lr, self.kept = rule, lr, {}

    def step(self, loss, parameters):
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is None:
                continue
            if self.rule == "sgd":
                kept = self.kept[name] = 0.9 * self.kept.get(name, 0.0) + gradient
                change = kept
            else:
                t, first, second = self.kept.get(name, (0, 0.0, 0.0))
                t, first, second = t + 1, 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
                self.kept[name] = t, first, second
                change = first / (1 - 0.9**t) / ((second / (1 - 0.95**t)).sqrt() + 1e-8)
            with torch.no_grad():
                parameter -= self.lr * change


def reference(net, x, generator, rules, em_steps, part, recon_steps=1, going_on=None, online=False):
    net = copy.deepcopy(net).requires_grad_(True)
    inner, names = net.model, dict(net.model.named_parameters())
    encoder = {n: p for n, p in names.items() if not n.startswith(("decoder", "classifier"))}
    norms = {n: p for n, p in encoder.items() if ".norm" in n or n.startswith("norm.")}
    moved = {"norms": norms, "encoder": encoder}.get(part, {n: p for n, p in names.items() if "decoder" not in n})
    first, second = going_on or [Plain(rule, lr) for rule, lr in zip(rules, (STEPS["lr"], STEPS["em_lr"]), strict=True)]
    for _ in range(STEPS["steps"]):
        for _ in range(recon_steps):
            each = ((x - 0.5) / 0.25).repeat_interleave(STEPS["masks"] // len(x), 0)
            first.step(inner.loss(each, draw_masks(len(each), 16, 0.75, generator)), encoder)
        for _ in range(em_steps):
            second.step(information(net(x)), moved)
    return (net, (first, second)) if online else net


@pytest.mark.parametrize("part", ["norms", "encoder", "encoder-and-head"])
@pytest.mark.parametrize("rules", [("adam", "adam"), ("sgd", "adam"), ("adam", "sgd")])
def test_a_batch_is_an_episode_of_both_kinds_of_steps(part, rules):
    net, x = network(), images()
    options = {"optimizer": rules[0], "em_optimizer": rules[1], "em_tune": part, "em_steps": 2}
    adapted = offsupport.adapt(net, "mae-ttt+em", **INFORMATION, **STEPS, **options)
    logits = adapted(x)
    expected = reference(net, x, adapted.generator_for(x), rules, 2, part)(x).detach()
    torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(logits, net(x), rtol=1e-3)


def test_entropy_steps_alone_draw_no_masks():
    net, x = network(), images()
    adapted = offsupport.adapt(net, "mae-ttt+em", **INFORMATION, **STEPS, recon_steps=0, em_tune="norms")
    expected = reference(net, x, adapted.generator_for(x), ("sgd", "sgd"), 1, "norms", recon_steps=0)(x).detach()
    torch.testing.assert_close(adapted(x), expected, rtol=1e-8, atol=1e-8)
    assert adapted.passes == {"forward": 3, "backward": 2}


def test_without_entropy_steps_it_is_the_other_method():
    x = images()
    options = {"together": True, "steps": 2, "masks": 8}
    both = [offsupport.adapt(network(), name, **options)(x) for name in ("mae-ttt", "mae-ttt+em")]
    assert not torch.equal(*both)
    none = offsupport.adapt(network(), "mae-ttt+em", **options, em_steps=0)(x)
    assert torch.equal(none, both[0])


@pytest.mark.parametrize("method", ["mae-ttt", "mae-ttt+em"])
def test_everything_is_put_back_after_a_batch(method):
    options = {**STEPS, **INFORMATION} if method == "mae-ttt+em" else {"together": True, "steps": 2, "masks": 8}
    adapted = offsupport.adapt(network(), method, **options)
    before = {name: p.clone() for name, p in adapted.model.named_parameters()}
    first = adapted(images())
    adapted(images(seed=2))
    assert all(torch.equal(p, before[name]) for name, p in adapted.model.named_parameters())
    assert not adapted.snapshot().optimizer
    assert torch.equal(adapted(images()), first)


def test_online_goes_on_where_together_begins_again():
    online = {**INFORMATION, "together": False, "online": True}
    adapted = offsupport.adapt(network(), "mae-ttt+em", **online, **STEPS)
    assert not torch.equal(adapted(images()), adapted(images()))
    assert any(name.startswith("second:") for name in adapted.snapshot().optimizer)


@pytest.mark.parametrize("part", ["norms", "encoder", "encoder-and-head"])
def test_entropy_steps_move_what_they_may(part):
    net = network()
    options = {**STEPS, **INFORMATION, "together": False, "online": True, "recon_steps": 0, "em_tune": part}
    adapted = offsupport.adapt(net, "mae-ttt+em", **options)
    adapted(images())
    after = dict(adapted.model.named_parameters())
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, after[name])}
    assert any("classifier" in name for name in moved) == (part == "encoder-and-head")
    assert any("attn" in name for name in moved) == (part != "norms")
    assert "model.norm.weight" in moved
    assert not any("decoder" in name for name in moved)


def test_a_lone_image_has_no_information():
    adapted = offsupport.adapt(network(), "mae-ttt+em", **INFORMATION, **STEPS)
    adapted(images(1))
    assert adapted.events["empty_selection"] == STEPS["steps"]
    assert adapted.passes["backward"] == STEPS["steps"]


@pytest.mark.filterwarnings("error")
def test_entropy_on_one_image_is_warned_of_and_on_batches_is_not():
    with pytest.warns(UserWarning, match="lock its prediction in") as said:
        offsupport.adapt(network(), "mae-ttt+em")
    assert len(said) == 1
    offsupport.adapt(network(), "mae-ttt+em", **INFORMATION)
    offsupport.adapt(network(), "mae-ttt+em", em_steps=0)
    offsupport.adapt(network(), "mae-ttt")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"together": True, "online": True}, "Leave one of them out"),
        ({"em_lr": 0.1}, 'optimizers="separate"'),
        ({"em_optimizer": "adam"}, 'optimizers="separate"'),
        ({"together": True, "em_views": "crops"}, "would change nothing"),
        ({"recon_steps": 0, "em_steps": 0}, "nothing adapts"),
        ({"recon_steps": -1}, "recon_steps"),
        ({"em_lr": -1.0, "optimizers": "separate"}, "em_lr"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        offsupport.adapt(network(), "mae-ttt+em", **options)


def test_a_step_size_of_its_own_stands_where_reconstruction_has_none():
    x = images()
    still = offsupport.adapt(network(), "mae-ttt+em", **INFORMATION, **{**STEPS, "lr": 0.0})(x)
    alone = offsupport.adapt(network(), "mae-ttt+em", **INFORMATION, **STEPS, recon_steps=0)(x)
    torch.testing.assert_close(still, alone, rtol=1e-8, atol=1e-8)


def test_the_sparsity_constraint_keeps_its_ratio_in_both_stages():
    options = {**INFORMATION, **STEPS, "rank": 2, "ratio_l": 5.0}
    adapted = offsupport.adapt(network(), "mae-ttt+em+sc", **options)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in adapted.optimizers().values()]
    assert rates[0] == pytest.approx([0.01, 0.05, 0.05])
    assert rates[1] == pytest.approx([0.003, 0.015, 0.015])


@pytest.mark.parametrize("rules", [("adam", "adam"), ("sgd", "sgd")])
def test_online_is_a_plain_loop_over_batches_that_never_goes_back(rules):
    options = {**INFORMATION, **STEPS, "together": False, "online": True, "em_tune": "norms", "em_steps": 2}
    adapted = offsupport.adapt(network(), "mae-ttt+em", **options, optimizer=rules[0], em_optimizer=rules[1])
    generator = copy.deepcopy(adapted.generator)
    net, optimisers = network(), None
    for seed in (1, 2, 3):
        x = images(seed=seed)
        net, optimisers = reference(net, x, generator, rules, 2, "norms", going_on=optimisers, online=True)
        torch.testing.assert_close(adapted(x), net(x).detach(), rtol=1e-8, atol=1e-8)


BATCH_CHANGES = [
    {"em_tune": "norms"}, {"em_tune": "encoder"}, {"em_lr": 0.03}, {"em_optimizer": "adam"}, {"em_steps": 2},
    {"em_steps": 0}, {"recon_steps": 0}, {"recon_steps": 2}, {"em_loss": "entropy"}, {"em_loss": "marginal"},
    {"tune": "all"}, {"tune": "encoder-without-tokens"}, {"recon_views": "crops"}, {"masks": 4}, {"steps": 3},
    {"optimizer": "adam"}, {"lr": 0.03}, {"momentum": 0.5}, {"mask_ratio": 0.5}, {"weight_decay": 0.5}, {"seed": 1},
    {"optimizers": "shared", "em_lr": None},
]  # fmt: skip


def test_every_option_of_batches_has_an_effect():
    x, tried = images(), [{}, *BATCH_CHANGES]
    answers = [offsupport.adapt(network(), "mae-ttt+em", **{**INFORMATION, **STEPS, **change})(x) for change in tried]
    for i, one in enumerate(answers):
        for j in range(i):
            assert not torch.allclose(one, answers[j], rtol=1e-7, atol=0), (tried[i], tried[j])
