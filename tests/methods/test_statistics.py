"""The hyper-parameter ``statistics``: each word against a plain loop, and what all methods promise with them."""

from __future__ import annotations

import copy

import pytest
import torch
from parity_check import BATCH_NORM, assert_close, batches, entropy, make_optimizer, network, norm_parameters, step
from test_parity_minimal import CONFIG, Plain, images, made, moments_at
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, ModelError, SourceStatsError
from offsupport.engine import SourceStats
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import all_same_bits, quiet, run, same_bits, stream
from offsupport.testing.promises import (
    check_all_bad,
    check_deepcopy,
    check_empty_batch,
    check_faults,
    check_gradient_modes,
    check_interventions,
    check_out_of_range,
    check_partly_bad,
    check_pickle,
    check_reset,
    check_save_load,
    check_small_batches,
    check_state_dict,
    check_window,
)

WORDS = ("batch", "source", "blend", "alpha", "running", "ema", "dua", "minimal")
SIZES = (20, 1, 7, 20, 3, 1, 12, 20, 1, 20)


# Against plain loops, in float64 -------------------------------------------------------------------------------------


def normalised(net, x, statistics):
    """Run layer by layer; ``statistics(place, z)`` returns the mean and variance of a batch-norm layer."""
    layers = [layer for layer in net if isinstance(layer, BATCH_NORM)]
    for layer in net:
        if layer in layers:
            shape = (1, -1) + (1,) * (x.dim() - 2)
            mean, var = (v.view(shape) for v in statistics(layers.index(layer), x))
            x = (x - mean) / (var + layer.eps).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)
        else:
            x = layer(x)
    return x


def known(net):
    return [[layer.running_mean.clone(), layer.running_var.clone()] for layer in net if isinstance(layer, BATCH_NORM)]


def moments(z, unbiased=False):
    rows = z.transpose(0, 1).flatten(1)
    return rows.mean(1), rows.var(1, unbiased=unbiased)


@torch.no_grad()
@pytest.mark.parametrize("word", ["source", "blend", "alpha"])
def test_mixtures_are_the_formula_at_any_size(word):
    net = network("batch")
    adapted = offsupport.adapt(net, "bn", statistics=word, input_range=None, collapse="off", rate=0.3, prior=5.0)
    came = known(net)

    def mixed(place, z):
        share = {"source": 0.0, "blend": len(z) / (len(z) + 5.0), "alpha": 0.3}[word]
        return ((1 - share) * a + share * b for a, b in zip(came[place], moments(z), strict=True))

    for t, x in enumerate(batches(SIZES)):
        assert_close(adapted(x), normalised(net, x, mixed), f"batch {t}")
    assert not any(adapted.events.values())


@torch.no_grad()
@pytest.mark.parametrize("word", ["ema", "dua"])
def test_momentum_moves_the_statistics_as_training_does_and_predicts_by_them(word):
    net = network("batch")
    adapted = offsupport.adapt(net, "bn", statistics=word, input_range=None, collapse="off", rate=0.2)
    followed = known(net)
    for t, x in enumerate(batches(SIZES)):
        momentum = 0.2 if word == "ema" else 0.2 * 0.94 ** (t + 1) + 0.005

        def moved(place, z, momentum=momentum):
            if z.numel() > z.shape[1]:  # one value per channel has no variance to follow
                mean, var = moments(z, unbiased=True)
                followed[place][0] += momentum * (mean - followed[place][0])
                followed[place][1] += momentum * (var - followed[place][1])
            return moments(z)

        normalised(net, x, moved)
        expected = normalised(net, x, lambda place, z: followed[place])
        assert_close(adapted(x), expected, f"batch {t}")


@torch.no_grad()
def test_running_is_the_mean_of_all_images_before_with_the_source_as_some_of_them():
    net = network("batch")
    adapted = offsupport.adapt(net, "bn", statistics="running", input_range=None, collapse="off", prior=10.0)
    came = [[pair.tolist() for pair in layer] for layer in known(net)]
    past = [[[] for _ in layer[0]] for layer in came]

    def now():
        found = []
        for (means, variances), layer in zip(came, past, strict=True):
            total = 10.0 + len(layer[0])
            first = [(10.0 * m + sum(a for a, _ in c)) / total for m, c in zip(means, layer, strict=True)]
            second = [
                (10.0 * (v + m * m) + sum(b for _, b in c)) / total
                for m, v, c in zip(means, variances, layer, strict=True)
            ]
            found.append((first, [b - a * a for a, b in zip(first, second, strict=True)]))
        return found

    for t, x in enumerate(batches([16, 1, 7, 16, 1])):  # one group each: small ones are predicted by what came before
        expected, seen = moments_at(net, x, now())
        for place, layer in enumerate(seen):
            for image in layer:
                for c, pair in enumerate(image):
                    past[place][c].append(pair)
        if len(x) >= 2:  # so few images were seen that these tell more
            expected, _ = moments_at(net, x, now())
        assert_close(adapted(x), expected, f"batch {t}")


