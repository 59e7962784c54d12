"""Clients' models within a round, computed again from the checkpoint before it.

No run stores them: the same spec gives the same bits, so the rounds since the last checkpoint are
trained once more, and what clients sent in the last of them is what they sent then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core import tree
from protofed.core.hook_results import first_server_state
from protofed.core.message import Message
from protofed.core.site import ClientId, RoundContext
from protofed.core.training import torch_threads
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.experiment.checkpoint import load_server_state
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import sample_clients
from protofed.experiment.trained_run import LocalModel, TrainedRun
from protofed.federation.round import Messages, run_round


class ReplayedExchange(NamedTuple):
    """One exchange of a round: what each client received, what it sent, and its state after it."""

    sent: dict[ClientId, Message]
    replies: dict[ClientId, Message]
    states: dict[ClientId, Any]


class ReplayedRound(NamedTuple):
    """A round trained again: its exchanges, and the server's state after it.

    `local` opens the model of a client at its end or after one of its exchanges.
    """

    run: TrainedRun
    exchanges: tuple[ReplayedExchange, ...]
    server: Any

    def local(self, client: ClientId, exchange: int = -1) -> TrainedRun:
        """The run with a client's model after an exchange, the last one by default.

        The client must have taken part in the round.
        """
        now = self.exchanges[exchange]
        if client not in now.replies:
            there = ", ".join(map(str, now.replies))
            raise ProtofedError(
                f"client {client} sent no model in round {self.run.round}; these did: {there}"
            )
        sent, reply = now.sent[client], now.replies[client]
        received = replace(sent, model=sent.model | reply.model)
        number = exchange % len(self.exchanges)
        return replace(self.run, local=LocalModel(client, number, received, now.states[client]))

    def trained_further_by(self, client: ClientId) -> ClientId:
        """The client that got the model that `client` had sent in the exchange before the last.

        Itself, if no other client got exactly this model.
        """
        model = self.exchanges[-2].replies[client].model if len(self.exchanges) > 1 else None
        others = self.exchanges[-1].sent.items()
        return next((c for c, sent in others if tree.equal(sent.model, model)), client)


def replay_round(folder: Path, run: TrainedRun) -> ReplayedRound:
    """Train the round again after which `run` was opened from `folder`, with all of its clients.

    It starts at the newest checkpoint before it, or at the beginning if there is none, so that the
    rounds between are trained again, too. On the machine of the run, every bit is as it was.
    """
    method, federation = run.method, run.federation
    engine: LocalEngine[Any, Any] = LocalEngine(method, federation.everyone, federation.tests)
    place = RunDir(folder)
    before = [number for number in place.rounds_on_disk() if number < run.round]
    found = place.kept(before[-1]) if before else None
    with torch_threads(run.experiment.threads):
        if found is None:
            server = first_server_state(method, federation.server)
        else:
            engine.load(found.folder)
            server = load_server_state(found)
        for number in range(found.round if found else 0, run.round):
            heard: list[ReplayedExchange] = []
            who = sample_clients(run.experiment, list(federation.sites), number)
            context = RoundContext(number, run.experiment.rounds)
            server = run_round(
                *(method, federation.server, server, engine, who, context),
                tell=_listener(engine, heard),
                note=lambda event: None,  # it went wrong then, too, and is on record
                least=run.experiment.min_clients,
            )
    return ReplayedRound(run, tuple(heard), server)


def _listener(engine: LocalEngine[Any, Any], heard: list[ReplayedExchange]) -> Any:
    """A `tell` for `run_round` that remembers each exchange."""

    def tell(sent: Messages, replies: Messages) -> None:
        states: Mapping[ClientId, Any] = {client: engine.state(client) for client in replies}
        heard.append(ReplayedExchange(dict(sent), dict(replies), dict(states)))

    return tell
