"""What cannot be done is refused with a sentence and a remedy."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, InputError, ModelError, OffsupportError, SourceStatsError
from offsupport.methods import METHODS
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import changed, run, stream


def refusal(error, *words):
    """Return whether an error is of ours, in words, with a remedy."""
    assert isinstance(error.value, OffsupportError)
    assert error.value.remedy
    assert error.value.exit_code == 2
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("tnet",), {}, ["'tnet'", "Did you mean 'tent'?"]),
        (("TENT",), {}, ["'TENT'", "Did you mean 'tent'?"]),
        (("tent",), {"lrr": 0.1}, ["'lrr'", "'tent'", "Did you mean 'lr'?"]),
        (("tent",), {"widow": 64}, ["'widow'", "Did you mean 'window'?"]),
        (("tent",), {"colapse": "off"}, ["'colapse'", "Did you mean 'collapse'?"]),
        (("tent",), {"preset": "cifar11"}, ["cifar11", "Did you mean 'cifar10'?"]),
        (("tent",), {"optimizer": "adamw"}, ["adamw", "'adam' or 'sgd'"]),
        (("tent",), {"collapse": "resett"}, ["resett", "'reset'"]),
        (("tent",), {"lr": "0.1"}, ["'0.1'", "a number"]),
        (("tent",), {"lr": True}, ["True", "a number"]),
        (("tent",), {"lr": -1.0}, ["lr", "[0, 1e6]"]),
        (("tent",), {"lr": math.nan}, ["lr"]),
        (("tent",), {"lr": math.inf}, ["lr"]),
        (("tent",), {"momentum": 1.0}, ["momentum", "[0, 1)"]),
        (("tent",), {"min_batch": 0}, ["min_batch", "at least 1"]),
        (("tent",), {"min_batch": 2.5}, ["min_batch", "an integer or None"]),
        (("bn",), {"prior": -1}, ["prior", "at least 0"]),
        (("shot",), {"pseudo_weight": -0.1}, ["pseudo_weight"]),
        (("shot",), {"score": "during"}, ["'before' or 'after'"]),
        (("eata",), {"memory_decay": 1.0}, ["memory_decay"]),
        (("eata",), {"fisher_weight": -1.0}, ["fisher_weight"]),
        (("sar",), {"rho": -1.0}, ["rho"]),
        (("sar",), {"loss_decay": 1.5}, ["loss_decay"]),
        (("sar",), {"exclude_last": 1.0}, ["exclude_last"]),
        (("sar",), {"exclude": "layer4("}, ["exclude", "regular expression"]),
        (("memo",), {"copies": 0}, ["copies", "at least 1"]),
        (("memo",), {"steps": 0}, ["steps", "at least 1"]),
        (("memo",), {"policy_length": 4}, ["policy_length", "1, 2 or 3"]),
        (("tesla",), {"decay": 1.1}, ["decay", "in [0, 1]"]),
        (("tesla",), {"bn_momentum": 1.1}, ["bn_momentum", "in [0, 1]"]),
        (("tesla",), {"views": -1}, ["views", "at least 0"]),
        (("tesla",), {"queue": -1}, ["queue", "at least 0"]),
        (("tesla",), {"neighbours": 0}, ["neighbours", "at least 1"]),
        (("tesla",), {"policy_length": 0}, ["policy_length", "1, 2 or 3"]),
        (("tesla",), {"policy_lr": -1.0}, ["policy_lr"]),
        (("tesla",), {"lambda_kl": -1.0}, ["lambda_kl"]),
        (("tesla",), {"rotation": "half"}, ["'constant' or 'full'"]),
        (("tesla",), {"score_stats": "source"}, ["'batch' or 'running'"]),
        (("tesla-s",), {"align_weight": -1.0}, ["align_weight"]),
        (("tesla-s",), {"moment_window": 0}, ["moment_window"]),
        (("tesla-s",), {"ridge": 0.0}, ["ridge", "above 0"]),
        (("ttac",), {"ridge": 0.0}, ["ridge", "above 0"]),
        (("ttac",), {"scale": -1.0}, ["scale"]),
        (("ttac",), {"global_length": 0}, ["global_length"]),
        (("ttac",), {"class_length": 0}, ["class_length"]),
        (("ttac",), {"class_prior": -1}, ["class_prior"]),
        (("ttac",), {"bn_momentum": 1.5}, ["bn_momentum", "[0, 1]"]),
        (("ttac",), {"class_cov": "diag"}, ["diag", "'diagonal'"]),
        (("tttpp",), {"temperature": 0.0}, ["temperature"]),
        (("tttpp",), {"base_temperature": 0.0}, ["base_temperature"]),
        (("tttpp",), {"queue": -1}, ["queue"]),
        (("tttpp",), {"feature_scale": -1.0}, ["feature_scale"]),
        (("rmt",), {"decay": 1.1}, ["decay", "in [0, 1]"]),
        (("rmt",), {"temperature": 0.0}, ["temperature", "above 0"]),
        (("rmt",), {"projector": -1}, ["projector", "at least 0"]),
        (("rmt",), {"contrast": -1.0}, ["contrast"]),
        (("rmt",), {"replay": -1.0}, ["replay"]),
        (("source",), {"lr": 0.1}, ["takes none"]),
    ],
)
def test_names_and_ranges(arguments, options, words):
    with pytest.raises(ConfigError) as error:
        offsupport.adapt(NETWORKS["batch_norm"](), *arguments, **options)
    refusal(error, *words)


@pytest.mark.parametrize("given", [lambda x: x, None, "resnet18", nn.Linear, np.zeros(3)])
@pytest.mark.parametrize("method", METHODS)
def test_not_a_module(given, method):
    with pytest.raises(ModelError, match="Module") as error:
        offsupport.adapt(given, method)
    refusal(error)


def test_an_adapted_model_is_not_adapted_again():
    with pytest.raises(ModelError, match="already") as error:
        offsupport.adapt(offsupport.adapt(NETWORKS["batch_norm"](), "bn"), "tent")
    refusal(error, "adapted.model")


def headless():
    return nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten())


def test_shot_needs_a_head():
    with pytest.raises(ModelError, match=r"nn\.Linear") as error:
        offsupport.adapt(headless(), "shot")
    refusal(error, "head=")
    offsupport.adapt(headless(), "shot", head="0")
    with pytest.raises(ModelError, match="'fcc'") as error:
        offsupport.adapt(nn.Sequential(*headless(), nn.Linear(4, 4)), "shot", head="fcc")
    refusal(error)


@pytest.mark.parametrize(
    ("method", "model", "options"),
    [
        ("sar", "batch_norm", {"exclude": "."}),
        ("shot", lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), {}),
        ("tent", lambda: nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4, affine=False), nn.Flatten()), {}),
        ("bn", "group_norm", {}),
    ],
)
def test_nothing_to_adapt(method, model, options):
    with pytest.raises(ModelError) as error:
        offsupport.adapt((NETWORKS[model] if isinstance(model, str) else model)(), method, **options)
    refusal(error, repr(method))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(16, 3, 8, 8, dtype=torch.uint8), ["uint8", "x.float() / 255"]),
        (torch.zeros(16, 3, 8, 8, dtype=torch.float64), ["float64", "x.to(torch.float32)"]),
        (torch.zeros(3, 8, 8), ["(3, 8, 8)", "x[None]"]),
        (torch.zeros(16), ["4 dimensions"]),
        (torch.zeros(()), ["4 dimensions"]),
        (torch.zeros(2, 16, 3, 8, 8), ["4 dimensions"]),
        (torch.zeros(16, 3, 8, 8, device="meta"), ["cpu", "meta", 'x.to("cpu")']),
        (np.zeros((16, 3, 8, 8)), ["ndarray", "torch.as_tensor"]),
        ([1, 2], ["list"]),
    ],
)
@pytest.mark.parametrize("method", ["source", "tent"])
def test_inputs_of_the_wrong_kind_change_nothing(x, words, method):
    adapted = Case(method, NETWORKS["batch_norm"]).wrap(window=20)
    run(adapted, stream(1))
    before = adapted.snapshot()
    with pytest.raises(InputError) as error:
        adapted(x)
    refusal(error, *words)
    assert not changed(before, adapted.snapshot())


def test_a_model_on_another_device():
    adapted = offsupport.adapt(NETWORKS["batch_norm"]().to("meta"), "bn")
    with pytest.raises(InputError, match="meta") as error:
        adapted(stream(1)[0])
    refusal(error, 'x.to("meta")')


def test_flat_inputs_need_a_batch_dimension():
    adapted = offsupport.adapt(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), "tent")
    with pytest.raises(InputError, match="at least 2"):
        adapted(torch.rand(6))
    assert adapted(torch.rand(20, 6)).shape == (20, 3)


class Shaped(nn.Module):
    """Returns zeros of any shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        self.norm(x)
        return torch.zeros(self.shape)


