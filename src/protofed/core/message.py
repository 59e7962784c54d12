"""All that may cross the wire, in either direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes

RESERVED = {"model", "protos"}
Extra = Tensor | Model | Prototypes | Mapping[str, Tensor]


@tree.node
class Message:
    """What a server sends to one client, or a client replies."""

    model: Model = field(default_factory=Model)  # whole, a part, or empty
    protos: Prototypes | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)  # named: "control", "anchors"
    size: int = 0  # examples behind it
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, int]:
        """The bytes of each part that is there, by name: ``model``, ``protos``, extras."""
        if RESERVED & self.extras.keys():
            raise ValueError(f"extras must not be named {' or '.join(sorted(RESERVED))}")
        everything = {"model": self.model, "protos": self.protos, **self.extras}
        sizes = {name: tree.nbytes(part) for name, part in everything.items()}
        return {name: size for name, size in sizes.items() if size}


@tree.node
class Failure:
    """What an engine returns for a client that gave no reply."""

    reason: str  # one line for people
    diverged: bool = False  # the client's own training turned NaN or infinite
