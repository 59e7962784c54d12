"""A web server on this machine, with the faults that real ones have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Host:
    """What a server does, and what it was asked: (path, Range or nothing)."""

    root: Path
    drop_after: int = 0  # break the connection after so many bytes, while `drops` are left
    drops: int = 0
    ranges: bool = True
    failures: list[int] = field(default_factory=list)  # codes to answer first
    claim: int = 0  # added to Content-Length
    redirect: str = ""
    page: bool = False  # answer with HTML
    shift: int = 0  # send another part than was asked for
    pause: threading.Event | None = None  # wait for it after the first block
    block: int = 2**16
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append((request.path, wanted))
        path = self.root / request.path.lstrip("/").partition("?")[0]
        if self.redirect:
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
        elif self.failures:
            request.send_error(self.failures.pop(0))
        elif not path.is_file():
            request.send_error(404)
        else:
            self.send(request, path.read_bytes(), wanted)

    def send(self, request: BaseHTTPRequestHandler, content: bytes, wanted: str) -> None:
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start >= len(content) > 0 and wanted:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            request.end_headers()
            return
        start += self.shift if start else 0
        rest = content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Type", "text/html" if self.page else "application/gzip")
        request.send_header("Content-Length", str(len(rest) + self.claim))
        request.end_headers()
        if self.drops:
            self.drops -= 1
            rest = rest[: self.drop_after]
        request.wfile.write(rest[: self.block])
        request.wfile.flush()
        if self.pause:
            self.pause.wait(60)
        request.wfile.write(rest[self.block :])


@contextmanager
def serving(root: Path) -> Iterator[Host]:
    """A host that serves a folder."""
    host = Host(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                host.answer(self)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    host.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield host
    finally:
        if host.pause:
            host.pause.set()
        server.shutdown()
        server.server_close()
        thread.join()