@pytest.mark.parametrize("shape", [(16, 0), (16,), (8, 4), ()])
@pytest.mark.parametrize("method", ["source", "bn", "tent"])
def test_outputs_that_are_no_logits(shape, method):
    adapted = offsupport.adapt(Shaped(shape), method)
    with pytest.raises(ModelError) as error:
        adapted(torch.rand(16, 3, 8, 8))
    refusal(error, str(shape), "(samples, classes)")


def test_source_statistics_from_nothing_or_from_bad_images():
    with pytest.raises(InputError, match="empty") as error:
        offsupport.source_stats(NETWORKS["batch_norm"](), [], "eata")
    refusal(error)
    with pytest.raises(InputError, match="non-finite") as error:
        offsupport.source_stats(NETWORKS["batch_norm"](), [torch.full((16, 3, 8, 8), math.nan)], "eata")
    refusal(error)
    with pytest.raises(SourceStatsError, match="no source statistics") as error:
        offsupport.source_stats(NETWORKS["batch_norm"](), stream(1), "tent")
    refusal(error)


def test_memory_must_be_declared():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "bn")
    with pytest.raises(KeyError, match="initial_memory"):
        adapted.memory["surprise"] = torch.zeros(1)


def test_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(ModelError("What.", "Do this.")))
    assert (type(error), error.message, error.remedy, str(error)) == (ModelError, "What.", "Do this.", "What. Do this.")


