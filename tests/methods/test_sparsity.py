"""What +SC is to its user: names, presets, reports, files, and sentences where it cannot work."""

import dataclasses
import math
import pickle
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, ModelError, SourceStatsError
from offsupport.engine.sparsity import PRESETS, TEACHER_PRESETS, TeacherConstraint, constrained
from offsupport.methods import METHODS, Adapter, MethodInfo, StepConfig, register_method
from offsupport.nn import resnet18
from offsupport.nn.lora import LowRank, updated_layers
from offsupport.testing import NETWORKS, toy_images
from offsupport.testing.case import run, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*layers allow")
STEPPING = [name for name in METHODS if issubclass(METHODS[name].config_class, StepConfig)]


def adapted_to(name="tent+sc", network="batch_norm", batches=4, **hyper):
    adapted = offsupport.adapt(NETWORKS[network](), name, **{"lr": 0.02, **hyper})
    run(adapted, stream(batches))
    return adapted


@pytest.mark.parametrize("name", STEPPING)
def test_every_method_that_takes_steps_has_a_constrained_form(name):
    cls, base = METHODS[f"{name}+sc"], METHODS[name]
    assert issubclass(cls, base)
    assert cls is METHODS[f"{name}+sc"]
    assert cls.info.name == f"{name}+sc"
    assert (cls.info.norm, cls.info.source, cls.info.scored) == (base.info.norm, base.info.source, base.info.scored)
    mine = {field.name: field.default for field in dataclasses.fields(cls.config_class)}
    theirs = {field.name: field.default for field in dataclasses.fields(base.config_class)}
    assert theirs.items() <= mine.items()
    assert f"{name}+sc" not in offsupport.list_methods()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bn+sc", "'bn' takes no gradient steps.*'tent[+]sc'"),
        ("source+sc", "takes no gradient steps"),
        ("tnet+sc", "Unknown method 'tnet'. Did you mean 'tent'"),
        ("tent+cs", "Did you mean 'tent[+]sc'"),
        ("tent+sc+sc", "Unknown method"),
    ],
)
def test_other_names_are_refused(name, sentence):
    with pytest.raises(ConfigError, match=sentence):
        offsupport.adapt(NETWORKS["batch_norm"](), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["tent", "shot", "sar"])
def test_it_starts_as_the_source_model_bit_for_bit(name, dtype):
    torch.manual_seed(0)
    model, x = resnet18(width=8).to(dtype).eval(), torch.rand(20, 3, 32, 32, dtype=dtype)
    constrained, plain = offsupport.adapt(model, f"{name}+sc"), offsupport.adapt(model, name)
    with torch.no_grad():
        assert torch.equal(constrained.model(x), model(x))
    assert torch.equal(constrained(x), plain(x))


def test_presets_are_the_published_ones():
    assert PRESETS["cifar10"] == {"rank": 64, "ratio_l": 1.0, "ratio_s": 1e-5, "penalty": "l1"}
    assert PRESETS["cifar100"] == {"rank": 16, "ratio_l": 2.0, "ratio_s": 1e-1, "penalty": "l1"}
    assert PRESETS["imagenet"] == {"rank": 4, "ratio_l": 5.0, "ratio_s": 1e-3, "penalty": "l1"}
    assert [TEACHER_PRESETS[name]["teacher_decay"] for name in PRESETS] == [0.0, 0.9, 0.9]
    config = offsupport.adapt(resnet18(width=8), "tent+sc", preset="imagenet", rank=2).config
    assert (config.optimizer, config.lr, config.rank, config.ratio_l) == ("sgd", 2.5e-4, 2, 5.0)


def test_a_method_may_have_defaults_of_its_own_beside_the_published_presets():
    class Own(METHODS["tent"]):
        sparse_defaults: ClassVar = {"freeze_base": True, "ratio_l": 0.5}

    fields = dict.fromkeys(("summary", "paper", "adapts", "scored", "single"), "")
    register_method(MethodInfo(name="own", norm="any", source="none", **fields), StepConfig)(Own)
    try:
        cls, model = METHODS["own+sc"], NETWORKS["batch_norm"]()
        config = offsupport.adapt(model, "own+sc").config
        assert (config.freeze_base, config.ratio_l, config.rank) == (True, 0.5, 4)
        assert offsupport.adapt(model, "own+sc", freeze_base=False).config.freeze_base is False
        again = pickle.loads(pickle.dumps(config))
        assert (again, type(again)) == (config, type(config))
        for name in PRESETS:
            published = offsupport.adapt(model, "own+sc", preset=name).config
            assert (published.freeze_base, published.ratio_l) == (False, PRESETS[name]["ratio_l"])
        narrow = offsupport.adapt(model, "own+sc", preset="cifar10-small").config
        assert (narrow.freeze_base, narrow.ratio_l, narrow.rank) == (True, 0.5, 4)
        assert {"freeze_base", "ratio_l"} <= {field.name for field in dataclasses.fields(cls.config_class)}
    finally:
        del METHODS._items["own"]


