"""The one public port of a federation: TLS outside, and of Flower only what sites need.

Flower serves three interfaces on one port and asks only sites for a key. So it listens on this
machine alone, and this gate passes ``POST /v1/fleet/NAME`` on to it and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx

from protofed.core.errors import printable_text
from protofed.deploy.flower_server import SECRET_HEADER
from protofed.deploy.known import SiteKeyring
from protofed.deploy.listening import serve_tls

FLEET = re.compile(rb"/v1/fleet/[a-z]+(?:-[a-z]+)*")  # as it was sent, so without any escape
MOST_BODY = 1 << 20  # bytes of a call
MOST_PART = 6 << 20  # of one that brings a part of an answer: Flower cuts arrays at 5 MiB
PART = b"/v1/fleet/push-object"
PIECE_SECONDS, BODY_SECONDS = 30, 300  # between two pieces of a body, and for all of them
PROBE = b"/health"  # `join --check` asks for it, to see that it is refused
# What concerns one connection, or could make Flower believe that somebody else is calling.
OWN = {
    *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"expect", b"forwarded", b"x-real-ip", b"date", b"server", SECRET_HEADER.encode()),
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = logging.getLogger("protofed.gate")


class RefusedRequestError(Exception):
    """A request that ends here, with its status and the reason."""

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
    """Stand at a public address until stopped; `ca` signs for an upstream of ``https://``.

    With a folder of the sites' public keys, nobody else gets as far as Flower. `ready` is called
    when the address can be reached. `secret` is what Flower's guard wants to see.
    """
    trust = ssl.create_default_context(cafile=str(ca)) if ca else True
    limits = httpx.Timeout(connect=10, read=120, write=PIECE_SECONDS, pool=120)
    pool = httpx.Limits(max_connections=100)
    # trust_env: a proxy that somebody set for the web has no business between us and Flower.
    client = httpx.AsyncClient(verify=trust, timeout=limits, limits=pool, trust_env=False)
    gate = FleetGate(client, upstream.rstrip("/"), SiteKeyring(sites) if sites else None, secret)
    serve_tls(listen, gate, cert, key, ready)


class FleetGate:
    """Passes requests of sites on; everything else is answered 403 and goes no further."""

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
    """A line in the log on a request that did not pass; our own checks are no warning."""
    probe = (scope["method"], scope["raw_path"]) == ("GET", PROBE)
    told = f"{scope['method']} {scope['raw_path'].decode('latin-1')}"
    client = (scope.get("client") or ["somebody"])[0]
    level = logging.INFO if probe else logging.WARNING
    log.log(level, "%s: %s: %s", client, printable_text(told, 120), reason)


def check_request(scope: Scope) -> None:
    """Refuse a request that must not reach Flower."""
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
    """How long a request may be."""
    return MOST_PART if scope["raw_path"] == PART else MOST_BODY


def forwarded_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that go on to the other side."""
    named = [value.lower() for name, value in headers if name.lower() == b"connection"]
    dropped = OWN | {word.strip() for value in named for word in value.split(b",")}
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(b"x-forwarded-")
    ]


async def bounded_body(receive: Receive, most: int) -> AsyncIterator[bytes]:
    """What a client sends, as it comes; too much of it, or too slowly, is refused."""
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
    """A way to answer that gives up on a client that does not read."""

    async def patient(message: MutableMapping[str, Any]) -> None:
        async with asyncio.timeout(PIECE_SECONDS):
            await send(message)

    return patient


async def send_text(send: Send, status: int, reason: str) -> None:
    """A line of text, after which the connection ends: what is left of a body is not read."""
    text = f"{reason}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    size = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": text})


def gate_main() -> None:
    """``python -m protofed.deploy.proxy``."""
    words = argparse.ArgumentParser(prog="python -m protofed.deploy.proxy", description=__doc__)
    words.add_argument("--host", required=True, help="address to listen on")
    words.add_argument("--port", required=True, type=int)
    words.add_argument(
        "--upstream", required=True, help="Flower's server, e.g. https://127.0.0.1:1"
    )
    words.add_argument("--cert", required=True, type=Path)
    words.add_argument("--key", required=True, type=Path)
    words.add_argument("--ca", type=Path, help="who signs for the upstream")
    words.add_argument("--sites", type=Path, help="folder of NAME.pub: nobody else gets in")
    given = words.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    listen = given.host, given.port
    serve_gate(listen, given.upstream, given.cert, given.key, given.ca, given.sites)


if __name__ == "__main__":
    gate_main()