def test_tent_on_minimal_statistics_is_a_plain_loop():
    clean = images(60, seed=1)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean[:25], clean[25:]], method="minimal")
    adapted = offsupport.adapt(net, "tent", statistics="minimal", source=stats, collapse="off", lr=1e-2)
    ours = copy.deepcopy(net)
    with torch.no_grad():
        plain = Plain(ours, clean, CONFIG)
    optimizer = make_optimizer("adam", norm_parameters(ours), 1e-2)
    for t, size in enumerate((40, 1, 40, 24, 5, 1)):
        x = images(size, seed=20 + t, scale=0.2, offset=0.8)
        early = plain.seen < CONFIG.young and size > CONFIG.group
        with torch.no_grad():
            if early:  # too little is known to predict a large batch by: it is counted first, group by group
                for group in x.split(CONFIG.group):
                    plain.gather(*moments_at(ours, group, plain.statistics()))
            found, seen = moments_at(ours, x, plain.statistics())
        now = [[torch.tensor(v, dtype=torch.float64) for v in layer] for layer in plain.statistics()]
        logits = normalised(ours, x, lambda place, z, now=now: now[place])
        assert_close(logits, found, "the loop itself")
        assert_close(adapted(x), logits, f"batch {t}")
        step(optimizer, entropy(logits).mean())
        if not early:
            plain.gather(found, seen)
    assert_close(adapted.model.norm1.weight, ours.norm1.weight, "weights")
    assert_close(adapted.memory["evidence"], torch.tensor([plain.seen, plain.squares], dtype=torch.float64), "evidence")


@torch.no_grad()
@pytest.mark.parametrize("calibrated", [True, False])
def test_bn_on_minimal_statistics_is_minimal(calibrated):
    net, batch = NETWORKS["batch_norm"](), stream(3, size=40)
    stats = offsupport.source_stats(net, stream(3, seed=5), method="minimal") if calibrated else None
    minimal = offsupport.adapt(net, "minimal", source=stats)
    bn = offsupport.adapt(net, "bn", statistics="minimal", source=stats)
    assert all_same_bits(run(minimal, [*batch, batch[0][:1]]), run(bn, [*batch, batch[0][:1]]))


# What every word promises --------------------------------------------------------------------------------------------


CASES = {"tent/minimal": Case("tent", NETWORKS["batch_norm"], {"statistics": "minimal"})}
SLOW = {
    "tent/running": Case("tent", NETWORKS["batch_norm"], {"statistics": "running"}, source=False),
    "bn/ema": Case("bn", NETWORKS["batch_norm"], {"statistics": "ema"}),
    "bn/alpha": Case("bn", NETWORKS["batch_norm"], {"statistics": "alpha"}),
} | {
    f"{method}/{word}": Case(method, NETWORKS["projection"], {"statistics": word})
    for method in ("eata", "sar", "shot", "tent+sc", "tesla", "ttac", "tttpp")
    for word in ("minimal", "running", "dua", "source")
}
CHECKS = (
    *(check_reset, check_save_load, check_state_dict, check_deepcopy, check_pickle, check_gradient_modes),
    *(check_empty_batch, check_small_batches, check_all_bad, check_partly_bad, check_out_of_range),
    *(check_window, check_interventions, check_faults),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items()),
    ],
)
def test_promise(case, check):
    check(case)


@pytest.mark.parametrize("word", ["running", "minimal", "ema", "dua"])
def test_what_follows_the_stream_is_forked_and_saved_with_the_rest(word, tmp_path):
    net = NETWORKS["batch_norm"]()
    adapted = offsupport.adapt(net, "tent", statistics=word)
    run(adapted, stream(2))
    fork = adapted.fork()
    adapted.save(tmp_path / "a.safetensors")
    expected = run(adapted, stream(2, seed=1))
    assert all_same_bits(expected, run(fork, stream(2, seed=1)))
    with quiet():
        loaded = offsupport.load_adapted(net, tmp_path / "a.safetensors")
    assert loaded.config.statistics == word
    assert all_same_bits(expected, run(loaded, stream(2, seed=1)))


