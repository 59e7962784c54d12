"""Everything that may travel between server and clients, in either direction."""

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
    """What the server sends to one client, or a client's reply.

    Leave out what a method does not send: an empty model and missing prototypes take no bytes. What
    fits neither `model` nor `protos` goes into `extras` under a name of its own::

        Message(model, protos=table, extras={"anchors": anchors}, size=len(site.train))

    `size` is the number of training examples behind a reply; FedAvg weights models by it. `metrics`
    are numbers for the record (``{"loss": 0.31}``); no method should compute with them.
    """

    model: Model = field(default_factory=Model)  # whole, some modules, or empty
    protos: Prototypes | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)  # by name: "variate", "anchors"
    size: int = 0  # examples behind a reply
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, int]:
        """The bytes of each part that holds tensors: ``model``, ``protos`` and extras by name."""
        if RESERVED & self.extras.keys():
            raise ValueError(f"extras must not be named {' or '.join(sorted(RESERVED))}")
        everything = {"model": self.model, "protos": self.protos, **self.extras}
        sizes = {name: tree.nbytes(part) for name, part in everything.items()}
        return {name: size for name, size in sizes.items() if size}


@tree.node
class Failure:
    """What an engine returns for a client in place of a reply.

    The round continues without that client. `reason` goes to the log and to events.jsonl.
    """

    reason: str  # one line for people
    diverged: bool = False  # the client's own training turned NaN or infinite
