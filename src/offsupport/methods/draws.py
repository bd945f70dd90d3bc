"""Random draws that belong to an image: the same wherever it stands in a stream, and in whatever company."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from offsupport.core.seeds import derive_seed


def draws_for(x: Tensor, purpose: str, seed: int) -> torch.Generator:
    """Return a generator that depends on purpose, seed and the pixels of ``x`` alone.

    So the same numbers come out however a stream is split over workers, and methods that share a purpose and a seed
    share their draws.
    """
    content = hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    return torch.Generator().manual_seed(derive_seed(purpose, seed, content))
