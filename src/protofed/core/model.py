"""What a network is (Net), what it says (Out), and what it holds at one moment (Model)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple

from torch import Tensor, nn

from protofed.core import tree


class ImageShape(NamedTuple):
    """The images that a net takes: channels x side x side."""

    channels: int
    side: int


class NetOutput(NamedTuple):
    """A forward pass: features that prototypes and anchors live among, and class scores."""

    z: Tensor  # [B, D]
    logits: Tensor  # [B, C]
    more: object = None  # what a method's own net has to say beyond these


class Net(nn.Module):
    """Encoder -> neck -> head; the neck's output is the feature z.

    The neck is the projection that many papers put between backbone and classifier; where a
    net has none it is the identity, and a method may replace it in `Method.adapt`.
    """

    def __init__(self, encoder: nn.Module, neck: nn.Module, head: nn.Linear, width: int):
        super().__init__()
        self.encoder, self.neck, self.head = encoder, neck, head
        self.width = width  # of the encoder's output, the neck's input
        self.features = head.in_features  # D, of z
        self.classes = head.out_features  # C

    def forward(self, x: Tensor) -> NetOutput:
        """Images [B, channels, side, side] to features and scores."""
        z = self.neck(self.encoder(x))
        return NetOutput(z, self.head(z))


@tree.node
class Model:
    """The weights and buffers of a network, or of some of its parts; the empty one is valid.

    Buffers (batch-norm statistics) are kept apart: they are averaged but never differentiated,
    and must not be swept into control variates.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def only(self, *parts: str) -> Model:
        """The entries below the given module paths, e.g. ``only("head", "encoder.bn1")``."""
        return self._keep(lambda name: _below(name, parts))

    def without(self, *parts: str) -> Model:
        """Everything but the entries below the given module paths."""
        return self._keep(lambda name: not _below(name, parts))

    def __or__(self, other: Model) -> Model:
        """The union; where both hold an entry, the right side's wins."""
        return Model({**self.weights, **other.weights}, {**self.buffers, **other.buffers})

    def _keep(self, wanted: Callable[[str], bool]) -> Model:
        return Model(
            {name: leaf for name, leaf in self.weights.items() if wanted(name)},
            {name: leaf for name, leaf in self.buffers.items() if wanted(name)},
        )


def _below(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def model_from_net(net: nn.Module) -> Model:
    """A copy of the weights and buffers that a network was built with."""
    return tree.clone(Model(dict(net.named_parameters()), dict(net.named_buffers())))
