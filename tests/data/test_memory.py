"""Reading corrupted files must not pile up memory."""

import os
import subprocess
import sys

import pytest
from data_layouts import write_sparse_cifar_c

from offsupport.data import ALL

CODE = """
import resource, sys
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from offsupport.data import stream
seen = 0
for batch in stream("cifar10-c", sys.argv[1], corruption=sys.argv[2].split(","), severity=[1, 5]):
    seen += len(batch.y)
print(seen, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs the peak of memory in kilobytes, as Linux tells it")
@pytest.mark.parametrize("names", [ALL[:1], ALL])
def test_reading_adds_under_200_mb(tmp_path, names):
    write_sparse_cifar_c(tmp_path / "CIFAR-10-C", names)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CODE, str(tmp_path), ",".join(names)]
    printed = subprocess.run(command, env=environment, check=True, stdout=-1).stdout
    seen, kilobytes = map(int, printed.split())
    assert seen == 20_000 * len(names)
    assert kilobytes < 200 * 1024
