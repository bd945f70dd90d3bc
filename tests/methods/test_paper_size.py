"""A step on the network and the images of the paper, which nothing else in these tests comes near."""

import pytest
import torch

import offsupport
from offsupport.nn import build_network


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*layers allow")
def test_a_step_on_resnet50_and_imagenet_sized_images():
    torch.manual_seed(0)
    model = build_network("resnet50-imagenet", 1000, "imagenet").eval()
    source = offsupport.source_stats(model, [torch.rand(4, 3, 224, 224) for _ in range(3)], "tesla-s+sc")
    adapted = offsupport.adapt(model, "tesla-s+sc", preset="imagenet", min_batch=4, source=source)
    before = {name: parameter.detach().clone() for name, parameter in adapted.parameters_adapted.items()}
    logits = adapted(torch.rand(4, 3, 224, 224))
    assert logits.shape == (4, 1000)
    assert logits.isfinite().all()
    assert not any(adapted.events.values())
    # Of the teacher: the adversarial view, five others of which one serves the policy as well, and the prediction.
    assert adapted.passes == {"forward": 1 + 5 + 1 + 2, "backward": 3}
    still = {name for name, value in before.items() if torch.equal(value, adapted.parameters_adapted[name])}
    # While U is zero, D has no gradient, and a gate only that of the penalty, often too small a step for float32.
    assert all(name.endswith((".low_rank.down", ".low_rank.gate")) for name in still)
    assert any(name.endswith(".low_rank.up") for name in before.keys() - still)
