"""One of Flower's own processes under our watch: it ends with the process that started it."""

from __future__ import annotations

import sys
from importlib import import_module

from protofed.deploy.life import end_with_the_parent

MAINS = {
    "superlink": "flwr.superlink.cli",
    "supernode": "flwr.supernode.cli",
}


def main() -> None:
    """``flower_process NAME ARGUMENTS... --life HANDLE``."""
    _, name, *rest = sys.argv
    *arguments, _, life = rest
    end_with_the_parent(int(life))
    sys.argv = [f"flower-{name}", *arguments]
    getattr(import_module(MAINS[name]), f"flower_{name}")()


if __name__ == "__main__":
    main()
