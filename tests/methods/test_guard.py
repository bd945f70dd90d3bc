"""The guard, event by event."""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import nn

import offsupport
from offsupport.engine import adapter as guard
from offsupport.engine import guard as samples
from offsupport.functional import entropy
from offsupport.testing import NETWORKS, Case, toy_images
from offsupport.testing.case import changed_weights, run, same_bits, stream
from offsupport.testing.promises import Faulty

STEPPING = ["tent", "shot", "eata", "sar"]


@pytest.mark.parametrize(("method", "event"), [("tent", "bad_loss"), ("shot", "bad_loss"), ("eata", "empty_selection")])
def test_a_non_finite_loss_is_counted(method, event):
    model = Faulty(NETWORKS["batch_norm"]())
    adapted = Case(method, lambda: model).wrap(model, inplace=True)
    model.fault = "logits"
    run(adapted, stream(1))
    assert adapted.events[event] == 1


@pytest.mark.parametrize("method", STEPPING)
def test_a_non_finite_gradient_is_counted(method):
    model = Faulty(NETWORKS["batch_norm"]())
    adapted = Case(method, lambda: model).wrap(model, inplace=True)
    run(adapted, stream(1, size=64))
    model.fault = "gradient"
    run(adapted, stream(1, size=64, seed=1))
    assert adapted.events["bad_grad"] == 1
    assert not any(adapted.events[name] for name in ("bad_loss", "bad_param", "bad_input", "reset"))


@pytest.mark.parametrize("method", STEPPING)
def test_non_finite_parameters_are_counted(method):
    adapted = Case(method, NETWORKS["batch_norm"]).wrap()
    adapted.optimizer.register_step_post_hook(
        lambda *_: next(iter(adapted.parameters_adapted.values())).data.fill_(math.nan)
    )
    run(adapted, stream(1, size=64))
    assert adapted.events["bad_param"] == 1


@pytest.mark.parametrize("momentum_of", ["adam", "sgd"])
@pytest.mark.parametrize("method", ["eata", "sar"])
def test_an_empty_selection_changes_neither_parameters_nor_optimiser(method, momentum_of):
    adapted = Case(method, NETWORKS["group_norm"]).wrap(optimizer=momentum_of, lr=0.01)
    run(adapted, stream(3, size=64))
    before = adapted.snapshot()
    assert before.optimizer, "the optimiser must carry momentum for this test to say anything"
    assert adapted.events["empty_selection"] == 0
    adapted.config = dataclasses.replace(adapted.config, margin=-1.0)
    run(adapted, stream(20, size=64, seed=1))
    assert not changed_weights(before, adapted.snapshot())
    assert adapted.events["empty_selection"] == 20


def test_sar_makes_no_step_when_nothing_is_reliable_nearby():
    """The perturbed model may find no reliable sample where the model itself did: also then, nothing moves."""
    (x,) = stream(1, size=1)
    with torch.no_grad():
        e0 = float(entropy(NETWORKS["group_norm"]()(x))) * 1.001
    adapted = Case("sar", NETWORKS["group_norm"]).wrap(rho=0.5, lr=0.1, margin=e0 / math.log(4))
    before = adapted.snapshot()
    run(adapted, [x])
    assert adapted.events["empty_selection"] == 1
    assert adapted.passes == {"forward": 2, "backward": 1}
    assert not changed_weights(before, adapted.snapshot())


def test_sar_goes_back_when_everything_became_certain():
    adapted = Case("sar", NETWORKS["group_norm"]).wrap(reset_below=1.0, lr=0.1)
    start = adapted.snapshot()
    run(adapted, stream(1, size=64))
    assert adapted.events["reset"] == 1
    assert not changed_weights(start, adapted.snapshot())
    assert adapted.memory["loss"].numel() == 0


def test_events_are_those_that_are_documented():
    names = "bad_input bad_loss bad_grad bad_param empty_selection small_batch collapse reset"
    names += " out_of_range order disagreement"
    assert Case("bn", NETWORKS["batch_norm"]).wrap().events == dict.fromkeys(names.split(), 0)


def test_passes_are_counted():
    batches = stream(3)
    counted = {}
    for method in ("source", "bn", "tent", "shot", "sar"):
        adapted = Case(method, NETWORKS["group_norm" if method != "bn" else "batch_norm"]).wrap()
        run(adapted, batches)
        counted[method] = (adapted.passes["forward"], adapted.passes["backward"])
    assert counted == {"source": (3, 0), "bn": (3, 0), "tent": (3, 3), "shot": (3, 3), "sar": (6, 6)}


# Repair --------------------------------------------------------------------------------------------------------------


def test_repair_fills_with_the_mean_of_the_finite_values():
    x = torch.tensor([[1.0, math.nan, 3.0], [math.inf, -math.inf, math.nan], [4.0, 5.0, 6.0]])
    repaired, usable = samples.repair(x)
    assert repaired[0].tolist() == [1.0, 2.0, 3.0]
    assert repaired[2].tolist() == [4.0, 5.0, 6.0]
    assert usable.tolist() == [True, False, True]
    assert repaired.isfinite().all()


