import itertools
import math

import pytest
import torch
from torch import nn
from training_recipes import tiny

from offsupport.core.checkpoints import tensors_sha256
from offsupport.core.errors import FileError
from offsupport.data import load
from offsupport.training import digits_model
from offsupport.training import run as checkpoint
from offsupport.training.loop import begin, correct, epochs, make_view, pace, resized, shifted, side_at
from offsupport.training.run import ALONE, fresh_objective, split


def started(recipe, seed=0):
    return begin(recipe, fresh_objective(recipe, 10, seed), seed, ALONE)


def parts(recipe):
    return split(load("digits", split="train"), recipe.held_out)


def bits(run):
    momentum = {f"momentum {i}": s["momentum_buffer"] for i, s in enumerate(run.optimizer.state.values())}
    state = {**run.objective.state_dict(), **momentum, "generator": run.generator.get_state()}
    return tensors_sha256(state)


def without_seconds(log):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in log]


@pytest.mark.parametrize(
    ("objective", "channels_last"),
    [("supervised", True), ("supervised", False), ("joint", True), ("moco", True), ("probe", True)],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, objective, channels_last):
    recipe = tiny(
        objective=objective,
        views="simclr",
        channels_last=channels_last,
        grow_from=16,
        epochs=2,
        epoch_images=64,
        held_out=20,
    )
    whole = started(recipe)
    list(epochs(recipe, whole, *parts(recipe)))
    broken = started(recipe)
    next(epochs(recipe, broken, *parts(recipe)))
    checkpoint.save(broken, tmp_path, {"seed": 0})
    resumed = started(recipe)
    checkpoint.resume(resumed, tmp_path, {"seed": 0})
    assert resumed.epoch == 1
    list(epochs(recipe, resumed, *parts(recipe)))
    assert bits(resumed) == bits(whole)
    assert without_seconds(resumed.log) == without_seconds(whole.log)
    assert bits(broken) != bits(whole)


def test_a_checkpoint_of_another_run_or_damaged_is_refused(tmp_path):
    recipe = tiny()
    run = started(recipe)
    checkpoint.save(run, tmp_path, {"recipe": {"lr": 0.1}, "seed": 0, "data": "a"})
    with pytest.raises(FileError, match="another recipe and another data"):
        checkpoint.resume(run, tmp_path, {"recipe": {"lr": 0.2}, "seed": 0, "data": "b"})
    path = tmp_path / checkpoint.CHECKPOINT
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(FileError, match=r"checkpoint\.safetensors"):
        checkpoint.resume(run, tmp_path, {"recipe": {"lr": 0.1}, "seed": 0, "data": "a"})


def test_the_step_is_torch_sgd_on_the_cross_entropy():
    recipe = tiny(epochs=1, epoch_images=64, channels_last=False)
    run, twin = started(recipe), fresh_objective(recipe, 10, 0).model
    train, held_out = parts(recipe)
    list(epochs(recipe, run, train, held_out))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    twin.train()
    for rows in (order[:32], order[32:64]):
        loss = nn.functional.cross_entropy(twin(train.images[rows].float() / 255), train.labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
    for ours, theirs in zip(run.objective.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("total", [2, 10, 37])
def test_one_cycle_is_that_of_torch(total):
    recipe = tiny(epochs=total, lr=0.3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=total)
    for step in range(total):
        group = optimizer.param_groups[0]
        assert pace(recipe, step, 1) == (group["lr"], group["momentum"])
        optimizer.step()
        if step < total - 1:
            cycle.step()


def test_cosine_falls_by_epochs_to_a_thousandth():
    recipe = tiny(schedule="cosine", epochs=4, lr=1.0)
    rates = [pace(recipe, step, 10).lr for step in range(40)]
    assert rates[:10] == [1.0] * 10
    assert rates[20] == pytest.approx(0.001 + 0.999 * (1 + math.cos(math.pi / 2)) / 2)
    assert len(set(rates)) == 4
    assert pace(recipe, 5, 10).momentum == 0.9


def test_stopping_comes_after_the_epoch_that_is_good_enough():
    recipe = tiny()
    run = started(recipe)
    assert len(list(epochs(recipe, run, *parts(recipe), target=0.01))) == 1
    assert not list(epochs(recipe, run, *parts(recipe), target=0.01))
    assert len(list(epochs(recipe, run, *parts(recipe)))) == 2


def test_held_out_images_are_never_trained_on():
    train, held_out = split(load("digits", split="train"), 100)
    assert len(held_out) == 100
    everything = load("digits", split="train")
    assert len(train) + len(held_out) == len(everything)
    seen = {image.numpy().tobytes() for image in train.images}
    known = sum(image.numpy().tobytes() in seen for image in held_out.images)
    doubles = len(everything) - len({image.tobytes() for image in everything.images(range(len(everything)))})
    assert known <= doubles


@pytest.mark.parametrize("views", ["none", "shift", "shift-flip", "crop-flip", "simclr"])
def test_views_are_drawn_from_the_generator_alone(views):
    x = torch.rand(6, 3, 32, 32)
    view = make_view(tiny(views=views))
    one, again, other = (view(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert torch.equal(one, other) == (views == "none")
    assert one.shape == x.shape


def test_shifting_moves_images_and_repeats_their_edges():
    x = torch.arange(5.0 * 5).view(1, 1, 5, 5).repeat(200, 1, 1, 1)
    seen = set()
    for image in shifted(x, 2, torch.Generator().manual_seed(0)):
        top, left = divmod(int(image[0, 2, 2]), 5)
        rows = torch.arange(top - 2, top + 3).clamp(0, 4)
        columns = torch.arange(left - 2, left + 3).clamp(0, 4)
        assert torch.equal(image[0], x[0, 0][rows][:, columns])
        seen.add((top, left))
    assert seen == set(itertools.product(range(5), range(5)))


def test_images_grow_and_stay_whole():
    recipe = tiny(epochs=24, grow_from=16)
    sides = [side_at(recipe, epoch, 32) for epoch in range(24)]
    assert sides == sorted(sides)
    assert set(sides) == {16, 20, 24, 28, 32}
    assert sides.count(32) == 9
    assert side_at(tiny(), 0, 32) == 32
    x = torch.rand(2, 3, 32, 32)
    assert resized(x, 32) is x
    torch.testing.assert_close(resized(x, 16).mean((2, 3)), x.mean((2, 3)), rtol=0.02, atol=0)


def test_scoring_leaves_the_mode_alone_and_counts():
    recipe = tiny()
    _, held_out = parts(recipe)
    model = fresh_objective(recipe, 10, 0).model
    expected = int((model.eval()(held_out.images.float() / 255).argmax(1) == held_out.labels).sum())
    model.train()
    assert correct(model, held_out, batch_size=7) == expected
    assert model.training


@pytest.mark.slow
def test_the_digits_model_keeps_its_bits():
    """The stored results of the demonstration were made with these weights (one thread, torch 2.13, x86 with AVX2)."""
    if not torch.__version__.startswith("2.13.0") or torch.backends.cpu.get_cpu_capability() != "AVX2":
        pytest.skip("other versions and processors round otherwise")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sha = tensors_sha256(digits_model().state_dict())
    torch.set_num_threads(threads)
    assert sha == "66799fdbd09570ef4dc91f457105cb733146b8274487be780b6214e84008218f"
