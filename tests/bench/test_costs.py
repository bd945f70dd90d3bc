"""What a grid will cost: what is counted, and on what it rests."""

import contextlib
import dataclasses

import pytest
import torch
from bench_models import tiny
from torch import nn

from offsupport.bench import Place, run_cells
from offsupport.bench.cell import home_of
from offsupport.bench.executor import Task, attempt
from offsupport.core.errors import ConfigError
from offsupport.studies import AdaptConfig, EpisodeConfig, LatentConfig
from offsupport.studies.costs import _Pricing, estimate_cost
from offsupport.studies.ours.poison import PoisonConfig
from offsupport.studies.ours.protocols import ProtocolConfig
from offsupport.studies.ours.regret import RegretConfig

TINY = "bench_models:tiny"
IMAGES = {"dataset": "digits-c", "model": TINY, "limit": 40, "source_images": 0}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "run", code=frozenset({TINY}))


def test_cells_that_adapt_are_estimated_whatever_their_kind(place):
    """Method bn makes one pass over each image, and one over the first of all, to see what the network takes."""
    cells = [
        AdaptConfig(method="bn", corruption="fog", batch_size=8, **IMAGES).cell(),
        AdaptConfig(method="bn", corruption=["fog", "snow"], protocol="continual", batch_size=8, **IMAGES).cell(),
        ProtocolConfig(method="bn", protocol="mixed", corruptions=["fog", "snow"], batch_size=8, **IMAGES).cell(),
        PoisonConfig(method="bn", attack="white-box", share=0.2, **{**IMAGES, "model": "digits-small"}).cell(),
    ]
    found = estimate_cost(cells, place)
    assert (found.cells, found.done, found.unknown) == (4, 0, {})
    assert found.sources == {"results": 0, "trials": 4}
    assert 40 + 80 + 80 <= found.forward < 1.2 * (40 + 80 + 80)  # poison does not count
    assert found.backward == 0
    assert found.core_hours == pytest.approx(found.seconds / 3600) != 0
    assert (found.gpu_hours, found.tflops, found.source_seconds) == (0, None, 0)
    assert {name: (share.cells, share.core_hours) for name, share in found.methods.items()} == {
        "bn": (4, pytest.approx(found.core_hours))
    }
    assert not place.folder.exists()


def test_core_hours_count_threads(place):
    cell = AdaptConfig(method="source", corruption="fog", threads=2, **IMAGES).cell()
    found = estimate_cost([cell], place)
    torch.set_num_threads(1)
    assert found.core_hours == pytest.approx(2 * found.seconds / 3600)


def test_runs_that_are_computed_together_are_told_by_results_or_not_at_all(place):
    """A block of four runs costs twice one of two, whichever runs those are; a file says 5 where the cell says 5.0."""
    few = LatentConfig(shift="sparse", task="classification", method="constant", distances=[5.0], first=0, runs=2)
    more = dataclasses.replace(few, first=2, runs=4)
    other = dataclasses.replace(more, method="given-c")
    nothing = estimate_cost([few.cell(), more.cell()], place)
    assert (nothing.unknown, nothing.core_hours) == ({"latent": 2}, 0)
    assert "2 of kind latent" in nothing.words()

    place.folder.mkdir()
    run_cells([few.cell()], place, executor=Here())
    found = estimate_cost([few.cell(), more.cell(), other.cell()], place)
    assert (found.done, found.unknown, found.sources) == (1, {"latent": 1}, {"results": 1, "trials": 0})
    assert found.seconds == pytest.approx(2 * Here.seconds)
    assert found.methods["given-c"].unknown == 1


class Here:
    """Computes in this process."""

    seconds = 0.0

    def ready(self):
        return contextlib.nullcontext(self.run)

    def run(self, job):
        for cell in job.cells:
            assert attempt(Task(cell, home_of(cell)), job.place, job.store.keep) is None
            Here.seconds = job.store.read(cell.key).timing["seconds"]


def operations(model, x):
    """Twice the products of every convolution and matrix, by hand."""
    total = 0

    def count(layer, _, out):
        nonlocal total
        inside = layer.weight[0].numel()
        total += 2 * inside * out.numel()

    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    model(x)
    return total


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU that is there is tried")
@pytest.mark.parametrize(("method", "passes"), [("source", 1), ("tent", 3)])
def test_cells_for_a_gpu_that_is_not_there_are_estimated_by_operations(method, passes, place):
    """Back is twice forth; images of the digits are 3 x 32 x 32."""
    cell = AdaptConfig(method=method, corruption="fog", device="cuda", batch_size=16, **IMAGES).cell()
    found = estimate_cost([cell], place, tflops=2.0)
    seconds = 40 * passes * operations(tiny().eval(), torch.rand(1, 3, 32, 32)) / 2e12
    assert (found.core_hours, found.tflops) == (0, 2.0)
    assert found.gpu_hours == pytest.approx(seconds / 3600, rel=0.01)
    assert "assumed 2 TFLOP/s" in found.words()


def test_source_statistics_are_counted_and_once_where_cells_share_them(place, monkeypatch):
    """With a second for each source image."""
    monkeypatch.setattr(_Pricing, "_statistics_trial", lambda self, inner, images: float)
    images = {**IMAGES, "source_images": 300}
    adapt = [AdaptConfig(method="eata", corruption=name, **images).cell() for name in ("fog", "snow")]
    assert estimate_cost(adapt, place).source_seconds == 600
    regret = [
        RegretConfig(method="eata", condition=name, stages=[f"{name}/5"], **images).cell() for name in ("fog", "snow")
    ]
    assert estimate_cost(regret, place).source_seconds == 300
    without = AdaptConfig(method="tent", corruption="fog", **images).cell()
    assert estimate_cost([without], place).source_seconds == 0


def test_source_statistics_cost_more_the_more_images(place):
    images = {**IMAGES, "source_images": 600}
    seconds = estimate_cost([AdaptConfig(method="eata", corruption="fog", **images).cell()], place).source_seconds
    assert 0 < seconds < 60


def test_an_episode_is_tried(place):
    cell = EpisodeConfig(dataset="digits-c", method="mae-ttt", corruption="fog", model="zoo:digits-mae", seed=0).cell()
    found = estimate_cost([cell], place)
    assert found.sources == {"results": 0, "trials": 1}
    assert found.seconds > 0


@pytest.mark.parametrize("tflops", [0, -1, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(tflops, place):
    with pytest.raises(ConfigError, match="TFLOP/s"):
        estimate_cost([], place, tflops)
