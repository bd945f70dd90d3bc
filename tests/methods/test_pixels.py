"""Methods that augment say which images they take, and clip what lies a little outside."""

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.testing import NETWORKS
from offsupport.testing.case import run, stream

AUGMENTING = ["memo", "tesla"]


@pytest.mark.parametrize("method", AUGMENTING)
@pytest.mark.parametrize(
    "change",
    [lambda x: (x - 0.45) / 0.2, lambda x: 255 * x, lambda x: -x - 1],
    ids=["standardised", "bytes", "negative"],
)
@pytest.mark.parametrize("size", [4, 24], ids=["small", "full"])
def test_other_units_are_refused_at_the_start(method, change, size):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), method)
    with pytest.raises(InputError, match=r"\[0, 1\]") as error:
        adapted(change(stream(1, size=size)[0]))
    assert "Normalized" in error.value.remedy


@pytest.mark.parametrize("method", AUGMENTING)
def test_a_stream_that_began_well_is_not_interrupted_by_some_samples(method):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), method)
    good, odd = stream(2)
    odd[::2] *= 255
    assert all(out.isfinite().all() for out in run(adapted, [good, odd, 1e3 * odd[:1], good]))
    assert adapted.events["out_of_range"] == 2


@pytest.mark.parametrize("declared", [None, (0, 255), (-1.0, 1.0)])
def test_another_range_is_refused_when_wrapping(declared):
    with pytest.raises(ConfigError, match="Normalized"):
        offsupport.adapt(NETWORKS["batch_norm"](), "memo", input_range=declared)


@pytest.mark.parametrize("method", AUGMENTING)
def test_what_lies_a_little_outside_is_clipped(method):
    (x,) = stream(1)
    x[:, :, 0, 0], x[:, :, 1, 1] = -0.2, 1.3
    outside, inside = (offsupport.adapt(NETWORKS["batch_norm"](), method)(each) for each in (x, x.clamp(0, 1)))
    assert torch.equal(outside, inside)


@pytest.mark.parametrize("method", AUGMENTING)
def test_rows_of_numbers_are_no_images(method):
    adapted = offsupport.adapt(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), method)
    with pytest.raises(InputError, match="images") as error:
        adapted(torch.rand(20, 6))
    assert "tent" in error.value.remedy


@pytest.mark.parametrize("method", AUGMENTING)
def test_dense_predictions_are_refused(method):
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1))
    adapted = offsupport.adapt(model, method, head="2")
    with pytest.raises(ModelError, match="every position") as error:
        adapted(torch.rand(20, 3, 8, 8))
    assert "tent" in error.value.remedy


@pytest.mark.parametrize("method", AUGMENTING)
def test_grey_images_and_images_that_are_not_square(method):
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    adapted = offsupport.adapt(nn.Sequential(*layers), method)
    (logits,) = run(adapted, [torch.rand(17, 1, 8, 14, generator=torch.Generator().manual_seed(0))])
    assert logits.shape == (17, 3)
    assert adapted.passes["backward"] > 0
    assert not any(adapted.events[name] for name in ("bad_loss", "bad_grad", "bad_param"))


def test_tesla_scores_by_running_statistics_also_where_no_step_is_due():
    net, (x,) = NETWORKS["batch_norm"](), stream(1)
    adapted = offsupport.adapt(net, "tesla", score_stats="running", window=40)
    (logits,) = run(adapted, [x])  # 24 of a window of 40: no step, and the teacher is still the source
    torch.testing.assert_close(logits, net(x).detach())
