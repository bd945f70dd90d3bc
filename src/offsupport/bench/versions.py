"""What a result was computed with: versions and the type of the CPU."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from offsupport import __version__


@cache
def versions() -> dict[str, str]:
    """Return versions and CPU type; results are bit-identical only where all of these agree."""
    return {
        "offsupport": __version__,
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "cpu": _cpu(),
    }


def _cpu() -> str:
    """The model name; kernels are chosen by it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
