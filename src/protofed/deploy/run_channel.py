"""The coordinator's channel to Flower's server on this machine: requests out, answers back.

It stands where Flower would start the app of a run. `protofed submit` starts a run under our empty
bundle, takes its task itself, and sends and receives in its own process.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, Self

from protofed.deploy.flower_client import (
    CallError,
    FlowerClient,
    app_bundle,
    bundle_hash,
    call_patiently,
)
from protofed.deploy.flower_compat import (
    SMALL_ANSWER,
    ArrivedReply,
    Heartbeat,
    ObjectCollector,
    ProtobufMessage,
    RuntimeCalls,
    T,
)
from protofed.deploy.flower_server import SECRET_HEADER, limit_text
from protofed.engines.flower_engine import NoAnswer, OnlineSite
from protofed.errors import ProtofedError

PATIENCE = 10.0  # seconds for a server on this machine that does not answer
BEAT_EVERY = 5.0  # seconds
GONE = "the server on this machine has ended, or has ended this run"


class ServerGoneError(ProtofedError):
    """The server itself does not answer any more; no site is to blame for that.

    It ends the run, which can be resumed, where a site's failure only leaves it out of a round.
    """


class ArrivingAnswer(NamedTuple):
    """An answer whose objects are still being fetched.

    `number` is Flower's name of the message that brings it.
    """

    number: str  # Flower's name of the message that brings it
    parts: ObjectCollector


class RunChannel:
    """One run at the server, from ``with`` to its end.

    This is the `RequestChannel` of a real federation: it knows sites by their node numbers and
    requests by the names that Flower gives them. `secret` opens the server to its owner, `ca` is
    the file of the authority that signs for it ("" for a server without TLS).
    """

    def __init__(self, url: str, secret: str, ca: str):
        trust = ssl.create_default_context(cafile=ca) if ca else None
        self.headers = {SECRET_HEADER: secret}
        self.client = FlowerClient(url, "flwr-serverapp", trust, lambda: self.headers)
        self.calls = RuntimeCalls(self._call)
        self.heartbeat = Heartbeat(lambda: RuntimeCalls(self.client.call).beat(), BEAT_EVERY)
        self.sent: dict[str, int] = {}  # the node to which each request went
        self.arriving: dict[str, ArrivingAnswer] = {}

    def __enter__(self) -> Self:
        self.calls.start_run(app_bundle(), bundle_hash())
        token = self.calls.acquire_task()
        if not token:
            raise ProtofedError("Flower's server did not hand out the run; try again")
        self.headers["flwr-task-token"] = token
        self.calls.open_task()
        self.heartbeat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.heartbeat.stop()
        with suppress(ProtofedError):
            RuntimeCalls(self.client.call).end_task(failed=kind is not None)
        self.client.close()

    def _call(
        self, name: str, request: ProtobufMessage, kind: type[T], most: int = SMALL_ANSWER
    ) -> T:
        try:
            return call_patiently(lambda: self.client.call(name, request, kind, most), PATIENCE)
        except CallError as fault:
            raise ServerGoneError(f"{GONE}: {fault}") from fault

    def online(self) -> list[OnlineSite]:
        """The sites that are connected now; those without a registered key have no name."""
        return [OnlineSite(each.node, each.name, each.since) for each in self.calls.nodes()]

    def send(self, node: int, content: bytes, seconds: float, most: int) -> str:
        """Send a request that expires after some seconds; its name, "" if it was not taken.

        The answer to it may have at most `most` bytes.
        """
        number = self.calls.push_request(node, content, seconds, limit_text(most))
        if number:
            self.sent[number] = node
        return number

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """The answers to some requests that are there by now; each is returned once.

        `waiting` maps the name of each request to the bytes that its answer may have.
        """
        found: dict[str, bytes | NoAnswer] = {}
        unknown = [number for number in waiting if number not in self.arriving]
        for reply in self.calls.pull_replies(unknown):
            if reply.request in waiting and (lost := self._begin(reply, waiting[reply.request])):
                found[reply.request] = lost
        for number in [number for number in self.arriving if number in waiting]:
            answer = self._arrived(self.arriving[number])
            if answer is not None:
                found[number] = answer
        self.forget(found)
        return found

    def _begin(self, reply: ArrivedReply, most: int) -> NoAnswer | None:
        """Begin to fetch an answer; or say why it is not fetched."""
        if reply.error:
            return NoAnswer(reply.error, reply.offline)
        if reply.sender != self.sent.get(reply.request):
            return NoAnswer("another site answered in its place")
        try:
            parts = ObjectCollector(reply.tree, most)
        except ProtofedError as fault:
            return NoAnswer(f"its answer was refused: {fault}")
        self.arriving[reply.request] = ArrivingAnswer(reply.number, parts)
        return None

    def forget(self, requests: Iterable[str]) -> None:
        """Drop what was kept for requests whose answers are not awaited any more."""
        for number in requests:
            self.sent.pop(number, None)
            self.arriving.pop(number, None)

    def _arrived(self, answer: ArrivingAnswer) -> bytes | NoAnswer | None:
        """An answer, if all of its parts are at the server."""
        run = self.calls.run
        try:
            content = answer.parts.collect(
                lambda name, most: self.calls.pull_object(run, name, most)
            )
        except ServerGoneError:
            raise
        except ProtofedError as fault:
            return NoAnswer(f"its answer was refused: {fault}")
        if content is not None:
            self.calls.confirm(run, answer.number)
        return content
