"""The networks of the papers, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import torch

from protofed.core.model import ImageShape, Net
from protofed.core.rng import stream_seed
from protofed.errors import ProtofedError, require_known_name
from protofed.nets.cnn import lsa_cnn, moon_cnn, moon_mlp, moon_resnet18, seproto_cnn, seproto_cnn2
from protofed.nets.resnet import residual_net
from protofed.nets.winograd import LEAST_CHANNELS, use_winograd

Builder = Callable[[int, ImageShape], Net]  # classes, images
Convolution: TypeAlias = Literal["direct", "winograd"]  # how wide 3x3 convolutions are computed

NETS: dict[str, Builder] = {
    "lsa-cnn": lsa_cnn,
    "moon-cnn": moon_cnn,
    "moon-mlp": moon_mlp,
    "moon-resnet18": moon_resnet18,
    "resnet10": partial(residual_net, (1, 1, 1, 1)),
    "resnet12": partial(residual_net, (2, 1, 1, 1)),
    "resnet18": partial(residual_net, (2, 2, 2, 2)),
    "resnet34": partial(residual_net, (3, 4, 6, 3)),
    "seproto-cnn": seproto_cnn,
    "seproto-cnn2": seproto_cnn2,
}

# Below these sides a pooling step would be left without a pixel; the other nets take any side.
SMALLEST_SIDE = {"lsa-cnn": 4, "moon-cnn": 16, "seproto-cnn": 8, "seproto-cnn2": 4}


def build_net(
    name: str, classes: int, image: ImageShape, seed: int, conv: Convolution = "direct"
) -> Net:
    """Build a net by name, with the initial weights of `seed`.

    `classes` is the number of outputs, `image` the channels and side of the input. Equal arguments
    give equal weights, and torch's global generator is left as it was. With ``conv="winograd"``,
    wide 3x3 convolutions are computed by `winograd_conv2d`, which is faster on CPUs and rounds
    differently.
    """
    builder = NETS[require_known_name("net", name, NETS)]
    smallest = SMALLEST_SIDE.get(name, 1)
    if image.side < smallest:
        raise ProtofedError(
            f"net '{name}' cannot take images of side {image.side}; its smallest side is "
            f"{smallest}\nuse larger images or another net"
        )
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "net", name))
        net = builder(classes, image)
    if conv == "winograd" and not use_winograd(net):
        raise ProtofedError(
            f'conv: "winograd" is for 3x3 convolutions of {LEAST_CHANNELS} channels or more, and '
            f"net '{name}' has none\nleave conv out, or choose a residual net such as resnet10"
        )
    return net
