"""Residual nets, with a stem for small or for large images; parts are named as in torchvision."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.model import ImageShape, Net

WIDTH = 512  # of the encoder's output
Blocks = tuple[int, int, int, int]  # how many in each of the four stages


def residual_net(blocks: Blocks, classes: int, image: ImageShape, large: bool = False) -> Net:
    """A residual net whose features are the output of its encoder, [B, 512].

    `blocks` gives the depth: ``(2, 2, 2, 2)`` is a ResNet-18. The head is what torchvision calls
    ``fc``. A `large` one is torchvision's own, for images of about 224 pixels.
    """
    encoder = ResNet(image.channels, blocks, large)
    return Net(encoder, nn.Identity(), nn.Linear(WIDTH, classes), WIDTH)


class ResNet(nn.Module):
    """A residual encoder: images [B, channels, side, side] to non-negative features [B, WIDTH].

    The stem is a 3x3 convolution without stride or pooling, for images of about 32 pixels; of a
    `large` one, 7x7 with stride 2 and pooling.
    """

    def __init__(self, channels: int, blocks: Blocks, large: bool = False):
        super().__init__()
        # 3x3 without stride or pooling: the stem made for 224 pixels would leave 1x1 maps at 32.
        self.conv1 = _conv3x3(channels, 64)
        self.pool: nn.Module = nn.Identity()
        if large:
            self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(blocks[0], 64, 64, stride=1)
        self.layer2 = _stage(blocks[1], 64, 128, stride=2)
        self.layer3 = _stage(blocks[2], 128, 256, stride=2)
        self.layer4 = _stage(blocks[3], 256, WIDTH, stride=2)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where shapes change.

    Batch normalisation follows every convolution.
    """

    def __init__(self, inward: int, outward: int, stride: int):
        super().__init__()
        self.conv1 = _conv3x3(inward, outward, stride)
        self.bn1 = nn.BatchNorm2d(outward)
        self.conv2 = _conv3x3(outward, outward)
        self.bn2 = nn.BatchNorm2d(outward)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.downsample = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


def _stage(blocks: int, inward: int, outward: int, stride: int) -> nn.Sequential:
    """Blocks of one width; only the first may change the shape."""
    later = [ResidualBlock(outward, outward, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(ResidualBlock(inward, outward, stride), *later)


def _conv3x3(inward: int, outward: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inward, outward, 3, stride, padding=1, bias=False)  # a batch norm follows
