"""A server in the hands of somebody who wants to run code at a site, with Flower's own tools."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from faults_flower.fleet import free_port, wait_for

from protofed.deploy import flower_compat, run_channel
from protofed.deploy.run_channel import RunChannel
from protofed.engines.flower_engine import NoAnswer
from protofed.runtime.child_process import OFFLINE

PROJECT = """
[project]
name = "{name}"
version = "{version}"
description = "x"
license = "Apache-2.0"
dependencies = [{dependencies}]
[tool.flwr.app]
publisher = "{publisher}"
[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"
"""
# At import and on each message: a file that tells where this code ran, with a picture in it.
CLIENT = """
import os
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

pictures = sorted(Path("{images}").rglob("*.png"))
Path("{marks}", os.environ["WHO"] + "-{variant}").write_bytes(pictures[0].read_bytes())
app = ClientApp()

def steal(message, context):
    picture = ConfigRecord({{"b": pictures[0].read_bytes()}})
    return Message(RecordDict({{"c": picture}}), reply_to=message)

app.train()(steal)
app.evaluate()(steal)
app.query()(steal)
"""
SERVER = """
from flwr.serverapp import ServerApp

app = ServerApp()
"""
LYING = """
import sys
from flwr.superlink.servicer.fleet import fleet_handlers
from protofed.deploy.flower_client import bundle_hash

honest = fleet_handlers.get_run

def lie(request, state):
    answer = honest(request, state)
    answer.run.fab_hash = bundle_hash()
    return answer

fleet_handlers.get_run = lie
from flwr.superlink.cli import flower_superlink
sys.argv[0] = "flower-superlink"
flower_superlink()
"""


class Foreign(NamedTuple):
    """An app of somebody else."""

    variant: str
    name: str = "foreign"
    publisher: str = "stranger"
    version: str = "1.0.0"
    dependencies: str = '"flwr>=1.41,<1.42"'
    client: str = "foreign.client:app"
    server: str = "foreign.server:app"
    kinds: tuple[str, ...] = ("query",)
    seconds: float = 0.0  # before it sends anything
    more: tuple[tuple[str, str], ...] = ()  # other files of its bundle: path and text
    links: tuple[tuple[str, str], ...] = ()  # symbolic links in it: path and target
    claims: str = ""  # the hash that it is announced with

    def bundle(self, images: Path, marks: Path) -> bytes:
        """The app as Flower packs it."""
        words = {"images": images, "marks": marks, "variant": self.variant}
        files = {
            "pyproject.toml": PROJECT.format(**self._asdict()),
            "foreign/__init__.py": "",
            "foreign/client.py": CLIENT.format(**words),
            "foreign/server.py": SERVER,
            **dict(self.more),
        }
        stream, listing = BytesIO(), []
        with zipfile.ZipFile(stream, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name, (2024, 10, 1, 0, 0, 0)), text)
                digest = hashlib.sha256(text.encode()).hexdigest()
                listing.append(f"{name},{digest},{8 * len(text.encode())}")
            for name, target in self.links:
                link = zipfile.ZipInfo(name, (2024, 10, 1, 0, 0, 0))
                link.external_attr = 0o120777 << 16
                archive.writestr(link, target)
            archive.writestr(zipfile.ZipInfo(".info/CONTENT"), "\n".join(listing))
        return stream.getvalue()


class HostileServer:
    """Flower's own server and processes, with nothing of ours before them."""

    def __init__(self, folder: Path, lies: bool = False):
        self.folder, self.lies = folder, lies
        self.port, self.marks = free_port(), folder / "marks"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lines: list[RunChannel] = []
        self.found: dict[str, bytes | NoAnswer] = {}

    def start(self, name: str, words: list[str], env: Mapping[str, str] = {}) -> None:
        """A process whose output goes to a file."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        every = {**os.environ, **OFFLINE, "PATH": path, "FLWR_HOME": str(self.folder / name)}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    words,
                    env={**every, **env},
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def serve(self) -> None:
        """Start the server."""
        self.marks.mkdir(parents=True)
        place = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        program = [sys.executable, "-c", LYING] if self.lies else ["flower-superlink"]
        self.start("superlink", [*program, *place, "--isolation", "process"])
        wait_for(lambda: self._answers(), 60)

    def _answers(self) -> bool:
        import httpx

        try:
            address = f"http://127.0.0.1:{self.port}/health"
            return httpx.get(address, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def plain_site(self) -> None:
        """A SuperNode as Flower has it: the control, at which foreign code does run."""
        place = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        own = ["--insecure", *place, "--port", str(free_port())]
        self.start("plain", ["flower-supernode", *own], {"WHO": "plain"})

    def our_site(self, images: Path, home: Path, policy: Path) -> None:
        """A site of ours, whose policy allows nothing."""
        who = ["join", f"127.0.0.1:{self.port}", "--name", "north", "--data", str(images)]
        more = ["--policy", str(policy), "--home", str(home)]
        env = {"WHO": "ours", "OMP_NUM_THREADS": "1"}
        self.start("ours", [sys.executable, "-m", "protofed", *who, *more], env)

    def send(self, app: Foreign, images: Path) -> RunChannel:
        """Start a run with an app, and send messages to all sites; the line to that run."""
        content = app.bundle(images, self.marks)
        announced = app.claims or hashlib.sha256(content).hexdigest()
        with (
            patch.object(run_channel, "app_bundle", lambda: content),
            patch.object(run_channel, "bundle_hash", lambda: announced),
        ):
            line = self.line()
        time.sleep(app.seconds)
        for site in line.online():
            for kind in app.kinds:
                with patch.object(flower_compat, "QUERY", kind):
                    line.send(site.node, b"run me", 300.0, 1 << 20)
        return line

    def line(self) -> RunChannel:
        """A run under our own bundle, or under the one that stands in its place."""
        self.lines.append(RunChannel(f"http://127.0.0.1:{self.port}", "", ""))
        return self.lines[-1].__enter__()

    def told(self) -> list[bytes | NoAnswer]:
        """The first answer to each message that has come back by now."""
        for line in self.lines:
            waiting = [number for number in line.sent if number not in self.found]
            self.found |= line.answers(dict.fromkeys(waiting, 1 << 20)) if waiting else {}
        return list(self.found.values())

    def said(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ran_at(self, who: str) -> set[str]:
        """The apps whose code has run at a site."""
        return {mark.name.removeprefix(f"{who}-") for mark in self.marks.glob(f"{who}-*")}

    def close(self) -> None:
        """End everything."""
        from faults_flower.fleet import tree_of

        for line in self.lines:
            line.__exit__(None)
        for process in self.processes:
            for pid in tree_of(process.pid):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
            process.wait()


@contextmanager
def hostile_server(folder: Path, lies: bool = False) -> Iterator[HostileServer]:
    """A hostile server that is up."""
    server = HostileServer(folder, lies)
    try:
        server.serve()
        yield server
    finally:
        server.close()
