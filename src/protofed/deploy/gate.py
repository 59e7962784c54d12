"""The one public port of a federation: TLS, bounded connections, only what sites need."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from pathlib import Path
from typing import Any

import h11
import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from protofed.deploy.flower_server import SECRET_HEADER
from protofed.deploy.keys import SiteKeyring
from protofed.errors import printable_text

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
    """Serve an ASGI app with TLS until stopped; a port that is taken is an OSError.

    Connections, handshakes and headers are bounded in number and time. `ready` is called when
    connections can be made.
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
        proxy_headers=False,  # what a client claims here is not trusted
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
    """Uvicorn's server, but a connection counts from the moment it is accepted.

    Uvicorn's own limit counts connections with TLS and answers those beyond it. A client that never
    starts TLS would not be counted at all.
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
        """Accept connections; one beyond the limits is closed at once."""
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
    """The connections that are held: at most so many in all, and so many from one address.

    What is beyond a limit is closed at once, and reported in the log once a minute.
    """

    def __init__(self) -> None:
        self.taken: dict[socket.socket, str] = {}
        self.refused, self.reported = 0, float("-inf")

    def take(self, accepted: socket.socket, host: str) -> socket.socket | None:
        """The connection, in a place that it leaves when it is closed; it is closed if none is."""
        home, taken = client_network(host), [*self.taken.values()]
        if len(taken) < MOST_CONNECTIONS and taken.count(home) < MOST_OF_ADDRESS:
            connection = CountedSocket(accepted, self.taken)
            self.taken[connection] = home
            return connection
        accepted.close()
        self.refused += 1
        if time.monotonic() - self.reported > QUIET_SECONDS:
            text = "%d connections refused: %d are open, of these %d from %s"
            log.warning(text, self.refused, len(taken), taken.count(home), home)
            self.refused, self.reported = 0, time.monotonic()
        return None


class CountedSocket(socket.socket):
    """A connection that frees its place when it is closed, whichever code closes it."""

    def __init__(self, accepted: socket.socket, taken: dict[socket.socket, str]):
        family, kind, number = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, number, accepted.detach())
        self.taken = taken

    def close(self) -> None:
        """Close it."""
        super().close()
        self.taken.pop(self, None)


def client_network(host: str) -> str:
    """What counts as one address: an IPv4 address, or a /64 network of IPv6.

    Every IPv6 customer has a whole network to choose addresses from.
    """
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))


class ImpatientProtocol(H11Protocol):
    """Uvicorn's own protocol, which also hangs up on clients that never finish their headers.

    Uvicorn bounds the size of headers, but not the time in which they arrive.
    """

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


FLEET = re.compile(rb"/v1/fleet/[a-z]+(?:-[a-z]+)*")  # as it was sent, so without any escape
MOST_BODY = 1 << 20  # bytes of a call
MOST_PART = 6 << 20  # of one that brings a part of an answer: Flower cuts arrays at 5 MiB
PART = b"/v1/fleet/push-object"
PIECE_SECONDS, BODY_SECONDS = 30, 300  # between two pieces of a body, and for all of them
PROBE = b"/health"  # `join --check` asks for it, to see that it is refused
# What concerns one connection, or could make Flower take the caller for another.
OWN = {
    *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"expect", b"forwarded", b"x-real-ip", b"date", b"server", SECRET_HEADER.encode()),
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RefusedRequestError(Exception):
    """A request that the gate answers itself, with an HTTP status and a reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def serve_gate(
    listen: tuple[str, int],
    upstream: str,
    cert: Path,
    key: Path,
    ca: Path | None = None,
    sites: Path | None = None,
    ready: Callable[[], None] = lambda: None,
    secret: str = "",
) -> None:
    """Stand at a public address until stopped, and pass sites' requests on to `upstream`.

    `cert` and `key` are the server's certificate, `ca` the authority that signs for an upstream of
    ``https://``. With `sites`, the folder of the sites' public keys, nobody else gets as far as
    Flower. `secret` is what Flower's guard wants to see. `ready` is called when the address can be
    reached.
    """
    trust = ssl.create_default_context(cafile=str(ca)) if ca else True
    limits = httpx.Timeout(connect=10, read=120, write=PIECE_SECONDS, pool=120)
    pool = httpx.Limits(max_connections=100)
    # trust_env: a proxy set for the web has no business between us and Flower.
    client = httpx.AsyncClient(verify=trust, timeout=limits, limits=pool, trust_env=False)
    gate = FleetGate(client, upstream.rstrip("/"), SiteKeyring(sites) if sites else None, secret)
    serve_tls(listen, gate, cert, key, ready)


