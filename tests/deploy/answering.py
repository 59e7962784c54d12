"""A server that answers as a gate would, in this process."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from protofed.deploy.keys import SiteKeyring


@contextmanager
def answering(keys: Path | None, status: int = 403, date: float | None = None) -> Iterator[str]:
    """A server with the federation's certificate that answers as told; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() if date is None else date, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            known = keys is not None and SiteKeyring(keys.parent / "server" / "sites").signed(
                [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            )
            self.send_response_only(404 if known else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Answer)
    if keys:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        home = keys.parent / "server"
        context.load_cert_chain(home / "server.crt", home / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