def test_presets_override_defaults_and_are_overridden():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", preset="imagenet")
    assert (adapted.config.lr, adapted.config.optimizer) == (2.5e-4, "sgd")
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", preset="imagenet", lr=1)
    assert (adapted.config.lr, adapted.config.optimizer) == (1.0, "sgd")
    assert type(adapted.config.lr) is float


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", ["cifar10", "cifar100", "imagenet"])
def test_every_preset_builds(method, preset):
    needed = {"tttpp": "projection", "mae-ttt": "mae", "mae-ttt+em": "mae", "foa": "mae", "ttt": "rotation"}
    network = NETWORKS[needed.get(method, "batch_norm")]
    assert Case(method, network).wrap(preset=preset).info.name == method


def test_list_methods():
    names = offsupport.list_methods()
    assert {"ttac", "tttpp"} <= set(names)
    assert names[:4] == ["auto", "minimal", "source", "bn"]
    cards = offsupport.list_methods(details=True)
    assert [card.name for card in cards] == names
    assert all(card.summary and card.adapts and card.scored and card.single for card in cards)


def test_a_model_that_reshapes_before_its_first_convolution_is_taken():
    model = nn.Sequential(
        nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)
    )
    x = torch.rand(16, 192, generator=torch.Generator().manual_seed(0))
    assert offsupport.adapt(model, "tent")(x).shape == (16, 5)


@pytest.mark.parametrize(
    ("wrap", "remedy"),
    [
        (lambda out: {"loss": 0, "logits": out}, r"out\['logits'\]"),
        (lambda out: (out, None), r"out\[0\]"),
        (lambda out: type("Output", (), {"logits": out})(), r"out\.logits"),
    ],
)
def test_the_remedy_for_an_object_names_where_the_logits_are(wrap, remedy):
    class Wrapped(nn.Linear):
        def forward(self, x):
            return wrap(super().forward(x))

    with pytest.raises(ModelError, match=remedy):
        offsupport.adapt(Wrapped(3, 4), "source")(torch.zeros(2, 3))


@pytest.mark.parametrize("method", ["source", "minimal", "tent"])
@pytest.mark.parametrize(
    ("convert", "word"),
    [
        (torch.Tensor.long, "int64"),
        (lambda out: out > 0, "bool"),
        (lambda out: out.to(torch.complex64), "complex64"),
        (torch.Tensor.to_sparse, "sparse_coo"),
    ],
)
def test_what_is_no_plain_number_is_no_logit(method, convert, word):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), method, logits=convert)
    with pytest.raises(ModelError, match=word):
        adapted(*stream(1))


def test_a_single_logit_is_refused_and_the_remedy_works():
    model = nn.Linear(3, 1)
    with pytest.raises(ModelError, match=r"torch\.cat\(\[torch\.zeros_like\(out\), out\], 1\)"):
        offsupport.adapt(model, "source")(torch.zeros(2, 3))
    two = offsupport.adapt(model, "source", logits=lambda out: torch.cat([torch.zeros_like(out), out], 1))
    assert two(torch.zeros(2, 3)).shape == (2, 2)


def test_source_that_is_no_statistics():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(SourceStatsError, match="source is str"):
        offsupport.adapt(model, "eata", source="stats.safetensors")


def test_a_function_is_called_a_function():
    with pytest.raises(ConfigError, match="a function or None"):
        offsupport.adapt(nn.Linear(3, 4), "source", logits="logits")


def test_a_model_without_gradients_is_refused_with_a_remedy():
    class Frozen(nn.Sequential):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    model = Frozen(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(ModelError, match="without gradients"):
        offsupport.adapt(model, "tent")(torch.rand(16, 3))


def test_dropout_switched_on_inside_stays_off():
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    adapted = offsupport.adapt(model, "bn")
    adapted.model[2].train()
    x = torch.rand(32, 3)
    assert torch.equal(adapted(x), adapted(x))


@pytest.mark.parametrize("lr", [float("nan"), float("inf")])
def test_numbers_are_finite(lr):
    with pytest.raises(ConfigError, match="a number"):
        offsupport.adapt(nn.BatchNorm1d(3), "tent", lr=lr)


def test_a_network_that_nothing_can_be_learnt_by_is_refused_at_once():
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ModelError, match="lazy") as error:
        offsupport.adapt(lazy)
    refusal(error, "Pass a batch of images through the model")
    lazy(torch.rand(1, 3, 8, 8))
    assert offsupport.adapt(lazy)(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    with pytest.raises(ModelError, match="DataParallel") as error:
        offsupport.adapt(nn.DataParallel(lazy))
    refusal(error, "model.module")