class FleetGate:
    """The ASGI app at the public port: passes requests of sites on, and refuses all others.

    A request must be a POST to ``/v1/fleet/NAME`` with the signature of a known site; this is seen
    before its body is read. Anything else gets a 401 or 403 and goes no further.
    """

    def __init__(
        self, client: httpx.AsyncClient, upstream: str, known: SiteKeyring | None, secret: str = ""
    ):
        self.client, self.upstream, self.known = client, upstream, known
        self.own = [(SECRET_HEADER.encode(), secret.encode())] if secret else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI hands it over."""
        patient = send_within(send)
        try:
            check_request(scope)
            if self.known and not self.known.signed(scope["headers"]):
                raise RefusedRequestError(401, "not signed by a site of this federation")
            await self.passed(scope, receive, patient)
        except RefusedRequestError as refused:
            log_refusal(scope, refused.reason)
            await send_text(patient, refused.status, refused.reason)
        except (TimeoutError, httpx.HTTPError) as fault:  # the server then ends the connection
            log_refusal(scope, f"broken off: {type(fault).__name__}")

    async def passed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request on piece by piece, and what Flower answers back likewise."""
        asked = self.client.build_request(
            "POST",
            self.upstream + scope["raw_path"].decode("ascii"),
            content=bounded_body(receive, most_bytes(scope)),
            headers=[*forwarded_headers(scope["headers"]), *self.own],
        )
        try:
            answered = await self.client.send(asked, stream=True)
        except httpx.HTTPError as fault:
            raise RefusedRequestError(502, f"Flower's server: {type(fault).__name__}") from fault
        try:
            head = {"type": "http.response.start", "status": answered.status_code}
            await send({**head, "headers": forwarded_headers(answered.headers.raw)})
            async for piece in answered.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answered.aclose()


def log_refusal(scope: Scope, reason: str) -> None:
    """Write a line on a request that did not pass to the log.

    It is a warning, except for the request by which `join` checks that the gate is closed.
    """
    probe = (scope["method"], scope["raw_path"]) == ("GET", PROBE)
    request = f"{scope['method']} {scope['raw_path'].decode('latin-1')}"
    client = (scope.get("client") or ["unknown"])[0]
    level = logging.INFO if probe else logging.WARNING
    log.log(level, "%s: %s: %s", client, printable_text(request, 120), reason)


def check_request(scope: Scope) -> None:
    """Refuse a request that must not reach Flower, by its method, path and announced size.

    The path is compared as it was sent, before anything could decode or normalise it.
    """
    if scope["type"] != "http" or scope["method"] != "POST":
        raise RefusedRequestError(403, "only POST is passed on")
    if not FLEET.fullmatch(scope["raw_path"]) or scope["query_string"]:
        raise RefusedRequestError(403, "only what sites need is passed on")
    sizes = [int(value) for name, value in scope["headers"] if name == b"content-length"]
    if any(
        size > most_bytes(scope) for size in sizes
    ):  # the server has seen that these are numbers
        raise RefusedRequestError(413, f"more than {most_bytes(scope)} bytes")


def most_bytes(scope: Scope) -> int:
    """How many bytes the body of a request may have: more if it brings a part of an answer."""
    return MOST_PART if scope["raw_path"] == PART else MOST_BODY


def forwarded_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are passed on: without those of one connection, or that name addresses.

    Also without our secret, which only the gate itself may bring.
    """
    named = [value.lower() for name, value in headers if name.lower() == b"connection"]
    dropped = OWN | {word.strip() for value in named for word in value.split(b",")}
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(b"x-forwarded-")
    ]


async def bounded_body(receive: Receive, most: int) -> AsyncIterator[bytes]:
    """The body that a client sends, piece by piece; too much, or too slowly, is refused."""
    clock = asyncio.get_running_loop().time
    total, more, end = 0, True, clock() + BODY_SECONDS
    while more:
        try:
            async with asyncio.timeout_at(min(clock() + PIECE_SECONDS, end)):
                message = await receive()
        except TimeoutError as fault:
            raise RefusedRequestError(408, "too slow") from fault
        if message["type"] == "http.disconnect":
            raise RefusedRequestError(400, "hung up")
        total, more = total + len(message["body"]), message["more_body"]
        if total > most:
            raise RefusedRequestError(413, f"more than {most} bytes")
        yield message["body"]


def send_within(send: Send) -> Send:
    """Wrap an ASGI `send` so it gives up on a client that does not read."""

    async def patient(message: MutableMapping[str, Any]) -> None:
        async with asyncio.timeout(PIECE_SECONDS):
            await send(message)

    return patient


async def send_text(send: Send, status: int, reason: str) -> None:
    """Answer with a line of text and end the connection, without reading the rest of a body."""
    text = f"{reason}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    size = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": text})


def gate_main() -> None:
    """Run a gate by itself: ``python -m protofed.deploy.gate``.

    `serve` runs the gate in its own process; this is for tests and for other set-ups.
    """
    parser = argparse.ArgumentParser(prog="python -m protofed.deploy.gate", description=__doc__)
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument(
        "--upstream", required=True, help="Flower's server, e.g. https://127.0.0.1:1"
    )
    parser.add_argument("--cert", required=True, type=Path)
    parser.add_argument("--key", required=True, type=Path)
    parser.add_argument(
        "--ca", type=Path, help="certificate of the authority that signs for the upstream"
    )
    parser.add_argument("--sites", type=Path, help="folder of NAME.pub: others are refused")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    listen = given.host, given.port
    serve_gate(listen, given.upstream, given.cert, given.key, given.ca, given.sites)


if __name__ == "__main__":
    gate_main()
