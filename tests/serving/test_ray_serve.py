"""Two replicas on a local Ray cluster answer behind one address."""

import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from service_client import SIDE, png, small_model

from offsupport.core.errors import ConfigError
from offsupport.serving import ray_serve
from offsupport.serving.ray_serve import ray_application


def test_without_ray_the_line_that_installs_it_is_said(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(ray_serve, "import_module", missing)
    with pytest.raises(ConfigError, match=r"offsupport\[ray,serve\]"):
        ray_application(small_model())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_two_replicas_answer(monkeypatch, start_ray):
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'offsupport[ray]'")
    import ray
    from ray import serve

    with pytest.raises(ConfigError, match="come and go"):
        ray_application(small_model(), state="kept")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A cluster of its own: other tests may have one on this machine.
    start_ray(lambda: ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False))
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_application(small_model(), "minimal", size=SIDE, replicas=2), route_prefix="/")
        url = f"http://127.0.0.1:{port}"

        def ask(seed):
            sent = urllib.request.Request(f"{url}/predict", png(seed), {"Content-Type": "image/png"})
            with urllib.request.urlopen(sent, timeout=120) as answer:
                return json.load(answer)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(40)))
        assert all(len(answer["predictions"]) == 1 for answer in answers)
        assert serve.status().applications["default"].deployments["offsupport"].replica_states == {"RUNNING": 2}
        with urllib.request.urlopen(f"{url}/health", timeout=120) as answer:
            assert json.load(answer)["status"] == "ok"
    finally:
        serve.shutdown()
        ray.shutdown()
