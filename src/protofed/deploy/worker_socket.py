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
    """Open a socket at `place`, with a new key in a file beside it.

    Only its owner can read the key, and only a caller with the key is heard.
    """
    place.unlink(missing_ok=True)
    key = _key(place)
    key.unlink(missing_ok=True)
    secret = secrets.token_bytes(32)
    handle = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(secret)
    return Listener(str(place), family=FAMILY, backlog=16, authkey=secret)


def ask_worker(place: Path, content: bytes, patience: float) -> bytes:
    """Send a request to the worker and return its answer.

    A worker that died is asked again for `patience` seconds, because it is being restarted;
    repeating a request changes nothing there.
    """
    end = time.monotonic() + patience
    while True:
        with suppress(OSError, EOFError, AuthenticationError):
            return _once(place, content)
        if time.monotonic() > end:
            raise TimeoutError(f"the site's worker does not answer at {place}")
        time.sleep(PAUSE)


def _once(place: Path, content: bytes) -> bytes:
    with Client(str(place), family=FAMILY, authkey=_key(place).read_bytes()) as connection:
        connection.send_bytes(content)
        return connection.recv_bytes()


def _key(place: Path) -> Path:
    return place.with_name(f"{place.name}.key")
