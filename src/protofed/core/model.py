"""A network (Net), its output (NetOutput), and its weights at one moment (Model)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.errors import ProtofedError


class ImageShape(NamedTuple):
    """The shape of the images that a net takes: [channels, side, side].

    Grey images have one channel, colour images three.
    """

    channels: int
    side: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The full shape of one input, as of an `ArrayShape`."""
        return (self.channels, self.side, self.side)


class ArrayShape(NamedTuple):
    """The shape of rows that are no images: ``(8,)`` for vectors of eight numbers.

    A net takes them as floats [B, *sizes].
    """

    sizes: tuple[int, ...]


InputShape: TypeAlias = ImageShape | ArrayShape
Precision: TypeAlias = Literal["float32", "bfloat16"]  # of an encoder's arithmetic


class NetOutput(NamedTuple):
    """The output of a forward pass: features z [B, D] and class scores [B, C].

    Prototypes and anchors live in the space of z. `more` is for nets that a method builds in
    `adapt` and that return more than these two, for example a KL divergence per image.
    """

    z: Tensor  # [B, D]
    logits: Tensor  # [B, C]
    more: object = None  # further output of a net that a method has adapted


class Net(nn.Module):
    """Encoder -> neck -> head; the output of the neck is the feature z.

    The neck is the projection that many papers put between backbone and classifier. A net without
    one has the identity there, and a method may replace it in `Method.adapt`. `width` is the size
    of the encoder's output, `features` that of z (D), `classes` the number of classes (C).

    A subclass with a forward pass of its own calls ``self.encode(x)``, not ``self.encoder(x)``, or
    `precision` has no effect.
    """

    def __init__(self, encoder: nn.Module, neck: nn.Module, head: nn.Linear, width: int):
        super().__init__()
        self.encoder, self.neck, self.head = encoder, neck, head
        self.width = width  # of the encoder's output, the neck's input
        self.features = head.in_features  # D, of z
        self.classes = head.out_features  # C
        self.precision: Precision = "float32"  # of the encoder's arithmetic
        self.head_place = ""  # where the head was in the encoder, if it is made of a whole module

    def forward(self, x: Tensor) -> NetOutput:
        """Features z [B, D] and logits [B, C] of inputs x, [B, channels, side, side] for images."""
        z = self.neck(self.encode(x))
        return NetOutput(z, self.head(z))

    def set_precision(self, precision: Precision, shape: InputShape) -> None:
        """Compute the encoder in this precision from now on.

        Refused if the forward pass of a subclass does not go through `encode`, which a trial with
        inputs of this shape finds out.
        """
        self.precision = precision
        if precision == "float32" or type(self).forward is Net.forward:
            return
        reached: list[bool] = []
        kinds = self.encoder.register_forward_pre_hook(
            lambda *_: reached.append(torch.is_autocast_enabled("cpu"))
        )
        with torch.no_grad():
            self.eval()(torch.zeros(2, *shape.sizes))
        self.train()
        kinds.remove()
        if not all(reached):
            raise ProtofedError(
                f"precision: {type(self).__name__} computes its encoder in float32\n"
                "call self.encode(x) in its forward pass, not self.encoder(x)"
            )

    def encode(self, x: Tensor) -> Tensor:
        """The encoder's output [B, width] in float32, computed in the net's `precision`.

        In bfloat16, its convolutions and linear layers multiply bfloat16 numbers; its weights and
        their gradients, and all that follows the encoder, are float32.
        """
        if self.precision == "float32":
            return cast(Tensor, self.encoder(x))
        # Each weight is used once, so nothing is gained by caching its bfloat16 copy.
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            return cast(Tensor, self.encoder(x)).float()


def supports_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 numbers in hardware: "cpu", "cuda" or "mps"."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Such as avx512_bf16 and amx_bf16; torch does not tell of a Mac's GPU.
    able = torch.cpu.get_capabilities() if device == "cpu" else {}
    return any(has for name, has in able.items() if "bf16" in name)


def net_from_module(module: nn.Module, head: str) -> Net:
    """Any torch module as a `Net`; `head` is the path of its last linear layer.

    Everything before that layer becomes the encoder, whose output is the feature z. The module is
    changed: the identity takes the place of its head, whose output must be that of the module. ::

        net_from_module(torchvision.models.resnet18(num_classes=classes), head="fc")
    """
    layer = module.get_submodule(head)
    if not isinstance(layer, nn.Linear):
        raise ProtofedError(
            f"net: the head '{head}' is a {type(layer).__name__}; it must be the linear layer that "
            "gives the class scores"
        )
    parent, _, name = head.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())
    net = Net(module, nn.Identity(), layer, width=layer.in_features)
    net.head_place = head
    return net


@tree.node
class Model:
    """The weights and buffers of a network, or of some of its modules; an empty one is valid.

    Select modules by path and put models together with `|`, where the right side wins::

        shared = model.without("head")  # everything but the head
        private = model.only("head")  # head.weight and head.bias
        whole = shared | private  # the model again

    Buffers (batch-norm statistics) are kept apart from weights: they are averaged, but never
    differentiated and never part of a control variate.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def only(self, *parts: str) -> Model:
        """The entries below the given module paths, e.g. ``only("head", "encoder.bn1")``."""
        return self._keep(lambda name: _below(name, parts))

    def without(self, *parts: str) -> Model:
        """All entries except those below the given module paths."""
        return self._keep(lambda name: not _below(name, parts))

    def __or__(self, other: Model) -> Model:
        """The union of both; an entry that both hold is taken from `other`."""
        return Model({**self.weights, **other.weights}, {**self.buffers, **other.buffers})

    def _keep(self, wanted: Callable[[str], bool]) -> Model:
        return Model(
            {name: leaf for name, leaf in self.weights.items() if wanted(name)},
            {name: leaf for name, leaf in self.buffers.items() if wanted(name)},
        )


def _below(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def model_from_net(net: nn.Module) -> Model:
    """A copy of a network's weights and buffers.

    The keys are torch's names, such as ``encoder.0.weight``; later changes to the network do not
    reach the copy.
    """
    return tree.clone(Model(dict(net.named_parameters()), dict(net.named_buffers())))
