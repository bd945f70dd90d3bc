"""Residual networks (He et al., 2016) with torchvision's key layout, so that published weights load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

Stem = Literal["cifar", "imagenet"]
Norm = Callable[[int], nn.Module]


def group_norm(channels: int, most: int = 32) -> nn.Module:
    """Group norm with ``most`` groups, or fewer where the channels do not divide."""
    groups = next(g for g in (32, 16, 8, 4, 2, 1) if g <= most and channels % g == 0)
    return nn.GroupNorm(groups, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + shortcut)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = norm(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + shortcut)
        return result


class ResNet(nn.Module):
    """A residual network of four stages.

    Args:
        block: Kind of residual block.
        depths: Number of blocks in each stage.
        num_classes: Number of logits.
        width: Channels of the first stage; 64 is the published network.
        stem: ``cifar`` is one 3x3 convolution and no pooling; ``imagenet`` a 7x7 one with stride 2 and max pooling.
        norm: Makes the normalisation layer for a number of channels.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int = 10,
        *,
        width: int = 64,
        stem: Stem = "cifar",
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(3, width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        channels = width
        for stage, depth in enumerate(depths):
            layers = []
            for i in range(depth):
                out, stride = width << stage, 2 if stage and not i else 1
                layers.append(
                    block(channels, out, stride, norm, _shortcut(channels, out * block.expansion, stride, norm))
                )
                channels = out * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (1, 2, 3, 4):
            x = getattr(self, f"layer{stage}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


def resnet18(num_classes: int = 10, *, width: int = 64, stem: Stem = "cifar", norm: Norm = nn.BatchNorm2d) -> ResNet:
    """ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, width=width, stem=stem, norm=norm)


def resnet26(num_classes: int = 10, *, width: int = 64, stem: Stem = "cifar", norm: Norm = nn.BatchNorm2d) -> ResNet:
    """ResNet-26: ResNet-50's bottleneck blocks, two per stage."""
    return ResNet(Bottleneck, (2, 2, 2, 2), num_classes, width=width, stem=stem, norm=norm)


def resnet50(num_classes: int = 10, *, width: int = 64, stem: Stem = "cifar", norm: Norm = nn.BatchNorm2d) -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, width=width, stem=stem, norm=norm)
