"""Downloads over HTTP that resume where they stopped, and are checked before use."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib import error, parse, request

from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write_json, rename_over, sync_directory


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


TIMEOUT = 30.0  # seconds without a byte
TRIES = 5  # without any progress, for each address
BACKOFF = 1.0  # seconds before the second try, then twice as many each time
LONGEST_WAIT = 60.0
BLOCK = 2**18
ROOM = 64 * 2**20  # what a file may be larger than told, and what is left free on the disk
UNKNOWN_MOST = 8 * 2**30  # of a file whose size nobody tells
PASSING = {408, 425, 429, 500, 502, 503, 504}
AGENT = "protofed (data get)"
Watch = Callable[[int, int | None], None]  # bytes so far, and in all where known


class RemoteFile(NamedTuple):
    """A file elsewhere: the addresses that hold the same bytes, the best first."""

    name: str
    urls: tuple[str, ...]
    size: int = 0  # bytes, about; 0 where nobody tells
    checksum: str = ""  # "md5:..." or "sha256:..." as published, or nothing


class DownloadFailedError(Exception):
    """A try that failed but may be repeated."""

    def __init__(self, why: str, wait: float = 0.0):
        super().__init__(why)
        self.wait = wait


class ChecksumError(ProtofedError):
    """A file that is not the published one."""


def fetch_file(remote: RemoteFile, target: Path, watch: Watch) -> None:
    """Have the file whole at `target`; what an earlier try has left is used.

    A file that is not the published one is kept aside as NAME.wrong, and nothing else is touched.
    """
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    faults = []
    for url in remote.urls:
        try:
            _from(url, remote, part, watch)
            verify_checksum(part, remote)
            break
        except (HttpGoneError, ChecksumError) as fault:
            faults.append(f"{url}: {fault}")
    else:
        told = "\n".join(faults)
        raise ProtofedError(
            f"{remote.name} cannot be had:\n{told}\n"
            "the same command goes on from here; PROTOFED_MIRROR names another place to fetch from"
        )
    _note(part).unlink(missing_ok=True)
    rename_over(part, target)
    sync_directory(target.parent)


def verify_checksum(path: Path, remote: RemoteFile) -> None:
    """Stop if a file is not the published one, and put it aside; nothing is published: no check."""
    kind, _, expected = remote.checksum.partition(":")
    if not kind:
        return
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, kind).hexdigest()
    if found != expected:
        aside = quarantine_file(path)
        _note(path).unlink(missing_ok=True)
        raise ChecksumError(
            f"{remote.name} is not the published file: expected {kind} {expected}, found {found}\n"
            f"it was put aside as {aside}; nothing else was changed; the same command fetches anew"
        )


def quarantine_file(path: Path) -> Path:
    """Keep a wrong file as NAME.wrong, out of the right one's way."""
    return path.replace(path.with_name(f"{path.name.removesuffix('.part')}.wrong"))


def _from(url: str, remote: RemoteFile, part: Path, watch: Watch) -> None:
    """Fetch from one address, as often as there is progress; `GoneError` if it does not work."""
    if parse.urlsplit(url).scheme not in ("http", "https"):
        raise HttpGoneError("an address starts with http:// or https://")
    failed = 0
    while True:
        had = _size(part)
        try:
            return _once(url, remote, part, watch)
        except DownloadFailedError as fault:
            failed = 1 if _size(part) > had else failed + 1
            if failed >= TRIES:
                raise HttpGoneError(f"{fault} ({failed} times)") from fault
            time.sleep(min(LONGEST_WAIT, max(fault.wait, BACKOFF * 2 ** (failed - 1))))


def _once(url: str, remote: RemoteFile, part: Path, watch: Watch) -> None:
    """One connection; what it brings stays in the part file, also when it breaks."""
    tag = _usable(url, remote, part)
    had = _size(part)
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if had:
        headers["Range"] = f"bytes={had}-"
        headers |= {"If-Range": tag} if tag else {}
    try:
        with http_opener().open(request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            _take(answer, url, remote, part, had, watch)
    except error.HTTPError as fault:
        if fault.code == 416 and had:
            return _beyond(fault, part, had)
        if fault.code in PASSING:
            raise DownloadFailedError(
                f"HTTP {fault.code} {fault.reason}", _asked_wait(fault)
            ) from fault
        raise HttpGoneError(f"HTTP {fault.code} {fault.reason}") from fault
    except (error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as fault:
        raise DownloadFailedError(
            str(getattr(fault, "reason", "")) or type(fault).__name__
        ) from fault


def _take(answer: Any, url: str, remote: RemoteFile, part: Path, had: int, watch: Watch) -> None:
    """Write what an answer brings behind what is there, or anew if the host starts anew."""
    if answer.headers.get_content_type() == "text/html":
        raise HttpGoneError("the host answers with a web page, not with the file")
    if answer.status == 206 and _begins(answer) != had:
        part.unlink()
        raise DownloadFailedError("the host sends another part than was asked for")
    start = had if answer.status == 206 else 0
    length = answer.headers.get("Content-Length", "")
    total = start + int(length) if length.isdecimal() else None
    most = 2 * remote.size + ROOM if remote.size else UNKNOWN_MOST
    _check_room(part.parent, (total or 0) - start)
    atomic_write_json(_note(part), {"url": url, "tag": _strong(answer.headers.get("ETag", ""))})
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while block := answer.read1(BLOCK):
            file.write(block)
            file.flush()  # so that a killed process has kept what it got
            watch(file.tell(), total)
            if file.tell() > most:
                raise HttpGoneError(
                    f"it is far larger than it should be, over {most // 10**6:,} MB"
                )
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        end = file.tell()
    if total is not None and end < total:
        raise DownloadFailedError(f"the connection broke after {end:,} of {total:,} bytes")


def _usable(url: str, remote: RemoteFile, part: Path) -> str:
    """The tag of what is there; it is dropped if it came from elsewhere and cannot be checked."""
    try:
        note = json.loads(_note(part).read_bytes())
        came, tag = str(note["url"]), str(note["tag"])
    except (OSError, ValueError, KeyError, TypeError):
        came, tag = "", ""
    if came == url:
        return tag
    if not remote.checksum:
        part.unlink(missing_ok=True)
    return ""


def _beyond(fault: error.HTTPError, part: Path, had: int) -> None:
    """The host has nothing after what is there: it is whole, or it is of another file."""
    if fault.headers.get("Content-Range", "").strip() == f"bytes */{had}":
        return
    part.unlink()
    raise DownloadFailedError("the host has another file than the one begun")


def _begins(answer: Any) -> int | None:
    """The first byte of a partial answer."""
    unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
    first = rest.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdecimal() else None


def _asked_wait(fault: error.HTTPError) -> float:
    after = fault.headers.get("Retry-After", "")
    return float(after) if after.isdecimal() else 0.0


def _check_room(folder: Path, more: int) -> None:
    if more + ROOM > (free := shutil.disk_usage(folder).free):
        raise ProtofedError(
            f"{folder} has {free / 1e9:.2f} GB free, and {(more + ROOM) / 1e9:.2f} GB are needed"
        )


def _strong(tag: str) -> str:
    """A tag that names exact bytes, or nothing."""
    return tag if tag.startswith('"') else ""


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
