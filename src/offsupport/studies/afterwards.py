"""What a stream leaves behind: how far the weights went, and what the network makes of clean images from then on.

The network is the one that :meth:`Adapter.merge` returns. It normalises by the statistics that the model came with, so
that nothing but its weights tells it from the source model: with weights that never moved it errs as that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offsupport.results.correctness import pack

if TYPE_CHECKING:
    from torch import nn

    from offsupport.data import Stream
    from offsupport.methods import Adapter


@torch.no_grad()
def left_behind(adapter: Adapter, model: nn.Module, clean: Stream) -> dict[str, Any]:
    """Compare the network that adaptation ended with to the source model, by weights and on clean images.

    Returns:
        ``change``: the Euclidean norm of all changes over that of all parameters; ``changes``: the same of each
        parameter that is not zero; ``error`` and ``images`` on the clean ones; ``disagreement``: the share of them of
        which both networks say different things.
    """
    merged, model = adapter.merge().eval(), model.eval()
    rows, correct, agreed = [], [], []
    for batch in clean:
        x = adapter.to_device(batch.x)
        said, before = merged(x).argmax(1).cpu(), model(x).argmax(1).cpu()
        rows.append(batch.index)
        correct.append((said == batch.y).numpy())
        agreed.append((said == before).numpy())
    right = np.concatenate(correct)
    return {
        **_changes(dict(model.named_parameters()), dict(merged.named_parameters())),
        "error": float(1 - right.mean()),
        "disagreement": float(1 - np.concatenate(agreed).mean()),
        "images": pack(np.concatenate(rows), right),
    }


def _changes(before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> dict[str, Any]:
    sizes = {name: float(value.double().norm()) for name, value in before.items()}
    moved = {name: float((after[name].double() - value.double()).norm()) for name, value in before.items()}
    whole = float(np.linalg.norm(list(moved.values())) / np.linalg.norm(list(sizes.values())))
    return {"change": whole, "changes": {name: moved[name] / size for name, size in sizes.items() if size}}