class Follower(Adapter):
    """A method with a teacher, reduced to what the constraint needs to know of it."""

    def trainable(self):
        return {"8.bias": dict(self.model.named_parameters())["8.bias"]}

    def decays(self):
        return dict.fromkeys(self.parameters_adapted, 0.99)

    def step(self, x):
        logits = self.network(x)
        self.descend(logits.square().mean())
        return logits


@pytest.fixture
def follower():
    fields = dict.fromkeys(("summary", "paper", "adapts", "scored", "single"), "")
    register_method(MethodInfo(name="follower", norm="none", source="none", **fields), StepConfig)(Follower)
    yield "follower"
    del METHODS._items["follower"]


def test_a_teacher_may_follow_the_updates_at_a_pace_of_their_own(follower):
    model = NETWORKS["dropout"]()
    decays = offsupport.adapt(model, f"{follower}+sc", teacher_decay=0.5).decays()
    low_rank = {name for name in decays if ".low_rank." in name}
    assert {decays[name] for name in low_rank} == {0.5}
    assert {name: value for name, value in decays.items() if name not in low_rank} == {"8.bias": 0.99}
    assert set(offsupport.adapt(model, f"{follower}+sc").decays().values()) == {0.99}
    imagenet = offsupport.adapt(model, f"{follower}+sc", preset="imagenet").config
    assert (imagenet.teacher_decay, imagenet.lr) == (0.9, 5e-4)
    with pytest.raises(ConfigError, match="teacher_decay"):
        offsupport.adapt(model, "tent+sc", teacher_decay=0.5)


def test_published_gates_never_reach_zero_and_proximal_ones_do():
    published = adapted_to(preset="cifar10", rank=4).findings()
    ours = adapted_to(penalty="prox", prox=0.3, rank=4).findings()
    assert published["zero_gates"] == 0
    assert ours["zero_gates"] > 0.5
    assert ours["mean_effective_rank"] < published["mean_effective_rank"]
    assert set(ours["updates"]) == set(ours["gates"]) == {"0", "3", "7"}
    for name, update in ours["updates"].items():
        assert update["zeros"] == pytest.approx(ours["gates"][name].count(0.0) / len(ours["gates"][name]))
        assert 0 <= update["effective_rank"] <= update["rank"] + 1e-6


def test_findings_without_gates():
    found = adapted_to(gates=False).findings()
    assert found["zero_gates"] == 0
    assert found["gates"] == {}
    assert found["mean_effective_rank"] > 1
    assert offsupport.adapt(NETWORKS["batch_norm"](), "tent").findings() == {}


def test_updates_that_are_gone_with_their_image_are_not_reported():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "memo+sc", copies=4)
    adapted(stream(1)[0][:2])
    assert adapted.passes["backward"] == 2
    assert adapted.findings() == {}


