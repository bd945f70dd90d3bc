"""The same cells on a Ray cluster of two nodes, one of which is lost: the same results."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench_kinds import devices_given, gpu_cell, square_cell

from offsupport.bench import Cell, Place, Store, run_cells
from offsupport.bench.executor import too_long
from offsupport.bench.ray_cluster import RayCluster
from offsupport.core.errors import ConfigError
from offsupport.studies import TABLES, AdaptConfig, TableOptions

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture(scope="module")
def cluster(start_ray):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'offsupport[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("PYTHONPATH", str(HERE), prepend=":")
        made = Cluster()
        start_ray(lambda: made.add_node(num_cpus=1))
        made.extra = start_ray(lambda: made.add_node(num_cpus=1))
        yield made
        made.shutdown()


@pytest.fixture
def folders(tmp_path):
    for name in ("local", "ray"):
        (tmp_path / name).mkdir()
    return tmp_path / "local", tmp_path / "ray"


def fingerprints(folder, cells):
    return {cell.key: Store(folder).read(cell.key).fingerprint for cell in cells}


def computed(folder):
    return sorted(int(line) for line in (folder / "computed.log").read_text().split())


def test_results_do_not_depend_on_the_executor(cluster, folders):
    cells = [square_cell(x) for x in range(6)]
    local, there = folders
    run_cells(cells, Place(local))
    summary = run_cells(cells, Place(there), executor=RayCluster(cluster.address))
    assert sorted(summary.computed) == sorted(cell.key for cell in cells)
    assert fingerprints(there, cells) == fingerprints(local, cells)
    assert len(run_cells(cells, Place(there), executor=RayCluster(cluster.address)).present) == 6
    assert computed(there) == [0, 1, 2, 3, 4, 5]


def test_adaptation_gives_the_same_bytes_from_weights_that_the_driver_sends(cluster, folders, monkeypatch):
    """The nodes' run folder is another one, without models: they get those of the driver and do not train."""
    from offsupport.bench.ray_cluster import _Driver
    from offsupport.core.checkpoints import save_tensors
    from offsupport.training.digits import digits_network

    local, there = folders
    cells = [AdaptConfig(dataset="digits-c", method="bn", corruption="fog", limit=48, batch_size=16).cell()]
    weights = digits_network().state_dict()
    for folder in folders:
        save_tensors(folder / "models" / "digits-small.safetensors", weights, {})
    run_cells(cells, Place(local))
    begin = _Driver.__init__

    def elsewhere(self, *given):
        begin(self, *given)
        self.place = Place(there.parent / "node")

    monkeypatch.setattr(_Driver, "__init__", elsewhere)
    run_cells(cells, Place(there), executor=RayCluster(cluster.address))
    assert fingerprints(there, cells) == fingerprints(local, cells)
    assert [path.name for path in (there.parent / "node" / "models").glob("*.safetensors")] == [
        "digits-small.safetensors"
    ]


