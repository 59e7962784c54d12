"""Flower's server as a client sees it: protobuf over HTTP, with bounds of our own.

Flower starts no run without an app. A SuperNode would fetch that app and import what it names. A
site of protofed never does: it takes requests only of runs that were started with this bundle,
which holds no code.
"""

from __future__ import annotations

import hashlib
import io
import ssl
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import cache

import httpx

from protofed.deploy.flower_compat import (
    SMALL_ANSWER,
    ProtobufMessage,
    T,
    TooLargeError,
    version_headers,
)
from protofed.errors import ProtofedError, printable_text

PROTOCOL = 2  # of the messages between coordinator and sites; both must speak the same
DATE = (2024, 1, 1, 0, 0, 0)
PROJECT = f"""\
[project]
name = "protofed-federation"
version = "{PROTOCOL}.0.0"
description = "Marks a run of protofed; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "protofed"

[tool.flwr.app.components]
serverapp = "protofed:no_server_app"
clientapp = "protofed:no_client_app"

[tool.flwr.app.config]
"""


@cache
def app_bundle() -> bytes:
    """The app bundle under which protofed starts its runs, as a ZIP archive.

    It holds only its own description, and has the same bytes on every machine, so a site can tell
    by its hash that a run is one of protofed's.
    """
    content = PROJECT.encode()
    listing = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{8 * len(content)}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, text in (("pyproject.toml", content), (".info/CONTENT", listing.encode())):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # as zipfile writes on Unix, on every system
            archive.writestr(entry, text)
    return stream.getvalue()


@cache
def bundle_hash() -> str:
    """The name under which Flower knows the bundle: its SHA-256 as 64 hex digits."""
    return hashlib.sha256(app_bundle()).hexdigest()


PROTOBUF = "application/protobuf"
SECONDS = 30.0  # for a connection, and between two pieces of an answer
BUSY = (502, 503, 504)  # answers of a server that may be back in a moment


class CallError(ProtofedError):
    """A call that Flower's server refused, or that nobody answered.

    `status` is the HTTP status of the refusal, 0 if there was no answer.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.status == 0 or self.status in BUSY


class FlowerClient:
    """Makes calls to one Flower server: protobuf in, protobuf out, over HTTP.

    `component` is the kind of client that Flower expects, such as ``SuperNode``. `trust` is the TLS
    context, and `headers` returns the headers of each call, such as a signature of the time::

        client = FlowerClient("https://fed.example.org:8443", "SuperNode", trust, key.headers)
        client.call("fleet/pull-messages", PullMessagesRequest(), PullMessagesResponse)
    """

    def __init__(
        self,
        url: str,
        component: str,
        trust: ssl.SSLContext | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ):
        self.url, self.headers = url.rstrip("/"), headers
        self.fixed = {
            **version_headers(component),
            "content-type": PROTOBUF,
            "accept": PROTOBUF,
            "accept-encoding": "identity",  # nothing that could grow when it is unpacked
        }
        # trust_env: a proxy set for the web has no business here.
        self.http = httpx.Client(verify=trust or True, timeout=SECONDS, trust_env=False)

    def call(
        self, name: str, request: ProtobufMessage, kind: type[T], most: int = SMALL_ANSWER
    ) -> T:
        """Make one call, such as ``fleet/pull-messages``, and return its answer.

        An answer of more than `most` bytes is broken off with a TooLargeError.
        """
        headers = {**self.fixed, **self.headers()}
        try:
            with self.http.stream(
                "POST",
                f"{self.url}/v1/{name}",
                content=request.SerializeToString(deterministic=True),
                headers=headers,
            ) as answer:
                body = _body(answer, most if answer.status_code == 200 else SMALL_ANSWER)
        except httpx.HTTPError as fault:
            raise CallError(0, str(fault) or type(fault).__name__) from fault
        if answer.status_code != 200:
            reason = printable_text(body.decode(errors="replace"), 300)
            raise CallError(answer.status_code, f"answered {answer.status_code}: {reason}")
        try:
            return kind.FromString(body)
        except Exception as fault:  # protobuf's own error, which it does not type
            raise CallError(answer.status_code, f"what {name} answered cannot be read") from fault

    def close(self) -> None:
        """Hang up."""
        self.http.close()


def _body(answer: httpx.Response, most: int) -> bytes:
    body = bytearray()
    for piece in answer.iter_raw():
        body += piece
        if len(body) > most:
            raise TooLargeError(f"an answer of more than {most} bytes")
    return bytes(body)


def call_patiently(call: Callable[[], T], seconds: float, pause: float = 0.5) -> T:
    """Repeat a call while the server is away or busy, for at most some seconds.

    An error that will not pass by itself, such as a refusal, is raised at once.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except CallError as fault:
            if not fault.may_pass or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
