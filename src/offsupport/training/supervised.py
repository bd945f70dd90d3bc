"""Supervised training of a small classifier: cross-entropy, SGD, one-cycle learning rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def train_classifier(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int = 64,
    lr: float = 0.1,
    weight_decay: float = 5e-4,
    shift: int = 0,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> nn.Module:
    """Train ``model`` in place and return it in evaluation mode.

    Args:
        model: A classifier of images in [0, 1].
        images: (N, C, H, W).
        labels: (N,).
        epochs: Passes over the images.
        batch_size: Images per step.
        lr: Largest learning rate of the cycle.
        weight_decay: Of SGD with momentum 0.9.
        shift: Move each image by up to so many pixels, drawn anew in every epoch.
        seed: Of the order and the shifts.
        advance: Called after each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay, nesterov=True)
    batches = len(images) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=epochs * batches)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for batch in torch.split(order[: batches * batch_size], batch_size):
            loss = nn.functional.cross_entropy(model(shifted(images[batch], shift, generator)), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        advance()
    return model.eval()


def shifted(x: Tensor, by: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to ``by`` pixels along each axis, edges repeated."""
    if not by:
        return x
    n, _, height, width = x.shape
    padded = nn.functional.pad(x, (by, by, by, by), mode="replicate")
    top, left = torch.randint(2 * by + 1, (2, n, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    return padded[
        torch.arange(n)[:, None, None, None],
        torch.arange(x.shape[1])[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
