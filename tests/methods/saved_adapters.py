"""Adapters saved in the middle of a stream, and how the files of them are made.

``python tests/methods/saved_adapters.py FOLDER`` writes them with the version that is installed. The files of a release
stay as that release wrote them: they are what its users have on their disks.
"""

import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import offsupport

CASES = {
    "tent": ("tent", {"preset": "cifar10"}),
    "tesla-sc": ("tesla+sc", {"rank": 2, "queue": 3, "views": 2, "teacher_decay": 0.5}),
    "window": ("sar", {"window": 6, "min_batch": 4, "margin": 1.0}),
    "shot-projection": ("shot", {"lr": 0.01}),
    "ttac-source": ("ttac", {"class_min": 2, "confidence": 0.3}),
}
"""What was wrapped, by the name of the file: a method and its options."""


def network(name):
    """Return the network of a case, before its weights are put in."""
    body = (
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
    )
    plain = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return (offsupport.nn.projected(plain, out=4) if "projection" in name else plain).eval()


def batches(name, seed, count):
    """Return batches of images in [0, 1]; with a window, of a few images each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(2 if name == "window" else 16, 3, 8, 8, generator=generator) for _ in range(count)]


def write(folder):
    """Save every case after three batches, with its weights, its next batch and what it predicts there."""
    folder.mkdir(parents=True, exist_ok=True)
    where = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    for name, (method, options) in CASES.items():
        torch.manual_seed(0)
        model, stats = network(name), None
        if "source" in name:
            stats = offsupport.source_stats(model, batches(name, 1, 3), method=method)
            stats.save(folder / f"{name}.stats.safetensors")
        adapted = offsupport.adapt(model, method, source=stats, **options)
        for x in batches(name, 2, 3 if name != "window" else 8):
            adapted(x)
        adapted.save(folder / f"{name}.safetensors")
        (x,) = batches(name, 3, 1)
        weights = {f"model/{key}": tensor for key, tensor in model.state_dict().items()}
        save_file({**weights, "x": x, "logits": adapted(x)}, folder / f"{name}.next.safetensors", where)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(Path(sys.argv[1]))
