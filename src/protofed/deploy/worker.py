"""A site's worker: one process that holds torch and the images as long as the site has joined."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

from protofed.core.allocator import keep_memory
from protofed.core.errors import ProtofedError
from protofed.core.lifeline import end_with_the_pipe
from protofed.deploy import confine
from protofed.deploy.hatch import NO_QUESTION, listener
from protofed.deploy.policy import read_policy
from protofed.deploy.site import Desk


def main() -> None:
    """Answer at a socket until the parent ends."""
    parser = argparse.ArgumentParser()
    for name in ("name", "data", "home", "socket", "policy", "life"):
        parser.add_argument(f"--{name}", required=name != "policy")
    given = parser.parse_args()
    end_with_the_pipe(int(given.life))
    keep_memory()
    policy = read_policy(Path(given.policy) if given.policy else None)
    desk = Desk(given.name, Path(given.data), Path(given.home), policy)
    confine.no_tcp()  # whoever got in here could not call anybody; where the system can do that
    with listener(Path(given.socket)) as door:
        while True:
            # A client app that was killed while it waited: the next one asks again.
            with suppress(EOFError, OSError, AuthenticationError), door.accept() as connection:
                _serve(desk, connection)


def _serve(desk: Desk, connection: Connection) -> None:
    letter = connection.recv_bytes(desk.policy.most_bytes)
    try:
        answer = desk.answer(letter)
    except ProtofedError as fault:  # not even a question
        print(f"refused: {fault}", file=sys.stderr, flush=True)
        answer = NO_QUESTION
    connection.send_bytes(answer)


if __name__ == "__main__":
    main()