@torch.no_grad()
def test_images_that_overflow_in_the_network_are_not_counted():
    net = NETWORKS["batch_norm"]()
    broken = copy.deepcopy(net)

    class Overflows(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = broken

        def forward(self, x):
            return torch.where(x[:, :1, 0, 0] == 1.0, torch.nan, self.net(x))

    x = stream(1, size=12)[0].clamp(0, 0.99)
    bad = x.clone()
    bad[3, 0, 0, 0] = 1.0
    for word in ("running", "minimal"):
        whole, part = offsupport.adapt(net, "bn", statistics=word), offsupport.adapt(Overflows(), "bn", statistics=word)
        run(whole, [torch.cat([x[:3], x[4:]])])
        run(part, [bad])
        for name, value in whole.statistics_policy.initial_memory().items():
            assert torch.allclose(whole.memory[name], part.memory[name], atol=1e-6), name
            assert name == "surprise" or not value.numel() or not torch.equal(value, part.memory[name])


def test_only_what_one_image_moves_little_is_taken_where_images_are_not_trusted():
    net = NETWORKS["batch_norm"]()
    for word in WORDS:
        if word in ("source", "minimal"):
            assert offsupport.adapt(net, "bn", statistics=word, trusted=False).options.trusted is False
        else:
            with pytest.raises(ConfigError, match="sets no bound"):
                offsupport.adapt(net, "bn", statistics=word, trusted=False)
        with pytest.raises(ConfigError, match="sets no bound"):
            offsupport.adapt(net, "tent", statistics=word, trusted=False)


def test_an_unknown_word_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'minimal'"):
        offsupport.adapt(NETWORKS["batch_norm"](), "tent", statistics="minimum")


@pytest.mark.parametrize("word", ["running", "minimal", "ema", "dua"])
def test_a_model_without_batch_norm_has_no_statistics_to_follow(word):
    with pytest.raises(ModelError, match="no batch-norm layer") as caught:
        offsupport.adapt(NETWORKS["group_norm"](), "tent", statistics=word)
    assert "statistics" in caught.value.remedy


@pytest.mark.parametrize(("method", "size"), [("tent", 1), ("eata", 1), ("sar", 1), ("shot", 16), ("tesla", 16)])
def test_a_single_image_is_enough_for_a_step_where_no_batch_is_needed(method, size):
    for word in WORDS:
        with quiet():
            adapted = offsupport.adapt(NETWORKS["batch_norm"](), method, statistics=word)
        assert adapted.min_batch == (16 if word == "batch" else size)


def test_the_default_is_what_was_published():
    for method, word in (("tent", "batch"), ("bn", "batch"), ("memo", "blend")):
        net, x = NETWORKS["batch_norm"](), stream(1, size=20)
        hyper = {"copies": 2} if method == "memo" else {}
        plain, said = (offsupport.adapt(net, method, **hyper, **w) for w in ({}, {"statistics": word}))
        assert all_same_bits(run(plain, x), run(said, x))


# What is known of clean images ---------------------------------------------------------------------------------------


def test_moments_of_clean_images_come_with_a_methods_own_statistics(tmp_path):
    net, clean = NETWORKS["batch_norm"](), stream(3, seed=5)
    moments_alone = offsupport.source_stats(net, clean, method="minimal")
    both = offsupport.source_stats(net, clean, method="eata", statistics="minimal")
    own = offsupport.source_stats(net, clean, method="eata")
    assert both.samples == own.samples
    assert set(both.tensors) == set(own.tensors)
    assert all(same_bits(both.statistics[name], moments_alone.tensors[name]) for name in moments_alone.tensors)
    assert not own.statistics
    both.save(tmp_path / "s.safetensors")
    loaded = SourceStats.load(tmp_path / "s.safetensors")
    assert all(same_bits(loaded.statistics[name], tensor) for name, tensor in both.statistics.items())
    with quiet():
        given = [offsupport.adapt(net, "eata", statistics="minimal", source=s) for s in (both, loaded, moments_alone)]
    assert [adapted.source is None for adapted in given] == [False, False, True]
    answers = [run(adapted, stream(2)) for adapted in given]
    assert all_same_bits(answers[0], answers[1])
    assert given[2].clean_moments.keys() == both.statistics.keys()


def test_moments_of_clean_images_are_asked_for(tmp_path):
    net, clean = NETWORKS["batch_norm"](), stream(3, seed=5)
    stats = offsupport.source_stats(net, clean, method="minimal")
    with pytest.raises(SourceStatsError, match="uses no source statistics"):
        offsupport.adapt(net, "tent", source=stats)
    adapted = offsupport.adapt(net, "tent", source=stats, statistics="minimal")
    run(adapted, stream(1))
    adapted.save(tmp_path / "a.safetensors")
    with pytest.raises(offsupport.core.errors.FileError, match="statistics_sha256"):
        offsupport.adapt(net, "tent", statistics="minimal").load(tmp_path / "a.safetensors")


def test_another_type_is_followed_anew():
    net, x = NETWORKS["batch_norm"](), stream(2, size=20)
    for word in ("running", "minimal", "ema"):
        adapted = offsupport.adapt(net, "bn", statistics=word)
        run(adapted, x[:1])
        expected = run(adapted.fork(), x[1:])[0]
        found = run(adapted.double(), [x[1].double()])[0]
        assert found.dtype == torch.float64
        assert torch.allclose(found, expected.double(), atol=1e-4)


def test_the_step_of_sar_is_felt_by_default():
    net, x = NETWORKS["batch_norm"](), stream(6, size=32)
    by_batch, default, tiny = (
        torch.cat(run(offsupport.adapt(net, method, **hyper), x))
        for method, hyper in (("bn", {}), ("sar", {}), ("sar", {"lr": 1e-3}))
    )
    assert (default - by_batch).abs().mean() > 10 * (tiny - by_batch).abs().mean() > 0
    assert offsupport.adapt(NETWORKS["group_norm"](), "sar").config.lr == 1e-3
