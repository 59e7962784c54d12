"""EfficientNet-Lite0 (Google, 2020): the small net whose ImageNet weights a package brings.

The published net without its dropout and without its dropping of whole blocks: both would draw
from torch's global generator, and neither takes part in predictions.
"""

from __future__ import annotations

import re
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.model import ImageShape, Net

WIDTH = 1280  # of the encoder's output
FEATURES = 256  # D, of z behind a neck
STEM = 32  # channels behind the first convolution
# Of each stage: blocks, kernel, stride of its first block, factor of expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(classes: int, image: ImageShape, neck: bool = False) -> Net:
    """EfficientNet-Lite0; features z are [B, 1280], or [B, 256] with a `neck`, and not negative.

    Made for colour images of side 224; smaller ones are faster and less accurate. With a neck,
    there are features to train where the encoder is frozen.
    """
    encoder = EfficientNet()  # first, as weights are drawn in this order
    if not neck:
        return Net(encoder, nn.Identity(), nn.Linear(WIDTH, classes), WIDTH)
    projection = nn.Sequential(nn.Linear(WIDTH, FEATURES), nn.ReLU())
    return Net(encoder, projection, nn.Linear(FEATURES, classes), WIDTH)


class EfficientNet(nn.Module):
    """Images [B, 1 or 3, side, side] to features [B, WIDTH], in 16 blocks.

    Grey images are repeated for the three channels of its first convolution.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM, kernel=3, stride=2)
        blocks, inward = list[nn.Module](), STEM
        for count, kernel, stride, factor, outward in STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                blocks.append(InvertedBlock(inward, outward, kernel, first, factor))
                inward = outward
        self.blocks = nn.Sequential(*blocks)
        self.top = ConvNorm(inward, WIDTH, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.top(self.blocks(self.stem(x.expand(-1, 3, -1, -1))))
        return maps.mean((2, 3))


class InvertedBlock(nn.Module):
    """Widen by `factor`, filter every channel by itself, narrow to `outward` channels.

    The input is added where it has the shape of the output.
    """

    def __init__(self, inward: int, outward: int, kernel: int, stride: int, factor: int):
        super().__init__()
        wide = inward * factor
        self.expand = ConvNorm(inward, wide, kernel=1) if factor > 1 else nn.Identity()
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide)
        self.project = ConvNorm(wide, outward, kernel=1, active=False)
        self.adds = stride == 1 and inward == outward

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.adds else out


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm, and a ReLU up to 6 unless it is not `active`.

    The map is padded as TensorFlow does, so that it has the side divided by the stride, rounded
    up: with a stride, an even side gets more at its end than at its beginning.
    """

    def __init__(
        self,
        inward: int,
        outward: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        active: bool = True,
    ):
        super().__init__()
        self.conv = nn.Conv2d(inward, outward, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outward, eps=1e-3, momentum=0.01)
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        height, width = (_padding(size, self.conv) for size in x.shape[2:])
        out = self.norm(self.conv(F.pad(x, (*width, *height))))
        return F.relu6(out) if self.active else cast(Tensor, out)


def _padding(size: int, conv: nn.Conv2d) -> tuple[int, int]:
    """Pixels before and after a row of `size` pixels."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return missing // 2, missing - missing // 2


OUTER = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "top.conv",
    "_bn1": "top.norm",
}
INNER = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
BLOCK = re.compile(r"_(blocks\.\d+\.)")


def own_name(published: str) -> str:
    """The name in the encoder of an entry of the published files; any other name as it is.

    ``_blocks.3._bn1.bias`` becomes ``blocks.3.depthwise.norm.bias``.
    """
    block = BLOCK.match(published)
    part, dot, leaf = published[block.end() if block else 0 :].partition(".")
    own = (INNER if block else OUTER).get(part)
    return f"{block[1] if block else ''}{own}{dot}{leaf}" if own else published
