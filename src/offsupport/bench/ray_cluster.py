"""The Ray executor: the same cells as tasks on a Ray cluster; results come back to the driver, which writes them.

Ray only carries: what is done is what lies in the run folder, so a cluster may be lost at any moment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from offsupport.bench.cell import Cell, Place
from offsupport.bench.executor import Job, Task, attempt, needs_gpu
from offsupport.core.errors import ConfigError
from offsupport.core.files import sha256_bytes, sha256_file, write_bytes
from offsupport.core.processes import WORKER_VARIABLES

LOOK_EVERY = 1.0
"""Seconds after which the size of the cluster and the wish to stop are looked at, whether or not a cell came back."""


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster; a cell takes as many of its CPUs as it has threads, and a GPU if it needs one.

    Args:
        address: ``HOST:PORT`` of its head; None for the one that ``RAY_ADDRESS`` names or that runs on this machine,
            else one of this machine alone is started.
        workers: How many cells at a time; 0 for as many as there are CPUs, and GPUs, for.
    """

    address: str | None = None
    workers: int = 0

    @contextlib.contextmanager
    def ready(self) -> Iterator[Callable[[Job], None]]:
        """Connect, and return what computes the cells of a job; an address that does not answer is said first.

        A lost node or worker costs the cells it was computing, which are sent again.
        """
        try:
            ray = import_module("ray")
        except ImportError:
            raise ConfigError("The executor ray needs Ray.", "Install it: pip install 'offsupport[ray]'") from None
        if ray.is_initialized():  # by the program that asks for this: it stays so
            yield lambda job: _Driver(ray, job, self.workers).run()
            return
        with contextlib.redirect_stdout(sys.stderr):  # where Ray says what it has to say
            self._connect(ray)
            try:
                yield lambda job: _Driver(ray, job, self.workers).run()
            finally:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless asked
        host, _, port = (self.address or "").rpartition(":")
        try:
            if host and port.isdigit():  # Ray itself would try for minutes
                socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()
            ray.init(address=self.address, log_to_driver=False, logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "for this machine"
            raise ConfigError(
                f"There is no Ray cluster {where} ({str(error).splitlines()[0]}).",
                "Start one with `ray start --head`, the same versions of Python and Ray everywhere.",
            ) from error


class _Model(NamedTuple):
    """A model trained for the run, which a node without the run folder writes down for its cells."""

    name: str
    sha256: str
    content: Any
    """A reference; few nodes need it."""


class _Driver:
    def __init__(self, ray: Any, job: Job, workers: int) -> None:
        self.ray, self.job, self.workers = ray, job, workers
        # The permission to run code goes with the cells, as a part of their place: a node decides nothing by itself.
        self.place = replace(
            job.place, folder=job.place.folder.resolve(), data=job.place.data and job.place.data.resolve()
        )
        self.models = [self._packed(path) for path in sorted(self.place.folder.glob("models/*.safetensors"))]
        options: dict[str, Any] = {"max_retries": 0, "runtime_env": {"env_vars": _environment(bool(job.place.code))}}
        self.task = ray.remote(**options)(_compute)
        # Said here and not with each cell, so that Ray ends a worker after its cell: torch would keep to its first GPU.
        self.gpu_task = ray.remote(num_gpus=1, **options)(_compute)
        self.waiting = deque(job.cells)
        self.running: dict[Any, Cell] = {}

    def run(self) -> None:
        while True:
            self._send()
            if not self.running:
                return
            ready, _ = self.ray.wait(list(self.running), timeout=LOOK_EVERY)
            for answer in ready:
                self._handle(answer, self.running.pop(answer))

    def _send(self) -> None:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        while self.waiting and not self.job.stop:
            cell = self.waiting[0]
            threads, gpu = int(cell.config.get("threads", 1)), needs_gpu(cell)
            refusal = _refusal(nodes, threads, gpu)
            if refusal:
                self.job.failed(self.waiting.popleft(), refusal)
            elif len(self.running) < (self.workers or _room(nodes, threads, gpu)):
                task = self.gpu_task if gpu else self.task
                sent = task.options(num_cpus=threads).remote(self.job.task(cell), self.place, self.models)
                self.running[sent] = self.waiting.popleft()
            else:
                return

    def _handle(self, answer: Any, cell: Cell) -> None:
        try:
            data, failure = self.ray.get(answer)
            if failure is None:
                self.job.store.keep(cell, data)
        except self.ray.exceptions.RayTaskError as error:  # the node could not even begin
            failure = str(error.cause)
        except self.ray.exceptions.RayError as error:
            if self.job.died(cell, f"its worker was lost ({type(error).__name__})"):
                self.waiting.append(cell)
            return
        except OSError as error:
            failure = f"{type(error).__name__}: {error}"
        if failure is None:
            self.job.done(cell)
        else:
            self.job.failed(cell, failure)

    def _packed(self, path: Path) -> _Model:
        content = path.read_bytes()
        return _Model(path.name, sha256_bytes(content), self.ray.put(content))


def _refusal(nodes: Sequence[Mapping[str, float]], threads: int, gpu: bool) -> str:
    """What is asked for and no node has, for which Ray would wait for ever; or nothing."""
    most = max(node.get("CPU", 0) for node in nodes)
    if threads > most:
        return f"it asks for {threads} CPUs, the largest node has {most:g}"
    if gpu and not any(node.get("GPU", 0) >= 1 and node.get("CPU", 0) >= threads for node in nodes):
        return "it needs a GPU, and no node with CPUs enough has one"
    return ""


def _room(nodes: Sequence[Mapping[str, float]], threads: int, gpu: bool) -> int:
    """How many such cells the nodes can compute at a time."""
    cpus, devices = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    return max(1, int(min(cpus // threads, devices) if gpu else cpus // threads))


def _compute(task: Task, place: Place, models: list[_Model]) -> tuple[bytes | None, str | None]:
    """On a node: return the result file of a cell, or what went wrong."""
    import ray

    for model in models:
        path = place.folder / "models" / model.name
        if not path.is_file() or sha256_file(path) != model.sha256:
            write_bytes(path, ray.get(model.content))
    kept: dict[Cell, bytes] = {}
    keep: Callable[[Cell, bytes], None] = kept.__setitem__
    failure = attempt(task, place, keep)
    return kept.get(task.cell), failure


def _environment(code: bool) -> dict[str, str]:
    """What a worker on a node finds as one on this machine would: threads, modules of the user's own, the data.

    Args:
        code: Whether modules of the working folder count, as they do where code was allowed.
    """
    modules = [*([str(Path.cwd())] if code else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    data = {name: os.environ[name] for name in ("OFFSUPPORT_DATA",) if name in os.environ}
    return {**WORKER_VARIABLES, **({"PYTHONPATH": os.pathsep.join(modules)} if modules else {}), **data}
