"""An adapter among other people's tools: loaders, trainers, named batches, attributes of the model, export."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import offsupport
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.nn import resnet18
from offsupport.testing import NETWORKS
from offsupport.testing.case import stream


def network(seed=0):
    torch.manual_seed(seed)
    return resnet18(width=4).eval()


def images(n, seed=0):
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


class Named(nn.Module):
    """Takes a named batch and returns an object, as networks of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.body = network()
        self.num_labels = 10

    def forward(self, pixel_values=None):
        return SimpleNamespace(logits=self.body(pixel_values))

    def forward_features(self, x):
        return self.body.conv1(x)


def test_a_loader_feeds_it():
    loader = DataLoader(TensorDataset(images(40), torch.arange(40) % 10), batch_size=16, shuffle=False)
    adapted = offsupport.adapt(network(), "tent")
    assert [len(adapted(x)) for x, _ in loader] == [16, 16, 8]
    assert offsupport.evaluate(adapted, loader).n == 40


def test_a_batch_may_have_a_name_and_the_logits_a_place():
    adapted, plain = (offsupport.adapt(Named(), "tent", logits=lambda out: out.logits) for _ in range(2))
    assert torch.equal(adapted(pixel_values=images(32)), plain(images(32)))
    with pytest.raises(InputError, match="takes one batch, and got 2 and labels"):
        adapted(images(32), labels=torch.zeros(32))
    with pytest.raises(InputError, match="got none"):
        adapted()


def test_what_it_does_not_have_is_the_models():
    adapted = offsupport.adapt(Named(), "bn", logits=lambda out: out.logits)
    assert adapted.num_labels == 10
    assert torch.equal(adapted.forward_features(images(2)), adapted.model.forward_features(images(2)))
    assert adapted.config is not None  # an adapter's own things stay its own
    assert adapted.fork().num_labels == 10
    with pytest.raises(AttributeError, match="nowhere"):
        adapted.nowhere  # noqa: B018


class Trainer:
    """The smallest stand-in for a trainer that calls ``predict_step`` under inference mode and moves batches itself."""

    def predict(self, module, loader):
        with torch.inference_mode():
            return [module.predict_step(batch, i) for i, batch in enumerate(loader)]


class Module(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.adapted = offsupport.adapt(model, "tent", lr=0.1)

    def predict_step(self, batch, batch_idx):
        return self.adapted(batch[0]).argmax(1)


def test_predict_step_of_a_trainer_adapts():
    loader = DataLoader(TensorDataset(images(64), torch.zeros(64)), batch_size=32)
    module = Module(network())
    found = Trainer().predict(module, loader)
    direct = offsupport.adapt(network(), "tent", lr=0.1)
    assert torch.equal(torch.cat(found), torch.cat([direct(x).argmax(1) for x in images(64).split(32)]))
    assert direct.passes == module.adapted.passes


@pytest.mark.parametrize("method", ["source", "bn", "tent", "minimal", "tent+sc", "auto", "shot"])
def test_frozen_it_is_a_plain_network_that_predicts_as_it_did(method):
    model, x = network(), images(32)
    adapted = offsupport.adapt(model, method, monitor=False, **({"rank": 3} if method == "tent+sc" else {}))
    for seed in range(3):
        adapted(images(32, seed) * 0.3)
    state = {name: value.clone() for name, value in adapted.model.state_dict().items()}
    with torch.no_grad(), adapted.norm_statistics.using(adapted.statistics_policy.kind):
        expected = adapted.network(x)
    plain = adapted.freeze(x)
    torch.testing.assert_close(plain(x), expected, rtol=1e-4, atol=1e-4)
    assert {type(layer) for layer in plain.modules()} <= {type(layer) for layer in model.modules()}
    assert not any(parameter.requires_grad for parameter in plain.parameters())
    assert torch.equal(plain(x)[:1], plain(x)[:1])
    assert all(torch.equal(value, adapted.model.state_dict()[name]) for name, value in state.items())


def test_frozen_it_can_be_exported():
    adapted = offsupport.adapt(network(), "minimal")
    for seed in range(3):
        adapted(images(32, seed) * 0.3)
    plain, x = adapted.freeze(), images(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(plain, x)
    torch.testing.assert_close(traced(x), plain(x))
    program = torch.export.export(plain, (x,))
    torch.testing.assert_close(program.module()(x), plain(x))


def test_what_cannot_be_frozen_says_what_to_give():
    with pytest.raises(ModelError, match=r"adapted\.freeze\(images\)"):
        offsupport.adapt(network(), "bn").freeze()
    with pytest.raises(ModelError, match="learns anew for each image"):
        offsupport.adapt(network(), "memo").freeze()


def test_a_traced_model_is_refused_with_a_way():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(network(), images(1))
    for method in ("auto", "tent", "shot", "source"):
        with pytest.raises(ModelError, match=r"Adapt the nn\.Module it was made of"):
            offsupport.adapt(traced, method)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids).mean(1)))


def test_inputs_of_another_kind_get_a_remedy():
    with pytest.raises(InputError, match="behind its embedding"):
        offsupport.adapt(Tokens().eval(), "tent")(torch.randint(0, 9, (32, 5)))
    with pytest.raises(InputError, match=r"x\.permute\(0, 3, 1, 2\)"):
        offsupport.adapt(network(), "tent")(torch.rand(32, 16, 16, 3))
    for word in (None, 3):
        with pytest.raises(ConfigError, match="A method is named by a word"):
            offsupport.adapt(network(), word)


def test_probabilities_are_noticed_once():
    adapted = offsupport.adapt(nn.Sequential(network(), nn.Softmax(1)), "tent")
    with pytest.warns(UserWarning, match="seems to return probabilities"):
        adapted(images(32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted(images(32))
        offsupport.adapt(nn.Sequential(network(), nn.LogSoftmax(1)), "tent")(images(32))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"pixel_values": images(32), "labels": torch.zeros(32)}, r"batch\['pixel_values'\], batch\['labels'\]"),
        (images(32), "have no labels"),
        ((images(32),), "have no labels"),
        ((images(32), torch.full((32,), 10)), "a label 10, and the model has 10 classes"),
        ((images(32), torch.rand(32)), "one class number"),
    ],
)
def test_batches_that_cannot_be_scored_say_why(batch, said):
    with pytest.raises(InputError, match=said):
        offsupport.evaluate(offsupport.adapt(network(), "bn"), [batch])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, of what it leaves out
@pytest.mark.parametrize("method", ["tent", "minimal"])
def test_a_compiled_model_adapts_as_it_does_without(method):
    net = NETWORKS["batch_norm"]()
    plain = offsupport.adapt(net, method)
    compiled = offsupport.adapt(torch.compile(net, backend="eager"), method)
    for x in stream(3):
        assert torch.allclose(compiled(x), plain(x), atol=1e-5)
    assert compiled.events == plain.events
    compiled.reset()
    plain.reset()
    x = stream(1)[0]
    assert torch.allclose(compiled(x), plain(x), atol=1e-5)
