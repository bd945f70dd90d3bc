"""Networks and layers."""

from offsupport.nn.norm import adopt_batch_norm, affine_parameters, norm_layers
from offsupport.nn.normalized import Normalized
from offsupport.nn.resnet import ResNet, group_norm, resnet18, resnet26, resnet50

__all__ = [
    "Normalized",
    "ResNet",
    "adopt_batch_norm",
    "affine_parameters",
    "group_norm",
    "norm_layers",
    "resnet18",
    "resnet26",
    "resnet50",
]
