"""Hands a run to the server on this machine, and follows it."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofed.core.errors import ProtofedError
from protofed.deploy.job import SOCKET, Job, lines
from protofed.deploy.life import flower_environment
from protofed.deploy.serve import CONNECTION, Server, find, healthy
from protofed.experiment.rundir import RunDir
from protofed.experiment.submitted import RECORD, experiment_of, offers_on_record

STARTING = 120.0  # seconds for Flower to start the process that plays the run
APP = Path(__file__).parent / "flower-app"


def finished(job: Job) -> RunDir | None:
    """The folder of a job whose run is finished: to read it, nobody has to be asked.

    The default folder's name depends on the sites' images, so that it is not known here.
    """
    folder = RunDir(Path(job.here) / job.out)
    if not job.out or not folder.done.exists() or not (folder.path / RECORD).exists():
        return None
    folder.check(experiment_of(job.spec, offers_on_record(folder.path)))
    return folder


def submit(job: Job, home: Path, hear: Callable[[dict[str, Any]], None]) -> None:
    """Let a job be played; `hear` is given each line of it. Ends with the job, for better or worse.

    The run ends with this process: who wants it to outlive a terminal lets it run in a service.
    """
    server = find(home)
    if unknown := [name for name in job.sites if server.sites and name not in server.sites]:
        raise ProtofedError(
            f"--sites: the server has no key of {', '.join(unknown)}; it has those of "
            f"{', '.join(server.sites)}\n`protofed keys` adds sites, then start the server again"
        )
    if not job.sites and not job.count:
        job = replace(job, sites=server.sites)
    with tempfile.TemporaryDirectory(prefix="protofed-") as place, _door(Path(place)) as door:
        file = job.write(Path(place))
        _flwr_run(home, file)
        connection = _called(door, server, home)
        with connection:
            connection.settimeout(None)
            _follow(connection, home, hear)


@contextmanager
def _door(place: Path) -> Iterator[socket.socket]:
    """Where the process that plays the run calls."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place / SOCKET))
        door.settimeout(1.0)
        door.listen(1)
        yield door


def _called(door: socket.socket, server: Server, home: Path) -> socket.socket:
    """The line to the process that plays the run, once Flower has started it."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end and healthy(server):
        with suppress(TimeoutError):
            connection, _ = door.accept()
            return connection
    raise ProtofedError(f"the run was not started; see {home / 'superlink.log'}")


def _flwr_run(home: Path, file: Path) -> None:
    command = ["flwr", "run", str(APP), CONNECTION, "--run-config", f'job="{file}"']
    env = flower_environment(home)
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProtofedError(f"Flower did not take the run: {done.stdout}{done.stderr}")


def _follow(connection: socket.socket, home: Path, hear: Callable[[dict[str, Any]], None]) -> None:
    for line in lines(connection):
        if "error" in line:
            raise ProtofedError(str(line["error"]))
        if "done" in line:
            return
        hear(line)
    raise ProtofedError(
        f"the process that played the run has died; see {home / 'superlink.log'}\n"
        f"`protofed submit --resume` goes on from the newest checkpoint"
    )
