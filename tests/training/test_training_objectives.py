import copy

import pytest
import torch
from torch import nn

from offsupport.core.errors import ConfigError, ModelError
from offsupport.nn import WithProjection, WithRotation, projected, resnet18
from offsupport.nn.inspect import find_head
from offsupport.training.objectives import make_objective


def network(seed=0):
    torch.manual_seed(seed)
    return resnet18(width=4).double()


def views(n=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(n, 3, 16, 16, generator=generator, dtype=torch.float64) for _ in range(2)]


LABELS = torch.tensor([0, 1, 2, 3, 4, 5])


def slow_contrast(z, temperature):
    """Every view is an anchor; its partner against all others, one by one."""
    n = len(z) // 2
    losses = []
    for i in range(2 * n):
        cosines = {j: float(nn.functional.cosine_similarity(z[i], z[j], dim=0)) / temperature for j in range(2 * n)}
        others = torch.tensor([cosines[j] for j in range(2 * n) if j != i], dtype=torch.float64)
        losses.append(float(others.logsumexp(0)) - cosines[(i + n) % (2 * n)])
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("base", "factor"), [(0.07, 0.5 / 0.07), (None, 1.0)])
def test_the_joint_loss_is_its_formula(base, factor):
    objective = make_objective("joint", network(), {"contrast": 0.3, "base_temperature": base}).double()
    twin = copy.deepcopy(objective.model)
    one, two = views()
    loss = objective([one, two], LABELS)
    logits, z = twin.both(torch.cat([one, two]))
    wrong = sum(nn.functional.cross_entropy(half, LABELS) for half in logits.chunk(2))
    expected = 0.7 * float(wrong.detach()) + 0.3 * factor * slow_contrast(z.detach(), 0.5)
    assert float(loss.value.detach()) == pytest.approx(expected, rel=1e-10)
    assert loss.right.shape == (6,)


def test_a_network_with_projection_predicts_like_its_backbone():
    backbone = network().eval()
    model = projected(backbone, 8).double().eval()
    x = views()[0]
    logits, z = model.both(x)
    assert torch.equal(model(x), backbone(x))
    assert torch.equal(logits, backbone(x))
    features = backbone.avgpool(nn.Sequential(*list(backbone.children())[:-2])(x)).flatten(1)
    torch.testing.assert_close(z, model.projection(features), rtol=1e-12, atol=0)
    assert z.shape == (6, 8)
    assert find_head(model) == ("backbone.fc", backbone.fc)


def test_a_projection_needs_a_linear_classifier():
    with pytest.raises(ModelError, match=r"no nn\.Linear"):
        projected(nn.Flatten())


@pytest.mark.parametrize("copies", [1, 4])
def test_the_rotation_loss_is_its_formula(copies):
    options = {"branch": "layer3", "weight": 0.3, "copies": copies}
    objective = make_objective("rotation", network(), options).double()
    twin = copy.deepcopy(objective.model)
    assert isinstance(twin, WithRotation)
    x = views()[0]
    loss = objective([x], LABELS)
    logits = twin(x)
    each = [[i % 4] if copies == 1 else [0, 1, 2, 3] for i in range(len(x))]
    turns = [k for quarters in each for k in quarters]
    copied = torch.stack([torch.rot90(x[i], k, (1, 2)) for i, quarters in enumerate(each) for k in quarters])
    told = twin.both(copied)[1]
    expected = nn.functional.cross_entropy(logits, LABELS) + 0.3 * nn.functional.cross_entropy(
        told, torch.tensor(turns)
    )
    torch.testing.assert_close(loss.value, expected, rtol=1e-10, atol=0)
    assert torch.equal(loss.right, logits.argmax(1) == LABELS)
    assert objective.facts() == {"branch": "layer3"}


def test_rotation_starts_from_a_backbone_and_keeps_its_fresh_head():
    objective, start = make_objective("rotation", network(), {}), network(seed=1)
    head = {name: value.clone() for name, value in objective.model.rotation.state_dict().items()}
    objective.start_from(start.state_dict())
    assert all(torch.equal(objective.model.backbone.state_dict()[n], value) for n, value in start.state_dict().items())
    assert all(torch.equal(objective.model.rotation.state_dict()[n], value) for n, value in head.items())


