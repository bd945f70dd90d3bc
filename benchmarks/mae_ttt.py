"""What an episode of MAE test-time training costs beside its bare passes, and what two shortcuts save.

- ``episode``: ``mae-ttt+em`` on one image, through ``offsupport.adapt``, over the same forward and backward passes
  written plainly (no optimiser, guard, reset or random masks beyond the passes themselves).
- ``visible``: a reconstruction step that encodes the visible patches only, over one that encodes all of them and
  hides the removed ones from the decoder alone.
- ``copies``: entropy on one forward pass of the image, over the same loss and gradient on 32 copies of it.

All sides take turns in one process, in an order that rotates, so that other load falls on all alike; ratios are of
medians of processor time, with the seconds behind them.

Run: ``python benchmarks/mae_ttt.py [--json] [--size tiny/4] [--steps 10] [--masks 32] [--rounds 7]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import offsupport
from offsupport.core.progress import progress
from offsupport.functional import entropy
from offsupport.nn import MaskedAutoencoder, Masking, draw_masks, mae

Side = Callable[[], object]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", default="tiny/4")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--masks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = measure(mae(given.size, classes=10).eval(), given)
    print(json.dumps(found) if given.json else summary(found))


def measure(model: MaskedAutoencoder, given: argparse.Namespace) -> dict[str, Any]:
    """Time all sides in turns."""
    x = torch.rand(1, 3, model.config.image, model.config.image)
    masks = draw_masks(given.masks, model.config.patches, 0.75, torch.Generator().manual_seed(0))
    adapted = offsupport.adapt(model, "mae-ttt+em", steps=given.steps, masks=given.masks)
    model.requires_grad_(False)
    encoder = [p for n, p in model.named_parameters() if not n.startswith(("decoder", "classifier", "mask_token"))]
    head = list(model.classifier.parameters()) if model.classifier is not None else []
    for parameter in encoder + head:
        parameter.requires_grad_(True)

    def bare() -> None:
        for _ in range(given.steps):
            torch.autograd.grad(model.loss(x, masks), encoder)
            torch.autograd.grad(entropy(model(x)).mean(), encoder + head)
        with torch.no_grad():
            model(x)

    sides: dict[str, Side] = {
        "episode": lambda: adapted(x),
        "bare passes": bare,
        "visible patches": lambda: torch.autograd.grad(model.loss(x, masks), encoder),
        "all patches": lambda: torch.autograd.grad(loss_of_all(model, x, masks), encoder),
        "one forward": lambda: torch.autograd.grad(entropy(model(x)).mean(), encoder + head),
        "32 copies": lambda: torch.autograd.grad(entropy(model(x.expand(32, -1, -1, -1))).mean(), encoder + head),
    }
    seconds = timed(sides, given.rounds)
    return {
        "size": given.size,
        "steps": given.steps,
        "masks": given.masks,
        "seconds": seconds,
        "ratios": {
            "episode over bare passes": seconds["episode"] / seconds["bare passes"],
            "all patches over visible ones": seconds["all patches"] / seconds["visible patches"],
            "32 copies over one forward": seconds["32 copies"] / seconds["one forward"],
        },
    }


def loss_of_all(model: MaskedAutoencoder, x: Tensor, masks: Masking) -> Tensor:
    """Encode every patch of every masked version, with removed patches blanked, and reconstruct as before."""
    blank = model.unpatchify(masks.mask[..., None].expand(-1, -1, model.config.patch**2 * model.config.channels))
    tokens = model.encode(x * (1 - blank))
    visible = tokens[:, 1:].gather(1, masks.keep[..., None].expand(-1, -1, tokens.shape[2]))
    pixels = model.decode(torch.cat([tokens[:, :1], visible], 1), masks.restore)
    error = model.patch_errors(x, pixels)
    return (error * masks.mask).sum() / masks.mask.sum()


def timed(sides: dict[str, Side], rounds: int) -> dict[str, float]:
    """Return the median processor time of each side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    with progress("rounds", rounds + 1) as advance:
        for number in range(rounds + 1):
            for i in range(len(names)):
                name = names[(i + number) % len(names)]
                started = time.process_time()
                sides[name]()
                times[name].append(time.process_time() - started)
            advance()
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def summary(found: dict[str, Any]) -> str:
    """Return the result in words."""
    lines = [f"{found['size']}, {found['steps']} steps on {found['masks']} masks, one thread"]
    lines += [f"{name:>30}: {ratio:.2f}" for name, ratio in found["ratios"].items()]
    lines += [f"{name:>30}: {seconds:.4f} s" for name, seconds in found["seconds"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
