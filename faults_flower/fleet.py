"""A whole federation in processes of its own, all on this machine, none of which stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protofed.deploy.keys import make_keys

MARK = "PROTOFED_HOME"  # in the environment of every process of a federation
PATIENCE = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.1) -> float:
    """Wait until something holds; the seconds it took."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(pause)
    return time.monotonic() - began


class Fleet:
    """A server and sites that speak TLS, each site with a registered key; or plain text."""

    def __init__(self, folder: Path, images: Path, sites: Sequence[str], plain: bool = False):
        self.folder, self.images, self.sites = folder, images, sites
        self.keys = None if plain else folder / "keys"
        self.port = free_port()
        self.env = {**os.environ, MARK: str(folder / "home"), "OMP_NUM_THREADS": "1"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        if self.keys:
            make_keys(self.keys, f"127.0.0.1:{self.port}", self.sites)
        try:
            self.serve()
            for name in self.sites:
                self.join(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """A command of ours; what it says goes to a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "protofed", *words],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def said(self, name: str) -> str:
        """All that a command has said so far."""
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def serve(self) -> None:
        """Start the server, and wait until it stands."""
        before = self.said("serve").count("serving on")
        trust = ["--keys", str(self.keys), "--host", "127.0.0.1"] if self.keys else ["--insecure"]
        process = self.start("serve", "serve", "--port", str(self.port), *trust)

        def stands() -> bool:
            assert process.poll() is None, self.said("serve")
            return self.said("serve").count("serving on") > before

        wait_for(stands)

    def join(self, name: str) -> None:
        """Start a site."""
        trust = ["--keys", str(self.keys / name)] if self.keys else []
        policy = self.folder / "policy.toml"
        policy.write_text("min_examples = 1\n")  # our sites are tiny
        server, data = f"127.0.0.1:{self.port}", str(self.images / name)
        self.start(
            name, "join", server, "--name", name, "--data", data, "--policy", str(policy), *trust
        )

    def submit(self, spec: dict[str, Any], out: Path, *words: str) -> subprocess.Popen[bytes]:
        """Submit a run."""
        file = self._written(spec, out)
        who = ["--sites", ",".join(self.sites)]
        return self.start(out.name, "submit", file, "--out", str(out), *who, *words)

    def local(self, spec: dict[str, Any], out: Path) -> subprocess.Popen[bytes]:
        """The same in one process, without any of this."""
        file = self._written(spec, out)
        return self.start(out.name, "run", "--spec", file, "--out", str(out), "--workers", "0")

    def _written(self, spec: dict[str, Any], out: Path) -> str:
        file = self.folder / f"{out.name}.toml"
        file.write_text(_toml(spec))
        return str(file)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a command and to all it has started, at once."""
        for pid in tree_of(self.running[name].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self.running.pop(name).wait()

    def kill(self, name: str, word: str) -> None:
        """Kill what a command has started whose own command holds a word."""
        found = [pid for pid in tree_of(self.running[name].pid)[1:] if word in _command(pid)]
        assert found, f"{name} has not started {word}"
        os.kill(found[0], signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        end = time.monotonic() + 10
        while self.left() and time.monotonic() < end:
            time.sleep(0.1)
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """The processes of this federation that are still there, whoever started them."""
        mark = f"{MARK}={self.env[MARK]}".encode()
        return [pid for pid in _pids() if mark in _environment(pid).split(b"\0")]


def tree_of(pid: int) -> list[int]:
    """A process and all that it, or one of these, has started."""
    parents = {}
    for other in _pids():
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{other}/stat").read_text()
            parents[other] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _toml(spec: dict[str, Any], prefix: str = "") -> str:
    plain = {key: value for key, value in spec.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, table in spec.items():
        if isinstance(table, dict):
            lines += ["", f"[{prefix}{key}]", _toml(table, f"{prefix}{key}.")]
    return "\n".join(lines) + "\n"
