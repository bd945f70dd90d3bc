"""A classifier that keeps the projection head of its contrastive training."""

from __future__ import annotations

from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.nn.inspect import capture_input, find_head
from offsupport.nn.rotated import find_rotation


class WithProjection(nn.Module):
    """A backbone that gives logits, and a projection of its penultimate features for a contrastive loss.

    The forward pass is that of the backbone. The projection is defined before it, so that the last ``nn.Linear`` is
    still the classifier.

    Args:
        backbone: Images to logits; its penultimate features are the input of its last ``nn.Linear``.
        projection: Features (N, d) to (N, k), not normalised.
    """

    def __init__(self, backbone: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the backbone."""
        logits: Tensor = self.backbone(x)
        return logits

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the projected features, from one pass."""
        with capture_input(find_head(self.backbone)[1]) as features:
            logits = self.backbone(x)
        return logits, self.projection(features[-1])


def projection_head(features: int, out: int = 128) -> nn.Sequential:
    """Return Linear, ReLU, Linear: the head of SimCLR and TTT++, as wide as the features."""
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(inplace=True), nn.Linear(features, out))


def projected(backbone: nn.Module, out: int = 128) -> WithProjection:
    """Give ``backbone`` a fresh projection head of the width of its penultimate features."""
    name, head = find_head(backbone)
    if not isinstance(head, nn.Linear):
        raise ModelError(f"The classifier {name!r} is no nn.Linear.", "Its input width cannot be read off.")
    return WithProjection(backbone, projection_head(head.in_features, out))


def find_projection(model: nn.Module) -> nn.Module | None:
    """Return the projection head of contrastive training, if ``model`` is or contains a :class:`WithProjection`."""
    return next((module.projection for module in model.modules() if isinstance(module, WithProjection)), None)


def training_heads(model: nn.Module) -> list[nn.Module]:
    """Return the heads that training had and no prediction depends on: of projection, of rotation."""
    projection, rotation = find_projection(model), find_rotation(model)
    return [*([projection] if projection else []), *([rotation.rotation] if rotation else [])]


def predicting_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that predictions depend on by name: all but those of heads that only training had."""
    return _all_but(model, training_heads(model))


def encoder_parameters(model: nn.Module, head: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that the features depend on by name: all but those of classifier and training heads."""
    return _all_but(model, [head, *training_heads(model)])


def _all_but(model: nn.Module, left_out: list[nn.Module]) -> dict[str, nn.Parameter]:
    kept = {parameter for module in left_out for parameter in module.parameters()}
    return {name: p for name, p in model.named_parameters() if p.is_floating_point() and p not in kept}
