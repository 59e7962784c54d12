"""One page on this machine's own address, renewed while runs go on; nothing else is served."""

from __future__ import annotations

import errno
import hashlib
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from protofed.core.errors import ProtofedError

HOST = "127.0.0.1"  # never the network
LOOK = 1.0  # seconds between two looks at the run folders
TRIES = 50  # ports


class ReportServer(ThreadingHTTPServer):
    """Holds the newest page as bytes; a request never touches the disk."""

    daemon_threads = True

    def __init__(self, port: int, page: str):
        super().__init__((HOST, port), ReportHandler)
        self.page = page.encode()

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, as the parent would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def show(self, page: str) -> None:
        """Serve another version from now on."""
        self.page = page.encode()

    @property
    def address(self) -> str:
        """Where to look."""
        return f"http://{HOST}:{self.server_port}/"


class ReportHandler(BaseHTTPRequestHandler):
    """Answers a GET or HEAD of ``/`` and nothing else."""

    server: ReportServer
    server_version, sys_version = "protofed", ""
    timeout = 10

    def do_GET(self) -> None:
        """The page."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The page's headers."""
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            # a foreign page could reach us under a name of its own
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        if self.path.partition("?")[0] != "/":
            return self.send_error(HTTPStatus.NOT_FOUND)
        page = self.server.page
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("ETag", f'"{hashlib.sha256(page).hexdigest()[:16]}"')
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        if body:
            self.wfile.write(page)
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a page that asks every other second would fill the terminal."""


def open_server(port: int, page: str) -> ReportServer:
    """A server on this port, or on the next free one."""
    for tried in range(port, min(port + TRIES, 65536)):
        try:
            return ReportServer(tried, page)
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE:
                raise ProtofedError(f"--port {tried}: {fault.strerror}; choose another") from fault
    raise ProtofedError(f"--port {port}: this and the next ports are taken; choose another")


def watch_report(
    make: Callable[[], str],
    stamp: Callable[[], object],
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serve what `make` makes until Ctrl-C; make it again whenever `stamp` changes."""
    seen = stamp()
    server, pause = open_server(port, make()), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        say(f"report on {server.address} (Ctrl-C ends it)")
        while True:
            pause.wait(LOOK)
            now = stamp()
            if now != seen:
                seen = now
                _renew(server, make, say)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.shutdown()
        server.server_close()


def _renew(server: ReportServer, make: Callable[[], str], say: Callable[[str], None]) -> None:
    """Show a new version; while a run folder is unreadable, the one before stays."""
    try:
        server.show(make())
    except (ProtofedError, OSError) as fault:
        say(f"the page stays as it was: {fault}")
