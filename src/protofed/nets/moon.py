"""The nets of MOON, which PGCT uses too: any encoder, a two-layer neck to 256 features, a head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from protofed.core.model import ImageShape, Net
from protofed.nets.resnet import WIDTH, ResNet

FEATURES = 256  # D, of z
HIDDEN = 512  # of the perceptron's layers


def moon_mlp(classes: int, image: ImageShape) -> Net:
    """A perceptron with two hidden layers, for MNIST."""
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
    """A LeNet of two 5x5 convolutions and two linear layers, for CIFAR-10 and PathMNIST."""
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
    """A ResNet-18 with the stem for small images, for CIFAR-100."""
    return _with_neck(ResNet(image.channels, (2, 2, 2, 2)), WIDTH, classes)


def _with_neck(encoder: nn.Module, width: int, classes: int) -> Net:
    neck = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, FEATURES))
    return Net(encoder, neck, nn.Linear(FEATURES, classes), width)
