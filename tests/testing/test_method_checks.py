"""`check_method` must catch the slips that public code bases really make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method, MethodInfo, ServerState
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.testing import BrokenMethodError, check_method

ABOUT = MethodInfo(label="Broken", title="A method with a slip")
seen: dict[int, int] = {}


@dataclass(frozen=True)
class TrainingTeacher(Method):
    """Runs its teacher in training mode, which moves the batch-norm buffers of the received."""

    info: ClassVar[MethodInfo] = ABOUT

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        with torch.no_grad():
            site.forward_train(received.model, batch.x)
        return super().loss(site, received, state, model, batch)


@dataclass(frozen=True)
class GlobalRandomness(Method):
    """Draws from torch's global generator."""

    info: ClassVar[MethodInfo] = ABOUT

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        noisy = batch._replace(x=batch.x + 0.1 * torch.randn_like(batch.x))
        return super().loss(site, received, state, model, noisy)


@dataclass(frozen=True)
class HiddenState(Method):
    """Counts rounds in a module's variable instead of a state."""

    info: ClassVar[MethodInfo] = ABOUT

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        seen[site.id] = seen.get(site.id, 0) + 1
        reply, _ = super().train(site, received, state, context)
        return replace(reply, size=1 + seen[site.id] % 7 if site.id == 0 else reply.size), None


@dataclass(frozen=True)
class Forgetful(Method[ServerState, dict[str, Tensor]]):
    """Computes a new client state as SCAFFOLD does, and drops it."""

    info: ClassVar[MethodInfo] = ABOUT

    def init_client(self, site: Site) -> dict[str, Tensor]:
        return tree.map(torch.zeros_like, site.initial_model().weights)

    def train(
        self, site: Site, received: Message, state: dict[str, Tensor], context: RoundContext
    ) -> tuple[Message, dict[str, Tensor]]:
        reply, _ = super().train(site, received, state, context)
        tree.map(torch.sub, received.model.weights, reply.model.weights)
        return reply, state


@dataclass(frozen=True)
class Secretive(Method):
    """Sends more than it says."""

    info: ClassVar[MethodInfo] = ABOUT

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        reply, _ = super().train(site, received, state, context)
        return replace(reply, extras={"histogram": torch.bincount(site.train.labels)}), None


@dataclass(frozen=True)
class InPlaceMerge(Method):
    """Averages into the first reply's own tensors."""

    info: ClassVar[MethodInfo] = ABOUT

    def merge(
        self, site: Site, server: ServerState, replies: Mapping[int, Message], context: RoundContext
    ) -> ServerState:
        first, *rest = replies.values()
        for reply in rest:
            for name, weight in first.model.weights.items():
                weight.add_(reply.model.weights[name])
        for weight in first.model.weights.values():
            weight.div_(len(replies))
        return ServerState(first.model)


@dataclass(frozen=True)
class NeedsEverybody(Method):
    """Assumes that client 3 always replies."""

    info: ClassVar[MethodInfo] = ABOUT

    def merge(
        self, site: Site, server: ServerState, replies: Mapping[int, Message], context: RoundContext
    ) -> ServerState:
        return ServerState(replies[3].model)


@dataclass(frozen=True)
class Overflowing(Method[ServerState, Model]):
    """Divides by zero for a class that a client lacks, in its private state."""

    info: ClassVar[MethodInfo] = ABOUT

    def init_client(self, site: Site) -> Model:
        return Model({"w": torch.ones(site.classes)})

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        reply, _ = super().train(site, received, state, context)
        counts = torch.bincount(site.train.labels, minlength=site.classes)
        return reply, Model({"w": state.weights["w"] / counts})


ORDER: list[int] = []


@dataclass(frozen=True)
class OrderBound(Method):
    """Takes its weight from its place in the queue, starting anew after every fourth client."""

    info: ClassVar[MethodInfo] = ABOUT

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        ORDER.append(site.id)
        reply, _ = super().train(site, received, state, context)
        return replace(reply, size=1 + len(ORDER) % 4), None


@dataclass(frozen=True)
class WrongShape(Method):
    """Predicts with scores for three classes only."""

    info: ClassVar[MethodInfo] = ABOUT

    def predict(self, site: Site, received: Message, state: None, x: Tensor) -> Tensor:
        return super().predict(site, received, state, x)[:, :3]


@dataclass(frozen=True)
class Smuggler(Method):
    """Sends pixels as metrics."""

    info: ClassVar[MethodInfo] = ABOUT

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        reply, _ = super().train(site, received, state, context)
        pixels = site.train.images[0].flatten().tolist()
        return replace(reply, metrics={str(i): float(p) for i, p in enumerate(pixels)}), None


@dataclass(frozen=True)
class TwoLegs(Method):
    """Empties the replies of its second leg in place."""

    info: ClassVar[MethodInfo] = ABOUT

    @property
    def exchanges(self) -> int:
        return 2

    def merge(
        self, site: Site, server: ServerState, replies: Mapping[int, Message], context: RoundContext
    ) -> ServerState:
        merged = super().merge(site, server, replies, context)
        for weight in replies[min(replies)].model.weights.values():
            weight.mul_(1 - context.exchange)
        return merged


@dataclass(frozen=True)
class Tampering(Method):
    """Empties the model while it looks for something to warn of, and says nothing."""

    info: ClassVar[MethodInfo] = ABOUT

    def result_warning(self, server: ServerState) -> str:
        for weight in server.model.weights.values():
            weight.zero_()
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (TrainingTeacher(), "changed the message that it received"),
        (GlobalRandomness(), "global generator"),
        (HiddenState(), "saved and loaded differs"),
        (Forgetful(), "state never moves"),
        (Secretive(), "histogram"),
        (InPlaceMerge(), "changed the replies"),
        (NeedsEverybody(), "only some clients"),
        (NeedsEverybody(), "drops out"),
        (Overflowing(), "NaN or infinity"),
        (OrderBound(), "order in which clients run"),
        (WrongShape(), "not \\[images, classes\\]"),
        (Smuggler(), "metrics"),
        (TwoLegs(), "changed the replies"),
        (Tampering(), "result_warning\\(\\) changed the server state"),
        (Tampering(), "result_warning\\(\\) must return a text"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else "",
)
def test_a_slip_is_caught_and_named(method: AnyMethod, fault: str) -> None:
    with pytest.raises(BrokenMethodError, match=fault):
        check_method(method)


def test_a_class_or_an_undecorated_method_is_refused() -> None:
    class Plain(Method):
        info: ClassVar[MethodInfo] = ABOUT

    for wrong in (GlobalRandomness, Plain()):
        with pytest.raises(BrokenMethodError, match="dataclass"):
            check_method(wrong)  # type: ignore[arg-type]
