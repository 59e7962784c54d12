"""A plain perceptron for inputs of any shape: vectors, series, spectra, and images too."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from protofed.core.model import InputShape, Net

HIDDEN = 256  # of both hidden layers
FEATURES = 128  # D, of z


def mlp(classes: int, shape: InputShape) -> Net:
    """Two hidden layers, a neck and a head on the flattened input; features z are [B, 128].

    The default net of data that are no images. It has no batch normalisation.
    """
    encoder = nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(math.prod(shape.sizes), HIDDEN),
            relu1=nn.ReLU(),
            fc2=nn.Linear(HIDDEN, HIDDEN),
            relu2=nn.ReLU(),
        )
    )
    neck = nn.Sequential(nn.Linear(HIDDEN, FEATURES), nn.ReLU())
    return Net(encoder, neck, nn.Linear(FEATURES, classes), HIDDEN)