def test_momentum_contrast_against_an_obvious_reference():
    options = {"queue": 8, "temperature": 0.2, "decay": 0.9}
    objective = make_objective("moco", network(), options).double().train()
    query = copy.deepcopy(WithProjection(objective.model, objective.projection)).train()
    keys = copy.deepcopy(objective.keys).eval()
    queue = objective.queue.clone()
    position = 0
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], lr=0.1)
    plain = torch.optim.SGD([p for name, p in query.named_parameters() if "fc" not in name], lr=0.1)
    for step in range(4):
        one, two = (torch.roll(view, step, -1) for view in views())
        q = nn.functional.normalize(query.both(one)[1], dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(keys.both(two)[1], dim=1)
        expected = 0
        for i in range(6):
            scores = torch.stack([q[i] @ k[i], *(q[i] @ past for past in queue)]) / 0.2
            expected = expected + (scores.logsumexp(0) - scores[0]) / 6
        loss = objective([one, two], LABELS).value
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-8)
        for value, stepper in ((loss, optimizer), (expected, plain)):
            stepper.zero_grad()
            value.backward()
            stepper.step()
        objective.after_step()
        queue = queue.clone()
        for i in range(6):
            queue[(position + i) % 8] = k[i]
        position = (position + 6) % 8
        with torch.no_grad():
            mine = {**dict(query.named_parameters()), **dict(query.named_buffers())}
            for name, value in {**dict(keys.named_parameters()), **dict(keys.named_buffers())}.items():
                if value.is_floating_point():
                    value.copy_(0.9 * value + 0.1 * mine[name])
    torch.testing.assert_close(objective.queue, queue, rtol=1e-8, atol=1e-12)
    for name, value in keys.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(objective.keys.state_dict()[name], value, rtol=1e-8, atol=1e-12)
    assert int(objective.position) == position


def test_keys_depend_on_no_other_image_of_the_batch():
    objective = make_objective("moco", network(), {}).double().train()
    two = views()[1]
    alone = objective.keys.both(two[:1])[1]
    torch.testing.assert_close(objective.keys.both(two)[1][:1], alone, rtol=1e-9, atol=1e-12)


def test_a_queue_shorter_than_the_batch_is_refused():
    with pytest.raises(ConfigError, match="A queue of 4 cannot hold a batch of 6"):
        make_objective("moco", network(), {"queue": 4}).double()(views(), LABELS)


def test_scoring_does_not_move_the_queue():
    objective = make_objective("moco", network(), {}).double().eval()
    before = objective.queue.clone()
    objective(views(), LABELS)
    assert torch.equal(objective.queue, before)


def test_a_probe_trains_the_classifier_alone():
    objective = make_objective("probe", network(), {}).double()
    objective.train()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], lr=0.1)
    loss = objective(views()[:1], LABELS)
    loss.value.backward()
    optimizer.step()
    changed = {name for name, value in objective.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"model.fc.weight", "model.fc.bias"}
    twin = network()
    logits = twin.eval()(views()[0])
    assert float(loss.value.detach()) == pytest.approx(
        float(nn.functional.cross_entropy(logits, LABELS).detach()), rel=1e-10
    )


def test_starting_from_other_weights():
    weights = network(1).state_dict()
    joint = make_objective("joint", network(), {})
    head = copy.deepcopy(joint.model.projection.state_dict())
    joint.start_from(weights)
    assert all(torch.equal(value, weights[name]) for name, value in joint.model.backbone.state_dict().items())
    assert all(torch.equal(value, head[name]) for name, value in joint.model.projection.state_dict().items())
    probe = make_objective("probe", network(), {})
    own = probe.model.fc.weight.clone()
    probe.start_from(weights)
    assert torch.equal(probe.model.fc.weight, own)
    assert torch.equal(probe.model.conv1.weight, weights["conv1.weight"])
