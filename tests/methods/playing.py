"""What the tests of methods share: some rounds on the toy federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round
from protofed.testing import toy_sites


class Played(NamedTuple):
    """A federation after some rounds."""

    site: Site  # the server's
    sites: dict[ClientId, Site]
    server: Any
    states: dict[ClientId, Any]  # of the clients
    exchanges: list[tuple[Messages, Messages]]  # what travelled down and up, exchange by exchange

    @property
    def down(self) -> list[Messages]:
        """What the clients were sent, exchange by exchange."""
        return [down for down, _ in self.exchanges]

    @property
    def up(self) -> list[Messages]:
        """What the clients sent, exchange by exchange."""
        return [up for _, up in self.exchanges]

    @property
    def messages(self) -> list[Message]:
        """Every message that travelled."""
        return [message for both in self.exchanges for some in both for message in some.values()]


def play(
    method: AnyMethod,
    rounds: int = 2,
    planned: int | None = None,
    net_of: AnyMethod | None = None,
    sites: dict[ClientId, Site] | None = None,
    who: Sequence[ClientId] | None = None,
) -> Played:
    """Some rounds of a run that was planned for so many, on the net that `net_of` asks for."""
    site, toys = toy_sites(net_of or method)
    sites = sites or toys
    called = sorted(sites) if who is None else who
    engine, server = LocalEngine(method, sites), method.init_server(site)
    exchanges: list[tuple[Messages, Messages]] = []
    for number in range(rounds):
        step = RoundContext(number, rounds if planned is None else planned)
        server = run_round(
            method, site, server, engine, called, step, lambda *both: exchanges.append(both)
        )
    return Played(
        site, sites, server, {client: engine.state(client) for client in sites}, exchanges
    )


def after(method: AnyMethod, rounds: int = 2, planned: int | None = None) -> Model:
    """The server's model after some rounds."""
    model: Model = play(method, rounds, planned).server.model
    return model


def is_constant(part: Tensor, method: AnyMethod, received: Message) -> bool:
    """Whether a client's loss moves all of its model, and `part` not even where it could."""
    _, sites = toy_sites(method)
    site, model = sites[1], sites[1].initial_model()
    for leaf in (part, *model.weights.values()):
        leaf.requires_grad_()
    batch = next(site.batches(RoundContext(1, 4)))
    method.loss(site, received, method.init_client(site), model, batch).backward()
    assert all(leaf.grad is not None for leaf in model.weights.values())
    return part.grad is None
