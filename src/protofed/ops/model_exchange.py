"""Cross-training: a round of two exchanges, in which another client trains each model further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field, InstanceOf

from protofed.core import tree
from protofed.core.message import Extra, Message
from protofed.core.method import AnyMethod, ServerState
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site
from protofed.core.training import Training
from protofed.errors import ProtofedError


def random_derangement(
    clients: Sequence[ClientId], draw: torch.Generator
) -> dict[ClientId, ClientId]:
    """A random partner for each client, every one once and nobody itself; alone, itself.

    Clients stand in a random circle and each gets its neighbour's parcel.
    """
    order = [clients[i] for i in torch.randperm(len(clients), generator=draw).tolist()]
    return dict(sorted(zip(order, [*order[1:], order[0]], strict=True)))


PhaseEpochs = Annotated[
    Literal["half", "full"],
    Field(description="a round's epochs: half before the exchange, or all twice"),
]


def check_exchangeable(base: AnyMethod) -> AnyMethod:
    """Refuse a base method whose models cannot go round."""
    if base.exchanges != 1 or base.personal:
        raise ValueError("needs a method with one leg a round and one model for all clients")
    return base


Base = Annotated[
    InstanceOf[AnyMethod],
    AfterValidator(check_exchangeable),
    Field(description="the method that trains before the exchange"),
]


@tree.node
class ExchangeServer(ServerState):
    """Server state: the model, and between the legs the box of what the clients sent in."""

    pending_replies: dict[ClientId, Message] = field(default_factory=dict)  # empty between rounds


@tree.node
class WrappingServer(ExchangeServer):
    """The same around a base method: beside model and box, what the base keeps at the server."""

    base: ServerState = field(
        default_factory=lambda: ServerState(Model())
    )  # less its model: that is ours


def wrap_state(base: ServerState) -> WrappingServer:
    """A base method's server state, with an empty box."""
    return WrappingServer(base.model, base=replace(base, model=Model()))


def unwrap_state(server: WrappingServer) -> ServerState:
    """The base method's server state."""
    return replace(server.base, model=server.model)


def with_retrained_models(
    box: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
) -> dict[ClientId, Message]:
    """What each client sent before the exchange, but with the model that it trained after it."""
    return {
        client: replace(box[client], model=reply.model, size=reply.size)
        for client, reply in replies.items()
    }


def exchange_reply_schema(
    base: AnyMethod,
    site: Site,
    received: Message,
    context: RoundContext,
    extras: Mapping[str, Extra],
) -> Message:
    """A reply around a base method: before the exchange with `extras`, after it a model alone."""
    if context.exchange == 1:
        return Message(received.model)
    told = base.reply_schema(site, received, context)
    return replace(told, extras={**told.extras, **extras})


def check_complete_model(site: Site, model: Model) -> None:
    """Refuse a model that lacks parts of the site's net: it could not be trained on elsewhere."""
    missing = dict(site.net.named_parameters()).keys() - model.weights.keys()
    if missing:
        parts = sorted({name.split(".")[0] for name in missing})
        raise ProtofedError(
            f"the base method keeps {', '.join(parts)} at its client, so that its model cannot "
            "be trained on at another\nchoose a base method that sends its whole model"
        )


def phase_site(site: Site, context: RoundContext, epochs: PhaseEpochs) -> Site:
    """The site with the epochs of this leg: half of a round's each, or all of them in both."""
    if epochs == "full":
        return site
    now = site.training.split_epochs()[context.exchange]
    return replace(site, training=replace(site.training, epochs=now))


def phase_total(training: Training, epochs: PhaseEpochs) -> int:
    """The epochs of both legs of a round."""
    return 2 * training.epochs if epochs == "full" else sum(training.split_epochs())


def exchange_models(
    site: Site,
    box: Mapping[ClientId, Message],
    to: Sequence[ClientId],
    context: RoundContext,
    extras: Sequence[str] = (),
) -> dict[ClientId, Message]:
    """For each client another one's model, at random and each once; a client alone gets its own.

    Of what was sent in, only the model and the named extras are passed on. `to` are clients with
    a parcel in the box, and `site` is the server's.
    """
    partner = random_derangement(sorted(to), site.rng("exchange", context.round))
    parcels = {client: box[partner[client]] for client in to}
    return {
        client: Message(parcel.model, extras={name: parcel.extras[name] for name in extras})
        for client, parcel in parcels.items()
    }
