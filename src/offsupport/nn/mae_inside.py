"""The masked autoencoder inside a model, and how images get to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.nn.mae import MaskedAutoencoder


class _ReachedError(Exception):
    """Ends a forward pass at the autoencoder, with what it was given."""


class Inside:
    """The one masked autoencoder of a model.

    Args:
        model: An autoencoder, or one inside other modules such as :class:`~offsupport.nn.Normalized`.
        asking: Who needs it, for the message of the refusal.
    """

    def __init__(self, model: nn.Module, asking: str) -> None:
        found = [(name, module) for name, module in model.named_modules() if isinstance(module, MaskedAutoencoder)]
        if len(found) != 1:
            raise ModelError(
                f"{asking} reconstructs images, and this model holds {len(found) or 'no'} masked autoencoders.",
                "Make one with offsupport.nn.mae or offsupport.nn.load_mae; for other networks use 'tent' or 'shot'.",
            )
        name, self.mae = found[0]
        self.prefix = f"{name}." if name else ""
        self.model = model
        if self.mae.classifier is None:
            raise ModelError(
                f"{asking} predicts classes, and this masked autoencoder has no classifier.",
                "Train one on its frozen encoder: offsupport train cifar10-mae-tiny.",
            )

    @torch.no_grad()
    def reach(self, x: Tensor) -> Tensor:
        """Return what the autoencoder is given when the model is called on ``x``; it does not run itself."""

        def stop(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            raise _ReachedError(named["x"] if "x" in named else given[0])

        handle = self.mae.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(x)
        except _ReachedError as reached:
            images: Tensor = reached.args[0]
            return images
        finally:
            handle.remove()
        raise ModelError(
            "The masked autoencoder of this model is not used in its forward pass.", "Call it from the model's forward."
        )
