"""One GPU per worker, on a machine that has none: counts are made up, and cells note what they were given."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
import torch
from bench_kinds import devices_given, gpu_cell, square_cell

from offsupport.bench import Cell, Place, run_cells
from offsupport.bench.executor import Local, assign
from offsupport.bench.ray_cluster import _Driver
from offsupport.core.errors import ConfigError
from offsupport.core.processes import WORKER_VARIABLES, gpus, worker_environment
from offsupport.studies import AdaptConfig
from offsupport.studies.adaptation import prepare_adapt, run_adapt

NAME = "CUDA_VISIBLE_DEVICES"
SENTENCE = r"need a GPU, and torch finds none\. Run them where"


@pytest.fixture
def machine(monkeypatch):
    """Make a machine with so many GPUs, of which the user lists some."""

    def make(count: int, listed: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.delenv(NAME, raising=False)
        if listed is not None:
            monkeypatch.setenv(NAME, listed)

    return make


@pytest.mark.parametrize(
    ("count", "listed", "found"),
    [
        (0, None, []),
        (2, None, ["0", "1"]),
        (2, "5, 3", ["5", "3"]),
        (1, "GPU-8932f937", ["GPU-8932f937"]),
        (1, "1,-1,0", ["1"]),  # torch counts what CUDA sees: nothing after a name it does not know
        (0, "", []),
    ],
)
def test_gpus_are_those_that_the_driver_sees(machine, count, listed, found):
    machine(count, listed)
    assert gpus() == found


@pytest.mark.parametrize(
    ("devices", "workers", "given"),
    [(["5", "3"], 2, ["5", "3"]), (["5", "3"], 3, ["5", "3", "5"]), (["5", "3"], 1, ["5"]), ([], 2, [None, None])],
)
def test_workers_take_turns(devices, workers, given):
    assert assign(devices, workers) == given


def test_the_environment_is_as_it_was_without_a_gpu(monkeypatch):
    monkeypatch.setenv(NAME, "5,3")
    before = dict(os.environ)
    with worker_environment():
        assert dict(os.environ) == {**before, **WORKER_VARIABLES}
    with worker_environment("3"):
        assert dict(os.environ) == {**before, **WORKER_VARIABLES, NAME: "3"}
    assert dict(os.environ) == before


def test_as_many_workers_as_gpus_and_each_has_its_own(machine, tmp_path):
    machine(2, "5,3")
    assert run_cells([gpu_cell(x, "brief") for x in range(5)], Place(tmp_path), workers=0).complete
    assert sorted(devices_given(tmp_path).values()) == ["3", "5"]


def test_other_cells_count_cores_and_never_look_for_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("nobody asked for a GPU"))
    monkeypatch.setattr("offsupport.bench.executor.cores", lambda: 2)
    asked = []
    monkeypatch.setattr("offsupport.bench.executor._Pool.run", lambda self, given: asked.append(given))
    with Local(0).ready() as run:
        run(SimpleNamespace(cells=[square_cell(x) for x in range(3)]))
    assert asked == [[None, None]]


@pytest.mark.fault
def test_who_replaces_a_worker_gets_its_gpu(machine, tmp_path):
    machine(2)
    cells = [gpu_cell(0, "die once"), *(gpu_cell(x, "brief") for x in range(1, 6))]
    assert run_cells(cells, Place(tmp_path), workers=2).complete
    assert sorted(devices_given(tmp_path).values()) == ["0", "0", "1"]


def test_a_missing_gpu_is_said_where_the_cell_is_computed(machine, tmp_path):
    """A driver may do without: only the nodes of its cluster need GPUs."""
    machine(0)
    config = AdaptConfig(dataset="digits-c", method="bn", corruption="fog", model="bench_models:tiny", limit=16)
    config = dataclasses.replace(config, device="cuda")
    place = Place(tmp_path, code=frozenset({config.model}))
    prepare_adapt([config], place)
    with pytest.raises(ConfigError, match=SENTENCE):
        run_adapt(config, place)
    with pytest.raises(ConfigError, match=SENTENCE):
        run_cells([gpu_cell(1)], Place(tmp_path))
    assert not list(tmp_path.iterdir())


class PretendRay:
    """As much of Ray as sending takes."""

    def __init__(self, *nodes):
        self.sent = []
        self._nodes = [{"Alive": True, "Resources": resources} for resources in nodes]

    def nodes(self):
        return self._nodes

    def remote(self, **options):
        def task(**more):
            asked = {name: value for name, value in {**options, **more}.items() if name.startswith("num_")}
            return SimpleNamespace(remote=lambda *given: self.sent.append(asked) or len(self.sent))

        return lambda function: SimpleNamespace(options=task)


def sent(tmp_path, cells, *nodes):
    """Return what a first round asks of Ray, and what fails in it."""
    ray, failures = PretendRay(*nodes), []
    failed = lambda cell, message: failures.append(message)  # noqa: E731
    job = SimpleNamespace(cells=cells, place=Place(tmp_path), stop=False, failed=failed, task=lambda cell: cell)
    _Driver(ray, job, workers=0)._send()
    return ray.sent, failures


def test_ray_is_asked_for_a_gpu_by_the_cells_that_need_one(tmp_path):
    nodes = ({"CPU": 8, "GPU": 2}, {"CPU": 4})
    assert sent(tmp_path, [gpu_cell(x) for x in range(5)], *nodes) == ([{"num_cpus": 1, "num_gpus": 1}] * 2, [])
    assert sent(tmp_path, [square_cell(x) for x in range(5)], *nodes) == ([{"num_cpus": 1}] * 5, [])


def test_ray_does_not_wait_for_a_gpu_that_no_node_has(tmp_path):
    large = Cell("test-square", {"x": 1, "threads": 4, "device": "cuda"})
    for nodes in (({"CPU": 8},), ({"CPU": 2, "GPU": 1}, {"CPU": 8})):
        assert sent(tmp_path, [large], *nodes) == ([], ["it needs a GPU, and no node with CPUs enough has one"])
