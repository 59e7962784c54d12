"""A site's worker: one process that holds torch and the images as long as the site has joined.

`join` starts it by `confine`: where Linux can do that, it cannot call anybody.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

from protofed.core.allocator import tune_malloc
from protofed.core.errors import ProtofedError
from protofed.core.lifeline import exit_with_pipe
from protofed.deploy.hatch import NO_QUESTION, open_worker_socket
from protofed.deploy.policy import read_policy
from protofed.deploy.site import RequestHandler


def worker_main_site() -> None:
    """Answer at a socket until the parent ends."""
    parser = argparse.ArgumentParser()
    for name in ("name", "data", "home", "socket", "policy", "life"):
        parser.add_argument(f"--{name}", required=name != "policy")
    given = parser.parse_args()
    exit_with_pipe(int(given.life))
    tune_malloc()
    policy = read_policy(Path(given.policy) if given.policy else None)
    limit_memory(policy.max_memory_gb)
    desk = RequestHandler(given.name, Path(given.data), Path(given.home), policy)
    with open_worker_socket(Path(given.socket)) as door:
        while True:
            # A link that was killed while it waited: the next one asks again.
            with suppress(EOFError, OSError, AuthenticationError), door.accept() as connection:
                _serve(desk, connection)


def limit_memory(gigabytes: float | None) -> None:
    """Let this process take so much memory, or four fifths of the machine's: what a server asks
    for beyond that is refused as one answer, instead of bringing the machine down.
    """
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = int(gigabytes * 1e9) if gigabytes else pages * 4 // 5
    with suppress(ValueError, OSError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _serve(desk: RequestHandler, connection: Connection) -> None:
    letter = connection.recv_bytes(desk.policy.most_bytes)
    try:
        answer = desk.answer(letter)
    except (ProtofedError, MemoryError) as fault:  # not even a question
        print(f"refused: {fault or type(fault).__name__}", file=sys.stderr, flush=True)
        answer = NO_QUESTION
    connection.send_bytes(answer)


if __name__ == "__main__":
    worker_main_site()
