"""The socket between a site's link to the server and its worker; imports no torch.

Bytes pass, never objects. Who does not hold the key, a file that only its owner can read, is not
heard.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

FAMILY = "AF_UNIX"
NO_QUESTION = b""  # the worker's answer to what is none
PAUSE = 0.5  # seconds between attempts to reach a worker that is being started again


def open_worker_socket(place: Path) -> Listener:
    """A socket at a place, with a fresh key beside it."""
    place.unlink(missing_ok=True)
    key = _key(place)
    key.unlink(missing_ok=True)
    secret = secrets.token_bytes(32)
    handle = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(secret)
    return Listener(str(place), family=FAMILY, backlog=16, authkey=secret)


def ask_worker(place: Path, letter: bytes, patience: float) -> bytes:
    """The worker's answer; one that died is asked again, which changes nothing, for a while."""
    end = time.monotonic() + patience
    while True:
        with suppress(OSError, EOFError, AuthenticationError):
            return _once(place, letter)
        if time.monotonic() > end:
            raise TimeoutError(f"the site's worker does not answer at {place}")
        time.sleep(PAUSE)


def _once(place: Path, letter: bytes) -> bytes:
    with Client(str(place), family=FAMILY, authkey=_key(place).read_bytes()) as connection:
        connection.send_bytes(letter)
        return connection.recv_bytes()


def _key(place: Path) -> Path:
    return place.with_name(f"{place.name}.key")
