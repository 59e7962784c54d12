"""The small convolutional nets of FedLSA, FedSeProto, MOON and PGCT.

Every block pools before its ReLU: both keep order, so they commute bit for bit, in outputs and
in gradients, and the ReLU then works on a quarter of the pixels.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from protofed.core.model import ImageShape, Net
from protofed.nets import resnet

WIDTH = 512  # of every encoder's output here
ANCHOR_WIDTH = 128  # of FedLSA's feature, among which its anchors live


def lsa_cnn(classes: int, image: ImageShape) -> Net:
    """The net of FedLSA: two 5x5 convolutions and three linear layers.

    Encoder, neck and head have one linear layer each; features z are [B, 128].
    """
    encoder = _encoder(image, widths=(32, 64), kernel=5, grid=8)
    neck = nn.Sequential(nn.Linear(WIDTH, ANCHOR_WIDTH), nn.ReLU())
    return Net(encoder, neck, nn.Linear(ANCHOR_WIDTH, classes), WIDTH)


def seproto_cnn(classes: int, image: ImageShape) -> Net:
    """The net of FedSeProto: three 3x3 convolutions; the neck is its semantic encoder.

    Features z are [B, 512].
    """
    return _seproto(classes, _encoder(image, widths=(32, 64, 128), kernel=3, grid=4))


def seproto_cnn2(classes: int, image: ImageShape) -> Net:
    """A variant of `seproto_cnn` with two convolutions.

    For federations whose clients use different architectures: both have features of the same size.
    """
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


FEATURES = 256  # D, of z
HIDDEN = 512  # of the perceptron's layers


def moon_mlp(classes: int, image: ImageShape) -> Net:
    """The perceptron of MOON with two hidden layers, for MNIST.

    Features z are [B, 256], as for the other nets of MOON.
    """
    encoder = nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(image.channels * image.side**2, HIDDEN),
            relu1=nn.ReLU(),
            fc2=nn.Linear(HIDDEN, HIDDEN),
            relu2=nn.ReLU(),
        )
    )
    return _with_neck(encoder, HIDDEN, classes)


def moon_cnn(classes: int, image: ImageShape) -> Net:
    """The LeNet of MOON: two 5x5 convolutions and two linear layers, for CIFAR-10 and PathMNIST.

    The smallest and fastest net with convolutions here. Needs images of side 16 or more.
    """
    # The first linear layer grows with the image: one rule for every side, the published net at
    # 32, and no layer that it lacks. Pooling comes before the ReLU as in the other small nets.
    map_side = ((image.side - 4) // 2 - 4) // 2
    encoder = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(image.channels, 6, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 16, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * map_side**2, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
        )
    )
    return _with_neck(encoder, 84, classes)


def moon_resnet18(classes: int, image: ImageShape) -> Net:
    """The ResNet-18 of MOON, with a stem for small images and a neck, for CIFAR-100.

    Unlike ``resnet18`` it has a projection head of two linear layers as its neck.
    """
    return _with_neck(resnet.ResNet(image.channels, (2, 2, 2, 2)), resnet.WIDTH, classes)


def _with_neck(encoder: nn.Module, width: int, classes: int) -> Net:
    neck = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, FEATURES))
    return Net(encoder, neck, nn.Linear(FEATURES, classes), width)
