"""Methods by name: other people's, those behind a suffix, presets, and what the engine asks of a method."""

import copy
import importlib.metadata
import pickle
import pkgutil
import re
import sys
import types

import pytest
import torch
from torch import nn

import offsupport
from offsupport import methods
from offsupport.core.errors import ConfigError, InputError
from offsupport.engine.registry import NARROW, PUBLISHED
from offsupport.engine.state import Memory
from offsupport.methods import METHODS
from offsupport.testing import NETWORKS, Case, toy_images
from offsupport.testing.case import run, stream

CARD = dict.fromkeys(("summary", "paper", "adapts", "scored", "single"), "")


def their_method(name, **attributes):
    """Register a method as a module outside this package does."""

    def step(self, x):
        logits = self.network(x)
        self.descend(logits.square().mean())
        return logits

    def trainable(self):
        return offsupport.nn.affine_parameters(self.model)

    cls = type("Theirs", (methods.Adapter,), {"step": step, "trainable": trainable, **attributes})
    info = methods.MethodInfo(name=name, norm="any", source="none", **CARD)
    return offsupport.register_method(info, methods.StepConfig)(cls)


@pytest.fixture
def installed(monkeypatch):
    """A package that is installed and offers the method ``theirs``; nothing of it is imported yet."""
    before = dict(METHODS._items)

    class Module(types.ModuleType):
        def __getattr__(self, name):
            if name == "Theirs":
                return their_method("theirs")
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "their_package", Module("their_package"))
    point = importlib.metadata.EntryPoint("theirs", "their_package:Theirs", "offsupport.methods")
    monkeypatch.setattr(METHODS, "_outside", {"theirs": point})
    yield before
    METHODS._items.clear()
    METHODS._items.update(before)


@pytest.mark.filterwarnings("ignore:.*rank")
@pytest.mark.parametrize("name", ["theirs", "theirs+sc"])
def test_a_method_of_an_installed_package_is_found_by_name(installed, name):
    assert "theirs" not in METHODS._items
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), name, lr=0.1)
    adapted(toy_images(32, seed=0)[0])
    assert adapted.passes["backward"] == 1
    assert adapted.info.name == name


def test_lists_and_errors_know_the_method_of_an_installed_package(installed):
    assert offsupport.list_methods() == [*installed, "theirs"]
    with pytest.raises(ConfigError) as error:
        offsupport.adapt(NETWORKS["batch_norm"](), "theirs+cs")
    assert "'theirs+sc'" in error.value.remedy


HOMES = {"tttpp": "projection", "ttt": "rotation", "foa": "mae", "mae-ttt": "mae", "mae-ttt+em": "mae"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METHODS if "per image" not in METHODS[name].info.passes])
def test_a_batch_costs_the_passes_on_the_card(name):
    """Of a batch of 64, when no sample is left out; of what depends on the images, the first number said."""
    words = METHODS[name].info.passes.partition(" or ")[0].rpartition("with steps ")[2]
    said = {kind: sum(int(count) for count in re.findall(rf"(\d+){kind}", words)) for kind in "FB"}
    hyper = {"margin": 2.0} if name in ("eata", "sar", "deyo") else {}
    adapted = Case(name, NETWORKS[HOMES.get(name, "batch_norm")], hyper).wrap(collapse="off")
    batches = stream(4, size=64)
    run(adapted, batches[:3])
    before = dict(adapted.passes)
    run(adapted, batches[3:])
    assert adapted.passes["forward"] - before["forward"] == said["F"]
    assert adapted.passes["backward"] - before["backward"] == said["B"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METHODS if "per image" in METHODS[name].info.passes])
def test_an_image_costs_the_passes_on_the_card(name):
    times, forward, backward = re.match(r"per image (?:(\d+) times )?(\d+)F (\d+)B", METHODS[name].info.passes).groups()
    adapted = Case(name, NETWORKS[HOMES.get(name, "batch_norm")], {}).wrap(collapse="off")
    run(adapted, stream(1, size=2))
    assert adapted.passes["forward"] == 2 * (int(times or 1) * int(forward) + 1)
    assert adapted.passes["backward"] == 2 * int(times or 1) * int(backward)


def test_cards_name_what_a_network_must_have():
    special = {name for name in METHODS if METHODS[name].info.needs}
    assert special == {*HOMES, "t3a", "neo"}


def test_the_group_of_entry_points():
    assert METHODS.group == "offsupport.methods"


def test_every_file_of_the_room_is_a_method():
    files = {module.name for module in pkgutil.iter_modules(methods.__path__)}
    assert {METHODS[name].__module__ for name in METHODS} == {f"offsupport.methods.{name}" for name in files}