def test_repair_does_not_overflow():
    x = torch.full((1, 100), 3e38)
    x[0, 0] = math.nan
    assert samples.repair(x)[0].isfinite().all()


def test_bad_samples_are_predicted_by_the_source_weights_after_adaptation():
    model = NETWORKS["group_norm"]()
    adapted = offsupport.adapt(model, "tent", lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(adapted, stream(5))
    x = stream(1, size=1)[0]
    bad = x.clone()
    bad[0, 0, 0, 0] = math.nan
    filled = torch.where(bad.isfinite(), bad, bad[bad.isfinite()].mean())
    with torch.no_grad():
        expected = model(filled)
    assert torch.allclose(adapted(bad), expected, atol=1e-6)
    assert not torch.allclose(adapted.model(filled), expected, atol=1e-2)


# Collapse ------------------------------------------------------------------------------------------------------------


def collapsing(method="tent", **options):
    """A stream of one class, label-sorted, with a hundred times the usual step."""
    x, y = toy_images(4000, seed=5)
    one = x[y == 0]
    adapted = Case(method, NETWORKS["group_norm"]).wrap(lr=0.1, **options)
    return adapted, [one[i : i + 64] for i in range(0, 640, 64)]


def test_collapse_is_noticed_once_and_told():
    adapted, batches = collapsing()
    with pytest.warns(UserWarning, match="one class") as caught:
        [adapted(x) for x in batches]
    assert adapted.events["collapse"] == len(caught) == 1
    assert adapted.events["reset"] == 0
    assert "reset" in str(caught[0].message)


def test_collapse_is_noticed_again_after_it_passed():
    adapted, batches = collapsing()
    run(adapted, batches)
    adapted.memory["collapse"] = torch.empty(0)
    run(adapted, [toy_images(64, seed=i)[0] for i in range(3)])
    adapted.restore(dataclasses.replace(adapted._start, memory={**adapted.memory.copy()}))
    run(adapted, [toy_images(64, seed=i)[0] for i in range(20)])
    assert adapted.events["collapse"] == 1
    run(adapted, batches * 2)
    assert adapted.events["collapse"] == 2


def test_collapse_can_reset():
    adapted, batches = collapsing(collapse="reset")
    start = adapted.snapshot()
    fired = 0
    for x in batches:
        run(adapted, [x])
        if adapted.events["collapse"] > fired:
            fired = adapted.events["collapse"]
            assert not changed_weights(start, adapted.snapshot())
            assert adapted.memory["collapse"].numel() == 0
    assert fired == adapted.events["reset"] >= 1


def test_collapse_can_be_switched_off():
    adapted, batches = collapsing(collapse="off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in batches:
            adapted(x)
    assert adapted.events["collapse"] == 0
    assert adapted.memory["collapse"].numel() == 0


def test_a_healthy_stream_is_no_collapse():
    adapted = Case("tent", NETWORKS["group_norm"]).wrap()
    run(adapted, stream(20, size=64))
    assert adapted.events["collapse"] == 0


def test_methods_that_answer_each_image_alone_are_not_watched():
    adapted = Case("source", NETWORKS["group_norm"]).wrap()
    run(adapted, collapsing()[1])
    assert adapted.events["collapse"] == 0


def test_an_error_of_the_model_leaves_the_adapter_usable():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = NETWORKS["batch_norm"]()

        def forward(self, x):
            if x[0, 0, 0, 0] == 1.25:
                raise RuntimeError("cable pulled")
            return self.inner(x)

    batches = stream(3)
    plain = run(offsupport.adapt(Fragile(), "sar"), batches)
    adapted = offsupport.adapt(Fragile(), "sar")
    out = run(adapted, batches[:2])
    poison = batches[0].clone()
    poison[0, 0, 0, 0] = 1.25
    with pytest.raises(RuntimeError, match="cable"):
        adapted(poison)
    assert same_bits(run(adapted, batches[2:])[0], plain[2])
    assert len(out) == 2


def test_blank_frames_teach_nothing_and_one_that_shows_something_does():
    adapted = Case("tent", NETWORKS["group_norm"]).wrap(lr=0.1)
    before = adapted.snapshot().parameters
    blank = torch.rand(20, 1, 1, 1).expand_as(toy_images(20, seed=0)[0]).contiguous()
    for expected in (True, False):
        run(adapted, [blank])
        assert adapted.events["empty_selection"] == 1
        same = all(torch.equal(value, before[name]) for name, value in adapted.snapshot().parameters.items())
        assert same is expected
        blank[7, 0, 0, 0] += 0.1
    without_steps = Case("source", NETWORKS["group_norm"]).wrap()
    run(without_steps, [torch.zeros_like(blank)])
    assert not any(without_steps.events.values())


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([], True),
        ([torch.ones(2, 3), torch.zeros(4)], True),
        ([torch.full((4,), 3e38)], True),  # whose sum overflows
        ([torch.ones(2), torch.tensor([1.0, math.nan])], False),
        ([torch.tensor([math.inf, -math.inf]), torch.ones(2)], False),
        ([torch.full((4,), 3e38), torch.tensor([-math.inf])], False),
    ],
)
def test_finite_means_every_value_of_every_tensor(values, finite):
    assert guard.all_finite(values) is finite
