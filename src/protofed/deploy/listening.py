"""A TLS server that does not wait for ever for clients who are slow on purpose."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20  # from the first byte of a request, or of the connection, to its last header
IDLE_SECONDS = 15  # between two requests; sites ask every few seconds, and connect again if need be
MOST_CONNECTIONS = 500
MOST_HEAD = 1 << 14  # bytes of a request's line and headers


def listen_on(address: tuple[str, int], app: Callable[..., Any], cert: Path, key: Path) -> None:
    """Serve an ASGI app with TLS until told to stop; a port that is taken is an OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        lifespan="off",
        ssl_context_factory=lambda *_: context,
        proxy_headers=False,  # whoever calls is not to be believed
        server_header=False,
        access_log=False,
        log_config=None,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.create_server(address, family=family, backlog=MOST_CONNECTIONS) as held:
        uvicorn.Server(config).run(sockets=[held])


class Impatient(H11Protocol):
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
