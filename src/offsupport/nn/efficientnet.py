"""EfficientNet-Lite0: the EfficientNet of Tan and Le (2019) for small devices, without squeeze and excitation.

Written for adaptation: neither dropout nor stochastic depth, which act in training alone.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

LITE0_MEAN, LITE0_STD = (127 / 255,) * 3, (128 / 255,) * 3
"""How its published weights take images: (255 x - 127) / 128."""
_STAGES = (
    (1, 1, 3, 1, 16),
    (2, 6, 3, 2, 24),
    (2, 6, 5, 2, 40),
    (3, 6, 3, 2, 80),
    (3, 6, 5, 1, 112),
    (4, 6, 5, 2, 192),
    (1, 6, 3, 1, 320),
)
"""Blocks, expansion, side of the kernel, stride and channels."""
_STEM, _FEATURES = 32, 1280


class SamePad(nn.Module):
    """Pads with zeros as TensorFlow does before a strided convolution: the odd row and column come last.

    Args:
        kernel: Side of the kernel that follows.
        stride: Its stride.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """Pad the last two dimensions."""
        pads: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            more = max(0, (-(-size // self.stride) - 1) * self.stride + self.kernel - size)
            pads += [more // 2, more - more // 2]
        return functional.pad(x, pads)


def _layer(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Module:
    """Return a convolution, batch norm, and ReLU6 if asked for."""
    strided = stride > 1
    padding = 0 if strided else kernel // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if strided:
        layers["pad"] = SamePad(kernel, stride)
    layers["conv"] = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    layers["bn"] = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
    if act:
        layers["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(layers)


class InvertedBottleneck(nn.Module):
    """1x1 to more channels, a depthwise convolution, 1x1 to fewer, and a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = _layer(inputs, wide) if expansion > 1 else nn.Identity()
        self.depthwise = _layer(wide, wide, kernel, stride, groups=wide)
        self.project = _layer(wide, outputs, act=False)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + out if self.shortcut else out


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0, for standardised images of any size; the published weights were trained on 224 x 224.

    Args:
        num_classes: Number of logits.
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = _layer(3, _STEM, 3, 2)
        blocks, channels = [], _STEM
        for count, expansion, kernel, stride, outputs in _STAGES:
            for i in range(count):
                blocks.append(InvertedBottleneck(channels, outputs, expansion, kernel, stride if i == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _layer(channels, _FEATURES)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_FEATURES, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        features: Tensor = self.head(self.blocks(self.stem(x)))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


_PUBLISHED = {
    r"^_conv_stem\.": "stem.conv.",
    r"^_bn0\.": "stem.bn.",
    r"^_conv_head\.": "head.conv.",
    r"^_bn1\.": "head.bn.",
    r"^_fc\.": "fc.",
    r"^_blocks\.(\d+)\._expand_conv\.": r"blocks.\1.expand.conv.",
    r"^_blocks\.(\d+)\._depthwise_conv\.": r"blocks.\1.depthwise.conv.",
    r"^_blocks\.(\d+)\._project_conv\.": r"blocks.\1.project.conv.",
    r"^_blocks\.(\d+)\._bn0\.": r"blocks.\1.expand.bn.",
    r"^_blocks\.(\d+)\._bn1\.": r"blocks.\1.depthwise.bn.",
    r"^_blocks\.(\d+)\._bn2\.": r"blocks.\1.project.bn.",
}


def lite_name(name: str) -> str:
    """Return our name of a tensor in the published layout of EfficientNets; any other name stays as it is."""
    for pattern, ours in _PUBLISHED.items():
        name = re.sub(pattern, ours, name)
    return name
