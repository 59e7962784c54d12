"""Download files over HTTP: interrupted downloads resume, and files are checked before use."""

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
    """An address does not have the file, or keeps failing.

    The next address may have it.
    """


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

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
            raise HttpGoneError(f"it redirects to {newurl[:80]}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def http_opener() -> request.OpenerDirector:
    """A URL opener for http and https only.

    It opens no local files and no FTP, and follows no redirect from https to http.
    """
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
TRIES = 5  # attempts without progress, per address
BACKOFF = 1.0  # seconds before the second attempt, doubled each time
LONGEST_WAIT = 60.0
BLOCK = 2**18
ROOM = 64 * 2**20  # bytes: tolerance on announced sizes, and what stays free on the disk
UNKNOWN_MOST = 8 * 2**30  # bytes of a file of unknown size
PASSING = {408, 425, 429, 500, 502, 503, 504}
AGENT = "protofed (data get)"
Watch = Callable[[int, int | None], None]  # bytes so far, and in all where known


class RemoteFile(NamedTuple):
    """A file to download, with all addresses that hold the same bytes, preferred ones first.

    Without a published checksum, the SHA-256 of the first download is remembered and compared
    later.
    """

    name: str
    urls: tuple[str, ...]
    size: int = 0  # bytes, approximately; 0 if unknown
    checksum: str = ""  # "md5:..." or "sha256:..." as published, or nothing


class DownloadFailedError(Exception):
    """A failed attempt that may succeed if repeated.

    `wait` is the delay in seconds that the host asked for.
    """

    def __init__(self, why: str, wait: float = 0.0):
        super().__init__(why)
        self.wait = wait


class ChecksumError(ProtofedError):
    """A downloaded file differs from the published one."""


def fetch_file(remote: RemoteFile, target: Path, watch: Watch) -> None:
    """Download a file to `target`, trying its addresses in turn.

    An earlier, interrupted download is continued. `watch` is called with the bytes so far and the
    total, None if unknown. A file with a wrong checksum is kept as ``NAME.wrong``; `target` only
    ever holds a complete, checked file.
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
        raise ProtofedError(
            "\n".join([f"{remote.name} cannot be downloaded:", *faults]),
            hint="rerun the same command to resume; set PROTOFED_MIRROR to use another host",
        )
    _note(part).unlink(missing_ok=True)
    rename_over(part, target)
    sync_directory(target.parent)


def verify_checksum(path: Path, remote: RemoteFile) -> None:
    """Raise `ChecksumError` and set the file aside if it differs from the published one.

    Does nothing for files without a published checksum.
    """
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
            f"it was set aside as {aside}; nothing else was changed",
            hint="rerun the same command to download it again",
        )


def quarantine_file(path: Path) -> Path:
    """Rename a wrong file to ``NAME.wrong`` and return its new path."""
    return path.replace(path.with_name(f"{path.name.removesuffix('.part')}.wrong"))


def _from(url: str, remote: RemoteFile, part: Path, watch: Watch) -> None:
    """Fetch from one address, retrying; raises `HttpGoneError` after TRIES without progress."""
    if parse.urlsplit(url).scheme not in ("http", "https"):
        raise HttpGoneError("an address must start with http:// or https://")
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
    """One connection; what it brings stays in the part file even if it breaks."""
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
    """Append what an answer brings, or start over if the host does."""
    if answer.headers.get_content_type() == "text/html":
        raise HttpGoneError("the host sent a web page instead of the file")
    if answer.status == 206 and _begins(answer) != had:
        part.unlink()
        raise DownloadFailedError("the host sent another part than requested")
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
            file.flush()  # a killed process keeps what it got
            watch(file.tell(), total)
            if file.tell() > most:
                raise HttpGoneError(f"it is far larger than expected, over {most // 10**6:,} MB")
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        end = file.tell()
    if total is not None and end < total:
        raise DownloadFailedError(f"the connection broke after {end:,} of {total:,} bytes")


def _usable(url: str, remote: RemoteFile, part: Path) -> str:
    """The ETag of the part file, which is deleted if it came from elsewhere and has no checksum."""
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
    """The host has no further bytes: the part file is complete, or of another file."""
    if fault.headers.get("Content-Range", "").strip() == f"bytes */{had}":
        return
    part.unlink()
    raise DownloadFailedError("the file on the host has changed")


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