def test_the_old_name_of_the_decorator_says_where_it_is_now():
    with pytest.warns(DeprecationWarning, match=r"offsupport\.register_method"):
        assert methods.register is offsupport.register_method
    with pytest.raises(AttributeError, match="nothing"):
        methods.nothing  # noqa: B018


def test_the_old_name_of_the_statistics_says_what_it_is_now():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "bn")
    with pytest.warns(DeprecationWarning, match="norm_statistics"):
        assert adapted.policy is adapted.norm_statistics


@pytest.mark.parametrize(
    ("presets", "expected"),
    [
        ({}, {}),
        ({"cifar10": {"lr": 0.5}}, {"cifar10": {"lr": 0.5}, NARROW: {"lr": 0.5}}),
        ({"cifar10": {"lr": 0.5}, NARROW: {"lr": 0.7}}, {"cifar10": {"lr": 0.5}, NARROW: {"lr": 0.7}}),
    ],
)
def test_narrow_networks_get_the_published_preset_unless_a_method_says_better(presets, expected):
    try:
        assert their_method("mine", presets=presets).presets == expected
        sparse = METHODS["mine+sc"].presets
        assert list(sparse) == list(expected)
        if expected:
            assert sparse[NARROW] == sparse[PUBLISHED] | expected[NARROW]
    finally:
        METHODS._items.pop("mine", None)


def test_a_method_may_say_what_its_constrained_form_is_given():
    try:
        said = {"presets": {"cifar10": {"lr": 0.5}, NARROW: {"lr": 0.7}}, "sparse_presets": {NARROW: {"lr": 0.6}}}
        their_method("mine", **said)
        assert METHODS["mine"].presets[NARROW]["lr"] == 0.7
        assert METHODS["mine+sc"].presets[NARROW]["lr"] == 0.6
        assert METHODS["mine+sc"].presets["cifar10"]["lr"] == 0.5
    finally:
        METHODS._items.pop("mine", None)


def test_source_statistics_are_made_with_the_preset():
    model = NETWORKS["batch_norm"]()
    images = [toy_images(16, seed, shifted=False)[0] for seed in range(3)]
    plain = offsupport.source_stats(model, images, "ttac", preset="cifar10")
    diagonal = offsupport.source_stats(model, images, "ttac", preset="imagenet")
    assert plain.tensors["class_cov"].dim() == 3
    assert diagonal.tensors["class_cov"].dim() == 2
    full = offsupport.source_stats(model, images, "ttac", preset="imagenet", class_cov="full")
    assert full.tensors["class_cov"].dim() == 3, "what is given goes before the preset"
    with pytest.raises(ConfigError, match="Unknown preset 'imagnet'"):
        offsupport.source_stats(model, images, "ttac", preset="imagnet")


@pytest.mark.parametrize(
    ("method", "hyper", "independent"),
    [
        ("source", {}, True),
        ("bn", {}, False),
        ("tent", {}, False),
        ("memo", {}, True),
        ("memo+sc", {}, True),
        ("mae-ttt", {}, True),
        ("mae-ttt", {"online": True}, False),
        ("mae-ttt+em", {"together": True}, False),
    ],
)
def test_methods_that_predict_each_image_by_itself_say_so(method, hyper, independent):
    assert METHODS[method].config_class(**hyper).independent is independent


def test_memory_takes_declared_names_alone_and_survives_copies():
    memory = Memory({"a": torch.zeros(2)})
    for write in (lambda: memory.update({"b": torch.ones(1)}), lambda: memory.__setitem__("b", torch.ones(1))):
        with pytest.raises(KeyError, match="not declared"):
            write()
    memory.update({"a": torch.ones(2, requires_grad=True)})
    assert not memory["a"].requires_grad
    assert type(memory.copy()) is dict
    for twin in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert type(twin) is Memory
        assert torch.equal(twin["a"], memory["a"])
        assert twin["a"] is not memory["a"]
        with pytest.raises(KeyError, match="not declared"):
            twin["b"] = torch.ones(1)


def test_a_batch_that_is_refused_draws_no_random_numbers():
    """Whether the model takes a batch of another rank is found out by running it, and it may be in training mode."""
    model = nn.Sequential(nn.Dropout(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
    adapted = offsupport.adapt(model, "bn")
    adapted.model.train()
    x, before = torch.rand(3, 8, 8), torch.get_rng_state()
    with pytest.raises(InputError):
        adapted(x)
    assert torch.equal(torch.get_rng_state(), before)
