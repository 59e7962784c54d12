"""The web, and nothing else that an address could name."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import Message
from typing import IO
from urllib import parse, request


class HttpGoneError(Exception):
    """An address that has not got the file."""


class _Redirects(request.HTTPRedirectHandler):
    """Follows to the web only, and never from a secured address to an open one."""

    def redirect_request(
        self,
        req: request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> request.Request | None:
        here, there = parse.urlsplit(req.full_url).scheme, parse.urlsplit(newurl).scheme
        if there not in ("http", "https") or (here, there) == ("https", "http"):
            raise HttpGoneError(f"it sends on to {newurl[:80]}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def http_opener() -> request.OpenerDirector:
    """The web and nothing else: no files, no FTP."""
    made = request.OpenerDirector()
    handlers: Sequence[request.BaseHandler] = (
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        _Redirects(),
    )
    for handler in handlers:
        made.add_handler(handler)
    return made
