"""A site's supervisor: Flower's SuperNode and our worker, both started again when they end."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from protofed.core.errors import ProtofedError
from protofed.deploy.life import Child, flower_environment
from protofed.deploy.policy import read_policy
from protofed.deploy.serve import LOCAL, free_port
from protofed.engines.wire import SITE_NAME
from protofed.experiment.rundir import RunDir

LOOK = 0.5  # seconds between two looks at the processes
RETRY = 5.0  # seconds before a process that has ended is started again


class Site(NamedTuple):
    """A site that joins a federation."""

    server: str  # HOST:PORT
    name: str
    data: Path
    home: Path
    keys: Path | None = None
    policy: Path | None = None


def join(site: Site) -> None:
    """Take part until stopped.

    A SuperNode exits for good when it is refused, as it is after a crash until the server has
    noticed that it was gone; so it is tried again and again.
    """
    _check(site)
    site.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _on_signals()
    with (
        RunDir(site.home).locked(),
        tempfile.TemporaryDirectory(prefix="protofed-") as place,  # a socket's path must be short
    ):
        socket = Path(place) / "worker.sock"
        children: dict[str, Child] = {}
        try:
            _supervise(site, socket, children)
        finally:
            for child in children.values():
                child.close()


def _supervise(site: Site, socket: Path, children: dict[str, Child]) -> None:
    ended: dict[str, float] = {}
    while True:
        for what in ("worker", "node"):
            child = children.get(what)
            if child and child.running:
                continue
            if child:
                code = child.process.returncode
                print(f"{what} ended (exit code {code}), starting it again", flush=True)
                child.close()
                del children[what]
                ended[what] = time.monotonic()
            if time.monotonic() - ended.get(what, -RETRY) >= RETRY:
                children[what] = _start(what, site, socket)
        time.sleep(LOOK)


def _start(what: str, site: Site, socket: Path) -> Child:
    command = _node(site, socket) if what == "node" else _worker(site, socket)
    env = {
        **flower_environment(site.home),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return Child([sys.executable, "-m", *command], env, site.home / f"{what}.log")


def _worker(site: Site, socket: Path) -> list[str]:
    policy = ["--policy", str(site.policy)] if site.policy else []
    paths = ["--data", str(site.data), "--home", str(site.home), "--socket", str(socket)]
    return ["protofed.deploy.worker", "--name", site.name, *paths, *policy]


def _node(site: Site, socket: Path) -> list[str]:
    if site.keys:
        trust = ["--root-certificates", str(site.keys / "ca.crt")]
        trust += ["--auth-supernode-private-key", str(site.keys / "site.key")]
    else:
        trust = ["--insecure"]
    own = ["--host", LOCAL, "--port", str(free_port())]
    config = ["--node-config", f'worker="{socket}"']
    return [
        "protofed.deploy.flower_process",
        "supernode",
        "--superlink",
        site.server,
        *own,
        *config,
        *trust,
    ]


def _check(site: Site) -> None:
    host = site.server.rpartition(":")[0]
    if not host or not site.server.rpartition(":")[2].isdigit():
        raise ProtofedError(f"write the server as HOST:PORT, got {site.server}")
    if not SITE_NAME.fullmatch(site.name):
        raise ProtofedError(f"--name {site.name}: write letters, digits, - and _, at most 40")
    if site.keys is None and host not in (LOCAL, "localhost"):
        raise ProtofedError(
            f"{host} is another machine: give --keys, the folder that the coordinator made for "
            f"{site.name} with `protofed keys`"
        )
    if not site.data.is_dir():
        raise ProtofedError(f"--data {site.data}: no such folder; it must hold class/image")
    read_policy(site.policy)  # a fault of it is told here, not by a process that ends at once


def _on_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
