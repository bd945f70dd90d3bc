"""Networks and layers."""

from offsupport.nn.efficientnet import EfficientNetLite0
from offsupport.nn.loading import build_network, load_mae, load_model
from offsupport.nn.mae import MaeConfig, MaskedAutoencoder, Masking, draw_masks, mae
from offsupport.nn.norm import adopt_batch_norm, affine_parameters, norm_layers
from offsupport.nn.normalized import Normalized
from offsupport.nn.projected import WithProjection, projected, projection_head
from offsupport.nn.resnet import ResNet, group_norm, resnet18, resnet26, resnet50
from offsupport.nn.rotated import WithRotation, with_rotation_head

__all__ = [
    "EfficientNetLite0",
    "MaeConfig",
    "MaskedAutoencoder",
    "Masking",
    "Normalized",
    "ResNet",
    "WithProjection",
    "WithRotation",
    "adopt_batch_norm",
    "affine_parameters",
    "build_network",
    "draw_masks",
    "group_norm",
    "load_mae",
    "load_model",
    "mae",
    "norm_layers",
    "projected",
    "projection_head",
    "resnet18",
    "resnet26",
    "resnet50",
    "with_rotation_head",
]
