"""The networks of the papers by name, and nets from a user's own file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from protofed.core.model import ArrayShape, ImageShape, InputShape, Net, NetOutput
from protofed.core.rng import stream_seed
from protofed.errors import ProtofedError, require_known_name
from protofed.nets.cnn import lsa_cnn, moon_cnn, moon_mlp, moon_resnet18, seproto_cnn, seproto_cnn2
from protofed.nets.efficientnet import efficientnet_lite0
from protofed.nets.mlp import mlp
from protofed.nets.resnet import residual_net
from protofed.nets.timm_nets import TIMM, timm_builder
from protofed.runtime.code_reference import (
    ANY_CODE,
    CodeAccess,
    installed_plugins,
    is_reference,
    load_user_code,
    parse_reference,
)

Builder = Callable[[int, ImageShape], Net]  # classes, images
InitialWeights: TypeAlias = Literal["net", "torch"]  # by the net's own rule, or torch's for layers

NETS: dict[str, Builder] = {
    "efficientnet-lite0": efficientnet_lite0,
    "efficientnet-lite0-neck": partial(efficientnet_lite0, neck=True),
    "lsa-cnn": lsa_cnn,
    "mlp": mlp,
    "moon-cnn": moon_cnn,
    "moon-mlp": moon_mlp,
    "moon-resnet18": moon_resnet18,
    "resnet10": partial(residual_net, (1, 1, 1, 1)),
    "resnet12": partial(residual_net, (2, 1, 1, 1)),
    "resnet18": partial(residual_net, (2, 2, 2, 2)),
    "resnet18-224": partial(residual_net, (2, 2, 2, 2), large=True),
    "resnet34": partial(residual_net, (3, 4, 6, 3)),
    "resnet34-224": partial(residual_net, (3, 4, 6, 3), large=True),
    "seproto-cnn": seproto_cnn,
    "seproto-cnn2": seproto_cnn2,
}

ROW_NETS: dict[str, Callable[[int, InputShape], Net]] = {"mlp": mlp}  # take any shape of input
PLUGINS = "protofed.nets"  # the entry point group of installed nets
# Below these sides a pooling step would be left without a pixel; the other nets take any side.
SMALLEST_SIDE = {"lsa-cnn": 4, "moon-cnn": 16, "seproto-cnn": 8, "seproto-cnn2": 4}


def build_net(
    name: str,
    classes: int,
    image: InputShape,
    seed: int,
    initial_weights: InitialWeights = "net",
) -> Net:
    """Build a net by name, with the initial weights of `seed`.

    `name` may be a reference to a function of the user's, ``path/to/nets.py:build``. `classes` is
    the number of outputs, `image` the shape of one input. Equal arguments give equal weights, and
    torch's global generator is left as it was. With ``initial_weights="torch"``, the net's own
    rule for them gives way to torch's default.
    """
    stream = stream_seed(seed, "net", net_label(name))
    with torch.random.fork_rng():
        torch.manual_seed(stream)
        if name not in NETS:
            net = _user_net(name, classes, image)
        elif isinstance(image, ImageShape):
            net = _image_net(name, classes, image)
        else:
            net = _row_net(name, classes, image)
        if initial_weights == "torch":
            torch.manual_seed(stream)  # again, so that nets without a rule of their own stay
            for part in net.modules():
                if isinstance(part, nn.Conv2d | nn.Linear):
                    part.reset_parameters()
    return net


def find_net_builder(name: str, access: CodeAccess = ANY_CODE) -> Builder:
    """The function that builds a net: ours, an installed package's, or the user's own.

    A reference such as ``path/to/nets.py:build`` is imported if `access` allows it. The function
    takes the number of classes and the shape of one input, and returns a `Net`.
    """
    if name in NETS:
        return NETS[name]
    if name.startswith(TIMM):
        access.check(name)
        return timm_builder(name.removeprefix(TIMM))
    builder = load_user_code(name, PLUGINS, access)
    if builder is None:
        require_known_name("net", name, known_nets())
    if not callable(builder):
        raise ProtofedError(f"net: {name} is not a function of classes and input shape")
    return cast(Builder, builder)


def known_nets() -> list[str]:
    """The names of all nets for an error message, and how to name one's own."""
    return [
        *NETS,
        *installed_plugins(PLUGINS),
        f"{TIMM}NAME",
        "or your own, as path/to/nets.py:build",
    ]


