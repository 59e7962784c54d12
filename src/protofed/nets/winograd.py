"""3x3 convolutions by Winograd's algorithm F(4x4, 3x3): 36 products where the sum has 144.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016. The output is cut
into tiles of 4x4 pixels. A tile, and the 6x6 pixels that it sees, are brought into a basis in
which the convolution is one product for each of 36 places; over channels these are 36 matrix
products. With INPUT, KERNEL and OUTPUT as the changes of basis, along rows and along columns:

    output = OUTPUT @ ((KERNEL @ kernel) * (INPUT @ input))

The gradients are the same steps backwards, so all matrix products are in the small basis. Sums
are rounded differently than in a direct convolution: about 1e-5 of the output in float32.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TILE, SEEN = 4, 6  # pixels along a side, of the output and of the input that it needs
LEAST_CHANNELS = 128  # below, changing the basis costs more than the products save

INPUT = torch.tensor(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    dtype=torch.float64,
)
KERNEL = (
    torch.tensor(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
        dtype=torch.float64,
    )
    / 24
)
OUTPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    dtype=torch.float64,
)
BOTH_WAYS = {  # along rows and along columns at once
    "input": torch.kron(INPUT, INPUT),
    "kernel": torch.kron(KERNEL, KERNEL),
    "output": torch.kron(OUTPUT, OUTPUT),
}


class WinogradConv2d(nn.Module):
    """Replaces a convolution that `fits_winograd`, with its weight under the same name.

    State dicts of nets with and without it are therefore interchangeable.
    """

    def __init__(self, direct: nn.Conv2d):
        super().__init__()
        self.weight = direct.weight

    def forward(self, x: Tensor) -> Tensor:
        return winograd_conv2d(x, self.weight)


def use_winograd(net: nn.Module) -> int:
    """Replace, in place, all convolutions of a net that gain by it; returns how many.

    Weights are shared with the replaced layers, so no number changes but by rounding.
    """
    found = [
        (parent, name, part)
        for parent in net.modules()
        for name, part in parent.named_children()
        if isinstance(part, nn.Conv2d) and fits_winograd(part)
    ]
    for parent, name, part in found:
        setattr(parent, name, WinogradConv2d(part))
    return len(found)


def fits_winograd(conv: nn.Conv2d) -> bool:
    """Whether `winograd_conv2d` can compute a convolution and is faster.

    It must be 3x3 with stride and padding 1, no bias, no groups, and at least `LEAST_CHANNELS`
    wide.
    """
    kind = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias)
    known = kind == ((3, 3), (1, 1), (1, 1), (1, 1), 1, None)
    return known and min(conv.in_channels, conv.out_channels) >= LEAST_CHANNELS


def winograd_conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve x [B, C, H, W] with weight [K, C, 3, 3] to [B, K, H, W].

    Equals ``F.conv2d(x, weight, padding=1)`` up to rounding, and can be differentiated once.
    """
    return cast(Tensor, _Convolve.apply(x, weight))  # type: ignore[no-untyped-call]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        inputs = _change("input", _windows(x))  # [36, tiles, C]
        kernels = _change("kernel", weight.flatten(2).permute(2, 0, 1))  # [36, K, C]
        ctx.save_for_backward(inputs, kernels)
        ctx.shape = x.shape
        return _join(_change("output", inputs @ kernels.mT), x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inputs, kernels = ctx.saved_tensors
        outputs = _back("output", _cut(grad))  # [36, tiles, K]
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = _overlap(_back("input", outputs @ kernels), ctx.shape)
        if ctx.needs_input_grad[1]:
            to_weight = _back("kernel", outputs.mT @ inputs)  # [9, K, C]
            to_weight = to_weight.permute(1, 2, 0).unflatten(2, (3, 3))
        return to_x, to_weight


def _change(basis: str, places: Tensor) -> Tensor:
    """Into another basis: [places, M, N] to [other places, M, N]."""
    matrix = BOTH_WAYS[basis].to(places.dtype)
    return (matrix @ places.reshape(len(places), -1)).view(-1, *places.shape[1:])


def _back(basis: str, places: Tensor) -> Tensor:
    """The transpose of `_change`, which takes gradients back."""
    matrix = BOTH_WAYS[basis].to(places.dtype)
    return (matrix.T @ places.reshape(len(places), -1)).view(-1, *places.shape[1:])


def _tiles(length: int) -> int:
    return -(-length // TILE)


def _padded(x: Tensor, before: int, after: int) -> Tensor:
    """[B, C, H, W] as [B, H', W', C] with zeros around; H' and W' are whole tiles and the rest."""
    height, width = (_tiles(length) * TILE - length + after for length in x.shape[2:])
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, before, width, before, height)).contiguous()


def _windows(x: Tensor) -> Tensor:
    """The overlapping 6x6 pixels that each tile sees, [36, tiles, C]."""
    wide = _padded(x, 1, SEEN - TILE - 1)
    windows = wide.unfold(1, SEEN, TILE).unfold(2, SEEN, TILE)  # [B, rows, columns, C, 6, 6]
    return windows.permute(4, 5, 0, 1, 2, 3).reshape(SEEN**2, -1, x.shape[1])


def _overlap(windows: Tensor, shape: torch.Size) -> Tensor:
    """The transpose of `_windows`: pixels that several tiles see get the sum, [B, C, H, W]."""
    count, channels, height, width = shape
    rows, columns = _tiles(height), _tiles(width)
    parts = windows.view(SEEN, SEEN, count, rows, columns, channels).permute(2, 3, 0, 4, 1, 5)
    sums = windows.new_zeros(count, rows + 1, TILE, columns + 1, TILE, channels)
    edge = SEEN - TILE  # what a window holds of the next tile
    sums[:, :rows, :, :columns] = parts[:, :, :TILE, :, :TILE]
    sums[:, 1:, :edge, :columns] += parts[:, :, TILE:, :, :TILE]
    sums[:, :rows, :, 1:, :edge] += parts[:, :, :TILE, :, TILE:]
    sums[:, 1:, :edge, 1:, :edge] += parts[:, :, TILE:, :, TILE:]
    wide = sums.view(count, (rows + 1) * TILE, (columns + 1) * TILE, channels)
    return wide[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2)


def _cut(y: Tensor) -> Tensor:
    """Tiles of 4x4 pixels, [16, tiles, K]; zeros where the last ones reach beyond the image."""
    wide = _padded(y, 0, 0)
    count, height, width, channels = wide.shape
    tiles = wide.view(count, height // TILE, TILE, width // TILE, TILE, channels)
    return tiles.permute(2, 4, 0, 1, 3, 5).reshape(TILE**2, -1, channels)


def _join(tiles: Tensor, shape: torch.Size) -> Tensor:
    """The transpose of `_cut`: images [B, K, H, W], channels last in memory."""
    count, _, height, width = shape
    rows, columns = _tiles(height), _tiles(width)
    parts = tiles.view(TILE, TILE, count, rows, columns, -1).permute(2, 3, 0, 4, 1, 5)
    wide = parts.reshape(count, rows * TILE, columns * TILE, -1)
    return wide[:, :height, :width].permute(0, 3, 1, 2)
