"""What the tests of drift methods share: federations of one weight, whose losses are parabolas.

Client n minimises (w - a_n)^2 / 2 by the real hooks: its images hold a_n, and the net's scores are
such that their cross entropy is that parabola, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod, Method, MethodInfo, ServerState, average_models
from protofed.core.model import Model, Net, NetOutput
from protofed.core.site import SERVER, ArrayDataset, ClientId, RoundContext, Site
from protofed.core.training import Training
from protofed.engines.engine import RoundEvent, require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round

TARGETS, SIZES = (0, 2, 5), (1, 2, 5)
TWO_STEPS = Training(lr=0.1, momentum=0.0, weight_decay=0.0, epochs=2, batch=1)
UNEVEN = Training(lr=0.02, momentum=0.9, weight_decay=0.01, epochs=2, batch=2)  # 2, 2, 6 steps
ALL = (0, 1, 2)
ROUNDS = ((ALL, ()), ((0, 2), ()), ((1,), ()), (ALL, (2,)), (ALL, (0, 1)), (ALL, ()))  # who, lost


class Parabola(Net):
    """Its cross entropy for class 0 is (w - image)^2 / 2 + 1."""

    def __init__(self, start: float):
        super().__init__(nn.Identity(), nn.Identity(), nn.Linear(1, 1, bias=False), width=1)
        nn.init.constant_(self.head.weight, start)
        self.double()

    def forward(self, x: Tensor) -> NetOutput:
        depth = (self.head.weight - x.flatten(1)).square() / 2 + 1  # [B, 1]
        return NetOutput(x.flatten(1), torch.cat([torch.zeros_like(depth), depth.expm1().log()], 1))


class PlainPixels:
    """Images as they are."""

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        return self.normalize(images)

    def normalize(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2).double()


def dataset(target: int, size: int) -> ArrayDataset:
    images = torch.full((size, 1, 1, 1), target, dtype=torch.uint8)
    return ArrayDataset(images, torch.zeros(size, dtype=torch.int64))


class Losing(LocalEngine[Any, Any]):
    """Loses the replies of some clients, after they have trained."""

    lost: Sequence[ClientId] = ()

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        replies = require_replies(super().exchange(messages, context))
        lost = dict.fromkeys(self.lost, Failure("was lost"))
        return {client: lost.get(client, reply) for client, reply in replies.items()}


class Parabolas:
    """A method on parabolas, round by round; `locals` and `start` are of the last round."""

    def __init__(
        self,
        method: AnyMethod,
        targets: Sequence[int] = (0, 2),
        sizes: Sequence[int] = (1, 1),
        training: Training = TWO_STEPS,
        start: float = 4.0,
    ):
        held = dict(enumerate(sizes))
        empty = dataset(0, 0)
        net, pixels = Parabola(start), PlainPixels()
        self.site = Site(SERVER, "", 2, net, pixels, empty, training, 0, held)
        self.sites = {
            client: replace(self.site, id=client, train=dataset(targets[client], size))
            for client, size in held.items()
        }
        self.method, self.engine = method, Losing(method, self.sites)
        self.server = method.init_server(self.site)
        self.locals: list[float] = []
        self.start = start
        self.number = 0

    def round(self, who: Sequence[ClientId] | None = None, lost: Sequence[ClientId] = ()) -> None:
        """One round of the given clients (all), of which some replies are lost."""
        chosen, step = sorted(self.sites) if who is None else who, RoundContext(self.number, 1000)
        self.engine.lost = lost
        self.server = run_round(
            self.method, self.site, self.server, self.engine, chosen, step, self._listen, self._note
        )
        self.number += 1

    def _note(self, event: RoundEvent) -> None:
        assert event.client in self.engine.lost, event.describe

    def _listen(self, sent: Messages, received: Messages) -> None:
        self.start = value(next(iter(sent.values())).model)
        self.locals = [value(reply.model) for reply in received.values()]

    @property
    def states(self) -> MutableMapping[ClientId, Any]:
        return self.engine.states


def value(part: object) -> float:
    """The only number of a tree."""
    (leaf,) = tree.leaves(part)
    return leaf.item()


def steps(size: int, training: Training) -> int:
    return training.epochs * -(-size // training.batch)


def descent(
    start: float, slope: Callable[[float], float], count: int, sgd: Training, clip: float = 0
) -> float:
    """Gradient descent on one number, written out; weight decay comes after clipping."""
    w = start
    velocity = 0.0
    for _ in range(count):
        gradient = slope(w)
        if clip:
            gradient *= min(1, clip / (abs(gradient) + 1e-6))
        velocity = sgd.momentum * velocity + gradient + sgd.weight_decay * w
        w -= sgd.lr * velocity
    return w


def reach(count: int, sgd: Training) -> float:
    """How far a gradient of 1 leads."""
    return -descent(0.0, lambda w: 1.0, count, replace(sgd, weight_decay=0.0))


@dataclass(frozen=True)
class EvenAvg(Method):
    """FedAvg with one voice a client; buffers by the examples behind each."""

    info: ClassVar[MethodInfo] = MethodInfo(label="EvenAvg", title="FedAvg with equal voices")

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        weights = tree.mean([reply.model.weights for reply in replies.values()], [1] * len(replies))
        return ServerState(Model(weights, average_models(replies).buffers))