def net_label(name: str) -> str:
    """A net's name for seeds, digests and headings: the same wherever the user's file lies."""
    return parse_reference(name).label if is_reference(name) else name


def _about_shape(shape: InputShape, fault: Exception) -> str:
    """What to do where a net for images meets data that are none."""
    if isinstance(shape, ImageShape) or "ArrayShape" not in str(fault):
        return ""
    return "\nthese data are no images: use shape.sizes, which every shape has"


def _user_net(name: str, classes: int, shape: InputShape) -> Net:
    """A net from the user's own function, if its output has the right shapes."""
    builder = cast(Callable[[int, InputShape], object], find_net_builder(name))
    try:
        net = builder(classes, shape)
        if not isinstance(net, Net):
            raise ProtofedError(f"net: {name} returned {_told(net, classes)}")
        out, features = _try_net(net, shape)
    except (AttributeError, RuntimeError, TypeError, ValueError) as fault:
        raise ProtofedError(
            f"net: {name} fails for {classes} classes and inputs of shape {list(shape.sizes)}: "
            f"{type(fault).__name__}: {fault}{_about_shape(shape, fault)}"
        ) from fault
    if features is not None and not torch.equal(features, out.z):
        raise ProtofedError(
            f"net: {name} does something after its head '{net.head_place}', such as a softmax\n"
            "return the class scores as the head gives them"
        )
    want = (2, net.features), (2, classes)
    got = tuple(out.z.shape), tuple(out.logits.shape)
    if got != want:
        raise ProtofedError(
            f"net: {name} gives features and class scores of shapes {got[0]} and {got[1]} for two "
            f"inputs; expected {want[0]} and {want[1]}\n"
            + (
                "the encoder must return one row of features for each input"
                if got[0] != want[0]
                else f"the head must have {classes} outputs, one for each class"
            )
        )
    return net


def _try_net(net: Net, shape: InputShape) -> tuple[NetOutput, Tensor | None]:
    """The output for two random inputs, and what arrived where the head was, if it is known."""
    seen: list[Tensor] = []
    place = net.encoder.get_submodule(net.head_place) if net.head_place else None
    hook = place.register_forward_hook(lambda *call: seen.append(call[2])) if place else None
    with torch.no_grad():
        net.eval()
        out: NetOutput = net(torch.randn(2, *shape.sizes))
        net.train()
    if hook:
        hook.remove()
    return out, seen[-1] if seen else None


def _told(net: object, classes: int) -> str:
    """What a builder returned instead of a `Net`, and how to make one of it."""
    if not isinstance(net, nn.Module):
        return f"a {type(net).__name__}, not a net"
    heads = [n for n, m in net.named_modules() if isinstance(m, nn.Linear)]
    named = [n for n in heads if cast(nn.Linear, net.get_submodule(n)).out_features == classes]
    head = (named or ["fc"])[-1]
    return (
        "a torch module, and which part is the head must be stated\n"
        f'return net_from_module(module, head="{head}"), from protofed.api'
    )


def _image_net(name: str, classes: int, image: ImageShape) -> Net:
    smallest = SMALLEST_SIDE.get(name, 1)
    if image.side < smallest:
        raise ProtofedError(
            f"net '{name}' cannot take images of side {image.side}; its smallest side is "
            f"{smallest}\nuse larger images or another net"
        )
    return NETS[name](classes, image)


def _row_net(name: str, classes: int, shape: ArrayShape) -> Net:
    if name not in ROW_NETS:
        raise ProtofedError(
            f"net '{name}' takes images, and these data are rows of shape {list(shape.sizes)}",
            hint=f"choose <net={next(iter(ROW_NETS))}>, which takes any shape",
        )
    return ROW_NETS[name](classes, shape)
