"""The small convolutional nets of FedLSA and FedSeProto.

Every block pools before its ReLU: both keep order, so they commute bit for bit, in outputs and
in gradients, and the ReLU then works on a quarter of the pixels.
"""

from __future__ import annotations

from torch import nn

from protofed.core.model import ImageShape, Net

WIDTH = 512  # of every encoder's output here
ANCHOR_WIDTH = 128  # of FedLSA's feature, among which its anchors live


def lsa_cnn(classes: int, image: ImageShape) -> Net:
    """FedLSA: two 5x5 convolutions and three linear layers, one each for encoder, neck, head."""
    encoder = _encoder(image, widths=(32, 64), kernel=5, grid=8)
    neck = nn.Sequential(nn.Linear(WIDTH, ANCHOR_WIDTH), nn.ReLU())
    return Net(encoder, neck, nn.Linear(ANCHOR_WIDTH, classes), WIDTH)


def seproto_cnn(classes: int, image: ImageShape) -> Net:
    """FedSeProto: three 3x3 convolutions; the neck is its semantic encoder."""
    return _seproto(classes, _encoder(image, widths=(32, 64, 128), kernel=3, grid=4))


def seproto_cnn2(classes: int, image: ImageShape) -> Net:
    """The twin with two convolutions, for clients that do not share one architecture."""
    return _seproto(classes, _encoder(image, widths=(32, 64), kernel=3, grid=4))


def _seproto(classes: int, encoder: nn.Module) -> Net:
    return Net(encoder, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, classes), WIDTH)


def _encoder(image: ImageShape, widths: tuple[int, ...], kernel: int, grid: int) -> nn.Sequential:
    """Images [B, channels, side, side] -> convolutions, a grid x grid map, features [B, WIDTH]."""
    encoder = nn.Sequential()
    channels, side = image
    for number, width in enumerate(widths, start=1):
        padding = kernel // 2
        encoder.add_module(f"conv{number}", nn.Conv2d(channels, width, kernel, padding=padding))
        encoder.add_module(f"pool{number}", nn.MaxPool2d(2))
        encoder.add_module(f"relu{number}", nn.ReLU())
        channels, side = width, side // 2
    if side != grid:
        encoder.add_module("resize", nn.AdaptiveAvgPool2d(grid))
    encoder.add_module("flatten", nn.Flatten())
    encoder.add_module("fc", nn.Linear(channels * grid**2, WIDTH))
    encoder.add_module("relu", nn.ReLU())
    return encoder
