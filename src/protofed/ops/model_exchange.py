"""Cross-training: rounds of two exchanges, in which another client trains each model further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Literal, TypeAlias

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
    """A random partner for each client: each is chosen once, and none is its own partner.

    Clients form a random circle and each takes its neighbour. A client alone is its own partner.
    """
    order = [clients[i] for i in torch.randperm(len(clients), generator=draw).tolist()]
    return dict(sorted(zip(order, [*order[1:], order[0]], strict=True)))


PhaseEpochs: TypeAlias = Literal["half", "full"]  # before and after the exchange, or all twice


def check_exchangeable(base: AnyMethod) -> AnyMethod:
    """Return `base` if its models can be exchanged between clients; otherwise raise a `ValueError`.

    It must have one exchange per round and one model for all clients.
    """
    if base.exchanges != 1 or base.personal:
        raise ValueError("needs a method with one exchange per round and one model for all clients")
    return base


Base = Annotated[
    InstanceOf[AnyMethod],
    AfterValidator(check_exchangeable),
    Field(description="the method that trains before the exchange"),
]


@tree.node
class ExchangeServer(ServerState):
    """Server state: the model and, between the two exchanges of a round, the clients' replies."""

    pending_replies: dict[ClientId, Message] = field(default_factory=dict)  # empty between rounds


@tree.node
class WrappingServer(ExchangeServer):
    """As `ExchangeServer`, around a base method: what the base keeps at the server is in `base`.

    The base's model is moved to `model`, so it is stored once; see `wrap_state`.
    """

    # Without its model, which is in `model`.
    base: ServerState = field(default_factory=lambda: ServerState(Model()))


def wrap_state(base: ServerState) -> WrappingServer:
    """A base method's server state in a `WrappingServer` without pending replies."""
    return WrappingServer(base.model, base=replace(base, model=Model()))


def unwrap_state(server: WrappingServer) -> ServerState:
    """The base method's server state: the inverse of `wrap_state`.

    ``unwrap_state(wrap_state(state))`` equals `state`; pending replies are dropped.
    """
    return replace(server.base, model=server.model)


def with_retrained_models(
    pending: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
) -> dict[ClientId, Message]:
    """Each client's first reply, with the model that it trained after the exchange.

    `pending` are the replies before the exchange, `replies` those after it. Prototypes and extras
    come from the first, model and size from the second; clients without a second reply are left
    out.
    """
    return {
        client: replace(pending[client], model=reply.model, size=reply.size)
        for client, reply in replies.items()
    }


def exchange_reply_schema(
    base: AnyMethod,
    site: Site,
    received: Message,
    context: RoundContext,
    extras: Mapping[str, Extra],
) -> Message:
    """The reply schema of a method that wraps `base`.

    Before the exchange: the base's own reply with `extras` added. After it: a model alone.
    """
    if context.exchange == 1:
        return Message(received.model)
    schema = base.reply_schema(site, received, context)
    return replace(schema, extras={**schema.extras, **extras})


def check_complete_model(site: Site, model: Model) -> None:
    """Refuse a model that lacks parts of the site's net: no other client could train it further."""
    missing = dict(site.net.named_parameters()).keys() - model.weights.keys()
    if missing:
        parts = sorted({name.split(".")[0] for name in missing})
        raise ProtofedError(
            f"the base method keeps {', '.join(parts)} at its client, so no other client "
            "can train its model further\nchoose a base method that sends its whole model"
        )


def phase_site(site: Site, context: RoundContext, epochs: PhaseEpochs) -> Site:
    """The site with the epochs of this exchange: half of a round's, or all of them in both.

    An odd epoch goes to the second half; each half has at least one.
    """
    if epochs == "full":
        return site
    now = site.training.split_epochs()[context.exchange]
    return replace(site, training=replace(site.training, epochs=now))


def phase_total(training: Training, epochs: PhaseEpochs) -> int:
    """How many epochs a client trains per round, both exchanges together."""
    return 2 * training.epochs if epochs == "full" else sum(training.split_epochs())


def exchange_models(
    site: Site,
    pending: Mapping[ClientId, Message],
    to: Sequence[ClientId],
    context: RoundContext,
    extras: Sequence[str] = (),
) -> dict[ClientId, Message]:
    """For each client in `to`, the model of another one, chosen at random; each is used once.

    Only the model and the named extras are passed on. `pending` holds a reply of every client in
    `to`, and `site` is the server's. A client alone gets its own model back.
    """
    partner = random_derangement(sorted(to), site.rng("exchange", context.round))
    chosen = {client: pending[partner[client]] for client in to}
    return {
        client: Message(reply.model, extras={name: reply.extras[name] for name in extras})
        for client, reply in chosen.items()
    }
