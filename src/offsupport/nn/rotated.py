"""A classifier that keeps the head of its other task in training: to tell by how many quarters an image was turned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from offsupport.core.errors import ModelError, nearest
from offsupport.nn.inspect import capture_input, find_head, single

TURNS = 4
"""Quarter turns that are told apart: none, one, two and three."""


class WithRotation(nn.Module):
    """A backbone that gives logits, and a head that tells from some of its features how an image was turned.

    The forward pass is that of the backbone. The head is defined before it, so that the last ``nn.Linear`` is still the
    classifier.

    Args:
        backbone: Images to logits.
        rotation: The head: features to four logits. It should have no norm layers: they would stand before the
            backbone's, and not run when the model predicts.
        branch: Name of the module of the backbone whose output the head takes; None for the input of the classifier.
    """

    def __init__(self, backbone: nn.Module, rotation: nn.Module, branch: str | None = None) -> None:
        super().__init__()
        self.rotation = rotation
        self.backbone = backbone
        self.branch = branch
        _branch(backbone, branch)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the backbone."""
        logits: Tensor = self.backbone(x)
        return logits

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the classes and those of the turns, from one pass."""
        with self.listening() as features:
            logits = self.backbone(x)
        return logits, self.rotation(features[-1])

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Collect inside the block what the head would be given, pass by pass."""
        module = _branch(self.backbone, self.branch)
        if self.branch is None:
            with capture_input(module) as features:
                yield features
            return
        outputs: list[Tensor] = []
        handle = module.register_forward_hook(lambda _, given, out: outputs.append(single(out)))
        try:
            yield outputs
        finally:
            handle.remove()

    def behind(self) -> list[nn.Module]:
        """Return the modules of the backbone that the head does not depend on: those defined behind the branch."""
        if self.branch is None:
            return [find_head(self.backbone)[1]]
        names = [name for name, _ in self.backbone.named_modules()]
        inside = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{self.branch}.")]
        return [self.backbone.get_submodule(name) for name in names[inside[-1] + 1 :]]


def _branch(backbone: nn.Module, name: str | None) -> nn.Module:
    """Return the module that the head listens to."""
    if name is None:
        return find_head(backbone)[1]
    modules: dict[str, nn.Module] = dict(backbone.named_modules())
    if not name or name not in modules:
        raise ModelError(f"The backbone has no module called {name!r}.", nearest(name, filter(None, modules)))
    return modules[name]


def with_rotation_head(backbone: nn.Module, branch: str | None = None) -> WithRotation:
    """Give ``backbone`` a fresh head for turns.

    It is a linear layer on the penultimate features, or on the maps of a convolutional ``branch`` two strided
    convolutions as wide as these, their mean over positions, and a linear layer.
    """
    module = _branch(backbone, branch)
    if branch is None:
        if not isinstance(module, nn.Linear):
            raise ModelError("The classifier is no nn.Linear.", "Give a head: WithRotation(backbone, head).")
        return WithRotation(backbone, nn.Linear(module.in_features, TURNS))
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    if not convolutions:
        raise ModelError(
            f"The module {branch!r} holds no nn.Conv2d, so how many maps it gives is not known.",
            "Give a head for what it gives: WithRotation(backbone, head, branch).",
        )
    width = convolutions[-1].out_channels
    layers = [nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, TURNS)]
    return WithRotation(backbone, nn.Sequential(*layers, *pooled), branch)


def find_rotation(model: nn.Module) -> WithRotation | None:
    """Return the :class:`WithRotation` that ``model`` is or contains."""
    return next((module for module in model.modules() if isinstance(module, WithRotation)), None)
