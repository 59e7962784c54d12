"""A TLS server that holds so many connections and no more, and waits for ever for none of them."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

SHAKE_SECONDS = 20  # from the connection to the end of its TLS handshake
HEAD_SECONDS = (
    20  # from the first byte of a request, or the end of the handshake, to its last header
)
IDLE_SECONDS = 15  # between two requests; sites ask every few seconds, and connect again if need be
LEAVE_SECONDS = 5  # for the other side to take the end of a connection
MOST_CONNECTIONS = 500
# Of those, from one address: enough for dozens of sites behind one router, and it leaves places
# for all others.
MOST_OF_ADDRESS = 100
MOST_HEAD = 1 << 14  # bytes of a request's line and headers
QUIET_SECONDS = 60  # between two lines on connections that were refused
log = logging.getLogger("protofed.gate")


def serve_tls(
    address: tuple[str, int],
    app: Callable[..., Any],
    cert: Path,
    key: Path,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve an ASGI app with TLS until told to stop; a port that is taken is an OSError.

    `ready` is called when connections can be made.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        loop="asyncio",  # one kind, whatever is installed: the limits below rest on its time-outs
        ws="none",
        lifespan="off",
        proxy_headers=False,  # whoever calls is not to be believed
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.create_server(address, family=family, backlog=MOST_CONNECTIONS) as held:
        held.setblocking(False)
        ready()
        BoundedServer(config, context).run(sockets=[held])


class BoundedServer(uvicorn.Server):
    """Uvicorn's server, but a connection is counted before anything is said on it.

    Uvicorn's own limit counts connections with TLS, and answers beyond it: who never starts TLS
    would not be counted at all.
    """

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext):
        super().__init__(config)
        self.context, self.places = context, ConnectionLimits()
        self.chores: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on sockets."""
        await super().startup(sockets=[])
        for listener in sockets or []:
            self._begin(self._accept(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end those that there are."""
        for chore in self.chores:
            chore.cancel()
        await super().shutdown(sockets)

    def _begin(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(chore)
        self.chores.add(task)
        task.add_done_callback(self.chores.discard)

    async def _accept(self, listener: socket.socket) -> None:
        """Take whoever comes; for whom there is no place, the connection ends at once."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as fault:  # that one has gone already, or no file can be opened
                log.warning("a connection could not be taken: %s", fault)
                await asyncio.sleep(1)
                continue
            if connection := self.places.take(accepted, peer[0]):
                self._begin(self._serve_one(connection))
            await asyncio.sleep(0)  # in a flood, those inside have their turn too

    async def _serve_one(self, connection: socket.socket) -> None:
        """Hand a connection to uvicorn's protocol as soon as its TLS handshake is done."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: ImpatientProtocol(self.config, self.server_state, {}, loop),
                connection,
                ssl=self.context,
                ssl_handshake_timeout=SHAKE_SECONDS,
                ssl_shutdown_timeout=LEAVE_SECONDS,
            )
        except OSError as fault:  # no TLS, or too slow; asyncio has closed it
            log.debug("%s", fault)


class ConnectionLimits:
    """The connections that are held: so many of all, and so many of one address."""

    def __init__(self) -> None:
        self.taken: dict[socket.socket, str] = {}
        self.refused, self.told = 0, float("-inf")

    def take(self, accepted: socket.socket, host: str) -> socket.socket | None:
        """The connection, in a place that it leaves when it is closed; it is closed if none is."""
        home, taken = client_network(host), [*self.taken.values()]
        if len(taken) < MOST_CONNECTIONS and taken.count(home) < MOST_OF_ADDRESS:
            connection = CountedSocket(accepted, self.taken)
            self.taken[connection] = home
            return connection
        accepted.close()
        self.refused += 1
        if time.monotonic() - self.told > QUIET_SECONDS:
            text = "%d connections refused: %d are open, of these %d from %s"
            log.warning(text, self.refused, len(taken), taken.count(home), home)
            self.refused, self.told = 0, time.monotonic()
        return None


class CountedSocket(socket.socket):
    """A connection that leaves its place when it is closed, whoever closes it."""

    def __init__(self, accepted: socket.socket, taken: dict[socket.socket, str]):
        family, kind, number = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, number, accepted.detach())
        self.taken = taken

    def close(self) -> None:
        """Close it."""
        super().close()
        self.taken.pop(self, None)


def client_network(host: str) -> str:
    """What counts as one address: of IPv6 a whole network, as everybody has one to himself."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))


class ImpatientProtocol(H11Protocol):
    """Uvicorn's own protocol, which also hangs up on those who never finish their headers."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.unwatch()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Start the clock where a request has begun, stop it where its headers are complete."""
        if self.conn.their_state is not h11.IDLE:
            self.unwatch()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def unwatch(self) -> None:
        """Stop the clock."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
