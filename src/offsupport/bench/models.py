"""Source models by name: trained once per run folder and kept there, or made by a function of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from offsupport.bench.cell import imported
from offsupport.core.errors import ModelError

if TYPE_CHECKING:
    from torch import nn


def load_model(name: str, folder: Path) -> nn.Module:
    """Return the source model called ``name``, ready to predict."""
    from torch import nn

    model = imported(name, "model")()
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} returned {type(model).__name__}.", "It must return a torch.nn.Module.")
    return model.eval()