def test_merge_gives_a_plain_model_that_predicts_the_same():
    adapted = adapted_to("shot+sc", lr=0.05)
    merged, x = adapted.merge(), stream(1)[0]
    assert not updated_layers(merged)
    assert not [module for module in merged.modules() if isinstance(module, LowRank)]
    with torch.no_grad():
        expected = adapted.model(x)
        torch.testing.assert_close(merged(x), expected, rtol=1e-5, atol=1e-5)
    assert list(merged.state_dict()) == list(NETWORKS["batch_norm"]().state_dict())
    fresh = NETWORKS["batch_norm"]()
    fresh.load_state_dict(adapted.model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(NETWORKS["batch_norm"]()(x), expected, rtol=1e-3)


def test_a_file_holds_only_what_changed(tmp_path):
    model = resnet18(width=16)
    adapted = offsupport.adapt(model, "tent+sc", rank=2)
    adapted(torch.rand(16, 3, 32, 32))
    adapted.save(tmp_path / "a.safetensors")
    changed = sum(p.numel() for name, p in adapted.parameters_adapted.items())
    whole = sum(p.numel() for p in model.parameters())
    size = (tmp_path / "a.safetensors").stat().st_size
    assert changed < whole / 10
    assert size < 4 * (3 * changed) + 64 * 1024  # with the optimiser's two moments, and the names
    assert size < 4 * whole
    again = offsupport.load_adapted(model, tmp_path / "a.safetensors")
    assert torch.equal(again.model.conv1.weight, adapted.model.conv1.weight)


def test_source_statistics_are_those_of_the_method():
    model = NETWORKS["batch_norm"]()
    images = [toy_images(16, seed, shifted=False)[0] for seed in range(2)]
    stats = offsupport.source_stats(model, images, "eata")
    adapted = offsupport.adapt(model, "eata+sc", source=stats, freeze_base=True, margin=2.0, redundancy=2.0)
    run(adapted, stream(2))
    assert adapted.events["empty_selection"] == 0
    assert not [name for name in adapted.parameters_adapted if ".low_rank." not in name]
    with pytest.raises(SourceStatsError, match="for 'eata', not 'ttac'"):
        offsupport.adapt(model, "ttac+sc", source=stats)
    with pytest.raises(SourceStatsError, match=r'method="ttac\+sc"'):
        offsupport.adapt(model, "ttac+sc")


def test_the_projection_head_of_contrastive_training_is_left_alone():
    adapted = offsupport.adapt(NETWORKS["projection"](), "tent+sc")
    assert updated_layers(adapted.model)
    assert not [name for name in updated_layers(adapted.model) if name.startswith("projection")]


def test_the_classifier_may_be_left_alone():
    model = NETWORKS["batch_norm"]()
    for options in ({"head": False}, {"train_head": False}, {"head": "7", "train_head": False}):
        assert list(updated_layers(offsupport.adapt(model, "tent+sc", **options).model)) == ["0", "3"]
    assert list(updated_layers(offsupport.adapt(model, "tent+sc", head=True).model)) == ["0", "3", "7"]
    with pytest.raises(ConfigError, match="'train_head' for method 'tent'"):
        offsupport.adapt(model, "tent", head=False)


def test_seeds_draw_other_updates():
    one, two, same = (offsupport.adapt(NETWORKS["batch_norm"](), "tent+sc", seed=seed) for seed in (0, 1, 0))
    names = [name for name in one.low_rank if not name.endswith("up")]
    assert all(torch.equal(one.low_rank[name], same.low_rank[name]) for name in names)
    assert not any(torch.equal(one.low_rank[name], two.low_rank[name]) for name in names)


# Where it cannot work ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_a_clipped_rank_is_said_once():
    with pytest.warns(UserWarning, match=r"rank 8 is more than 2 of 3 layers allow.*down to 3, in '0'") as said:
        adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent+sc", rank=8)
    assert len(said) == 1
    adapted(stream(1)[0])  # a further warning would be an error


def test_a_model_without_a_convolution_or_linear_layer():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(x.flatten(1)[:, :4])

    with pytest.raises(ModelError, match=r"updates convolutions and linear layers.*has none.*'tent' without"):
        offsupport.adapt(Scaled(), "tent+sc")
    only_head = nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, 4))
    with pytest.raises(ModelError, match="beside the classifier"):
        offsupport.adapt(only_head, "tent+sc", head=False)


def test_a_frozen_network_adapts_in_its_copy_and_one_without_gradients_is_refused():
    frozen = NETWORKS["batch_norm"]().requires_grad_(False)
    adapted = offsupport.adapt(frozen, "tent+sc", lr=0.05)
    run(adapted, stream(2))
    assert adapted.low_rank["0.low_rank.up"].abs().max() > 0
    assert not any(parameter.requires_grad for parameter in frozen.parameters())

    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NETWORKS["batch_norm"]()

        @torch.no_grad()
        def forward(self, x):
            return self.net(x)

    with pytest.raises(ModelError, match="without gradients"):
        offsupport.adapt(Detached(), "tent+sc")(stream(1)[0])


@pytest.mark.parametrize(
    "hyper",
    [{"rank": 0}, {"ratio_l": -1.0}, {"ratio_s": -1.0}, {"prox": -0.1}, {"penalty": "l2"}, {"rank": 2.5}, {"lr": -1.0}],
)
def test_wrong_hyper_parameters_are_refused(hyper):
    with pytest.raises(ConfigError, match=next(iter(hyper))):
        offsupport.adapt(NETWORKS["batch_norm"](), "tent+sc", **hyper)


def test_the_penalty_is_the_mean_absolute_gate():
    options = {"batches": 0, "optimizer": "sgd", "momentum": 0.0, "ratio_l": 1.0}
    plain, penalised = (adapted_to(ratio_s=s, **options) for s in (0.0, 3.0))
    x = stream(1)[0]
    before = {name: gate.detach().clone() for name, gate in plain.gates.items()}
    plain(x)
    penalised(x)
    count = sum(gate.numel() for gate in before.values())
    for name, gate in plain.gates.items():
        moved = gate - penalised.gates[name]
        torch.testing.assert_close(moved, 0.02 * 3.0 / count * before[name].sign(), rtol=1e-4, atol=1e-7)
    assert math.isclose(count, sum(len(values) for values in plain.findings()["gates"].values()))


def test_the_snippet_of_the_docs_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    section = text[text.index("## +sc") :]
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), {})
    assert "effective_rank" in capsys.readouterr().out
    options = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert options == {field.name for field in dataclasses.fields(TeacherConstraint)}


def test_the_constrained_class_is_made_once_and_documented():
    assert constrained(METHODS["tent"]) is METHODS["tent+sc"]
    assert "tent" in METHODS["tent+sc"].__doc__