def test_the_command_line_takes_a_cluster(cluster, folders):
    grid = ["--corruptions", "contrast,fog", "--methods", "source,bn", "--limit", "48"]
    grid += ["--model", "bench_models:tiny", "--allow-code"]
    rows = []
    for folder, where in zip(folders, ([], ["--executor", "ray", "--address", cluster.address]), strict=True):
        words = ["bench", "run", *grid, "--out", str(folder / "run"), "--json", *where]
        done = subprocess.run(
            [sys.executable, "-m", "offsupport", *words], cwd=HERE, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        rows.append([(row["method"], row["column"], row["value"]) for row in json.loads(done.stdout)["rows"]])
    assert rows[0] == rows[1]


def test_methods_on_protocols_are_the_same_on_two_nodes(cluster, folders):
    """With a limit that none of them reaches: times differ from node to node, results do not."""
    local, there = folders
    asked = TableOptions(methods=("source", "tent", "lame"), parts=("mixed", "sorted"))
    cells = TABLES["protocols"].cells("smoke", asked)
    assert len(cells) == 6
    run_cells(cells, Place(local))
    summary = run_cells(cells, Place(there), executor=RayCluster(cluster.address), cell_minutes=20.0)
    assert not summary.failed
    assert sorted(summary.computed) == sorted(cell.key for cell in cells)
    assert fingerprints(there, cells) == fingerprints(local, cells)


def test_failures_are_told_apart(cluster, folders):
    _, there = folders
    cells = [square_cell(1), square_cell(7, "raise"), square_cell(2, "die"), square_cell(3, "die once")]
    cells.append(Cell("test-square", {"x": 4, "threads": 8}))
    lines: list[str] = []
    summary = run_cells(cells, Place(there), announce=lines.append, executor=RayCluster(cluster.address))
    assert sorted(summary.computed) == sorted([cells[0].key, cells[3].key])
    assert summary.failed == {
        cells[1].key: "RuntimeError: seven is right out",
        cells[2].key: "its worker was lost (WorkerCrashedError), 3 times",
        cells[4].key: "it asks for 8 CPUs, the largest node has 1",
    }
    assert computed(there) == [1, 2, 2, 2, 3, 3, 7]
    assert sum("trying again" in line for line in lines) == 3


def test_a_cell_that_hangs_is_ended_once_and_the_others_are_computed(cluster, folders):
    _, there = folders
    cells = [square_cell(1), square_cell(2, "slow"), square_cell(3), square_cell(4)]
    lines: list[str] = []
    who = RayCluster(cluster.address)
    summary = run_cells(cells, Place(there), announce=lines.append, executor=who, cell_minutes=0.05)
    assert sorted(summary.computed) == sorted(cells[at].key for at in (0, 2, 3))
    assert summary.failed == {cells[1].key: str(too_long(0.05))}
    assert computed(there) == [1, 2, 3, 4]
    assert len(lines) == 1


def test_a_lost_node_costs_only_the_cells_it_was_computing(cluster, folders):
    cells = [square_cell(x, "two seconds") for x in range(8)]
    local, there = folders
    run_cells(cells, Place(local), workers=8)
    lines: list[str] = []

    def lose_a_node():
        raylet = cluster.extra.all_processes["raylet"][0].process.pid
        deadline = time.monotonic() + 600
        while not list(there.glob(f"begun-*-{raylet}")) and time.monotonic() < deadline:
            time.sleep(0.02)
        cluster.remove_node(cluster.extra, allow_graceful=False)

    with ThreadPoolExecutor(1) as other:
        lost = other.submit(lose_a_node)
        summary = run_cells(cells, Place(there), announce=lines.append, executor=RayCluster(cluster.address))
        lost.result()
    cluster.extra = None
    assert summary.complete
    assert len(summary.computed) == 8
    assert fingerprints(there, cells) == fingerprints(local, cells)
    again = [line for line in lines if "trying again" in line]
    assert len(computed(there)) == 8 + len(again)
    assert len(again) == 1


def test_a_cell_that_needs_a_gpu_has_one_to_itself(cluster, folders):
    """The GPUs are only claimed to be there: what is tested is who is told to use which."""
    _, there = folders
    cells = [gpu_cell(x, "brief") for x in range(3)]
    refused = run_cells(cells, Place(there), executor=RayCluster(cluster.address)).failed
    assert set(refused.values()) == {"it needs a GPU, and no node with CPUs enough has one"}
    cluster.add_node(num_cpus=2, num_gpus=2)
    assert run_cells(cells, Place(there), executor=RayCluster(cluster.address)).complete
    given = devices_given(there)
    assert len(given) == 3  # a process computes one cell and ends: torch would keep to its first GPU
    assert set(given.values()) <= {"0", "1"}


def test_a_cluster_that_is_not_there_is_said_before_anything_runs(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"no Ray cluster at 127.0.0.1:9 .*ray start --head"):
        run_cells([square_cell(1)], Place(tmp_path), executor=RayCluster("127.0.0.1:9"))
    assert not list(tmp_path.iterdir())
