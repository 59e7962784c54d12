"""One of Flower's own processes under our watch: it ends with the process that started it."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from protofed.core.lifeline import end_with_the_pipe

LOOK = 0.5  # seconds
HEARTBEAT = 12  # seconds; who misses two of them is gone. Flower's own 30 cannot be set
MAINS = {
    "superlink": "flwr.superlink.cli",
    "supernode": "flwr.supernode.cli",
}


def look_more_often() -> None:
    """Let a SuperNode look for messages twice a second; Flower's own three seconds are fixed."""
    loop = import_module("flwr.supernode.start_client_internal")

    class Time:
        """What the loop uses of `time`, with short naps."""

        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(min(seconds, LOOK))

    loop.time = Time  # type: ignore[attr-defined]


def beat_more_often() -> None:
    """Let a SuperNode that is gone be missed sooner; until then, none with its key is let in."""
    for name in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        import_module(name).HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT  # type: ignore[attr-defined]


def end_with_a_child() -> None:
    """End this process when one that it has started is dead and nobody looks after it.

    That is Flower's SuperExec, without which a SuperNode takes messages and never answers one.
    """

    def wait() -> None:
        while True:
            time.sleep(LOOK)
            with suppress(ChildProcessError):  # none is there yet
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                time.sleep(LOOK)  # time enough for whoever waits for a child of his own
                if ended and os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG):
                    os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """``flower_process NAME ARGUMENTS... --life HANDLE``."""
    _, name, *rest = sys.argv
    *arguments, _, life = rest
    end_with_the_pipe(int(life))
    end_with_a_child()
    if name == "supernode":
        look_more_often()
        beat_more_often()
    sys.argv = [f"flower-{name}", *arguments]
    getattr(import_module(MAINS[name]), f"flower_{name}")()


if __name__ == "__main__":
    main()
