"""evaluate(): protocols, counts and intervals, against a slow obvious loop."""

import math
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.functional import wilson
from offsupport.testing import NETWORKS, toy_images
from offsupport.testing.case import quiet


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    index: np.ndarray
    domain: str


def labelled(count, size=32, seed=0, domain=None):
    batches = [toy_images(size, seed=500 * (seed + 1) + i) for i in range(count)]
    if domain is None:
        return batches
    return [Batch(x, y, np.arange(size) + 1000 * i, domain) for i, (x, y) in enumerate(batches)]


def adapted(method="tent", **options):
    return offsupport.adapt(NETWORKS["batch_norm"](), method, **options)


def test_error_is_that_of_a_plain_loop():
    batches = [*labelled(3), *labelled(1, size=7, seed=1)]
    result = offsupport.evaluate(adapted(), batches, protocol="continual")
    by_hand = adapted()
    wrong = [(by_hand(x).argmax(1) != y) for x, y in batches]
    every = torch.cat(wrong)
    assert result.n == 103
    assert result.error == pytest.approx(every.float().mean().item())
    assert result.ci95 == wilson(int(every.sum()), 103)
    assert result.trace == pytest.approx([w.float().mean().item() for w in wrong])
    labels = torch.cat([y for _, y in batches])
    assert result.per_class == pytest.approx({k: every[labels == k].float().mean().item() for k in range(4)})
    assert result.index.tolist() == list(range(103))
    assert result.sizes == [32, 32, 32, 7]
    assert result.events["small_batch"] == 1
    assert result.passes == {"forward": 4, "backward": 3}
    assert result.seconds > 0
    assert result.memory > 1 << 20


@pytest.mark.parametrize("protocol", ["online", "continual", "episodic"])
def test_when_each_protocol_resets(protocol):
    domains = [
        *labelled(3, seed=0, domain="fog"),
        *labelled(2, seed=1, domain="snow"),
        *labelled(1, seed=2, domain="fog"),
    ]
    model = adapted(lr=0.05)
    with quiet():
        result = offsupport.evaluate(model, domains, protocol=protocol)
    by_hand, correct, previous = adapted(lr=0.05), [], "fog"
    with quiet():
        for batch in domains:
            if protocol == "episodic" or (protocol == "online" and batch.domain != previous):
                by_hand = adapted(lr=0.05)
            previous = batch.domain
            correct.append((by_hand(batch.x).argmax(1) == batch.y).numpy())
    assert result.correct.tolist() == np.concatenate(correct).tolist()
    assert result.passes == {"forward": 6, "backward": 6}
    assert result.domain_of == ["fog"] * 3 + ["snow"] * 2 + ["fog"]
    assert result.domains["fog"]["n"] == 128
    assert result.domains["snow"]["error"] == pytest.approx(1 - np.concatenate(correct)[96:160].mean())
    assert result.index[:64].tolist() == [*range(32), *range(1000, 1032)]


def test_online_and_continual_differ_where_the_adaptation_is_strong():
    domains = [*labelled(6, seed=0, domain="a"), *labelled(1, seed=1, domain="b")]
    states = {}
    for protocol in ("online", "continual"):
        model = adapted(lr=0.05)
        with quiet():
            offsupport.evaluate(model, domains, protocol=protocol)
        states[protocol] = model.model[1].weight.detach().clone()
    assert not torch.equal(states["online"], states["continual"])


def test_it_starts_from_the_start_and_counts_only_its_own_stream():
    model = adapted(lr=0.05)
    fresh = offsupport.evaluate(model, labelled(3))
    again = offsupport.evaluate(model, labelled(3))
    assert fresh.correct.tolist() == again.correct.tolist()
    assert fresh.passes == again.passes


def test_events_of_every_part_are_summed():
    bad = torch.full((20, 3, 8, 8), math.nan)
    y = torch.zeros(20, dtype=torch.long)
    result = offsupport.evaluate(adapted(), [*labelled(1), (bad, y), *labelled(1), (bad, y)], protocol="episodic")
    assert result.events["bad_input"] == 2
    assert result.n == 104


def test_inside_inference_mode():
    plain = offsupport.evaluate(adapted(), labelled(3))
    with torch.inference_mode():
        inside = offsupport.evaluate(adapted(), labelled(3))
    assert plain.correct.tolist() == inside.correct.tolist()


def test_dense_labels():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
    x, y = torch.rand(18, 3, 6, 6), torch.randint(4, (18, 6, 6))
    result = offsupport.evaluate(offsupport.adapt(net, "bn"), [(x, y)])
    expected = (offsupport.adapt(net, "bn")(x).argmax(1) != y).float().mean().item()
    assert result.n == 648
    assert result.error == pytest.approx(expected)
    assert result.index[:37].tolist() == [0] * 36 + [1]


def test_empty_batches_are_passed_over():
    nothing = (torch.empty(0, 3, 8, 8), torch.empty(0, dtype=torch.long))
    result = offsupport.evaluate(adapted(), [nothing, *labelled(2), nothing])
    assert result.n == 64
    assert len(result.trace) == 2
    with pytest.raises(InputError, match="no batch"):
        offsupport.evaluate(adapted(), [nothing])


def test_mistakes_are_told():
    with pytest.raises(ConfigError, match="Did you mean 'online'"):
        offsupport.evaluate(adapted(), labelled(1), protocol="onlin")
    with pytest.raises(InputError, match="no batch"):
        offsupport.evaluate(adapted(), [])
    with pytest.raises(ModelError, match="Sequential") as error:
        offsupport.evaluate(NETWORKS["batch_norm"](), labelled(1))
    assert "adapt(model" in error.value.remedy
    x, y = labelled(1)[0]
    with pytest.raises(InputError, match=r"\(31,\)"):
        offsupport.evaluate(adapted(), [(x, y[:-1])])


def test_result_in_words_in_json_and_drawn():
    import json

    result = offsupport.evaluate(adapted(), labelled(3))
    assert "tent, online: error" in str(result)
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["n"] == 96
    assert plain["error"] == pytest.approx(result.error)
    axes = result.plot()
    dots, running = (line.get_ydata() for line in axes.get_lines())
    assert list(dots) == pytest.approx(result.trace)
    assert running[-1] == pytest.approx(result.error)
    assert result.plot(axes) is axes


def test_where_the_system_does_not_tell_its_memory_is_zero(monkeypatch):
    """As on Windows, which has no module for it."""
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    assert offsupport.evaluate(adapted("source"), labelled(1)).memory == 0


def test_labels_that_count_other_classes_than_the_model_are_refused():
    images, labels = toy_images(8, seed=0)
    few = offsupport.data.stream_arrays(images, labels % 2, classes=["cat", "dog"], batch_size=8)
    with pytest.raises(InputError, match=r"The data counts 2 classes and the model \d+: .*imagenet-folder"):
        offsupport.evaluate(adapted("source"), few)
    unnamed = offsupport.data.stream_arrays(images, labels % 2, batch_size=8)
    assert offsupport.evaluate(adapted("source"), unnamed).n == 8
