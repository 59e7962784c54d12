"""The server of a federation: Flower's SuperLink on this machine alone, and a gate before it."""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from protofed.core.disk import write_json, write_whole
from protofed.core.errors import ProtofedError, printable
from protofed.core.jsonfile import read_table
from protofed.core.lock import alone
from protofed.deploy.life import Child, flower_environment, stop_on_sigterm

LOCAL = "127.0.0.1"
RECORD = "serve.json"
STARTING = 90.0  # seconds
LAST_LINES = 8  # of a log, in an error
CONNECTION = "protofed"  # the name of our SuperLink in Flower's configuration


class Server(NamedTuple):
    """A server that runs on this machine, as `submit` finds it."""

    port: int  # of the SuperLink
    ca: str  # who signs for it; "" without TLS
    sites: tuple[str, ...]  # whose keys are registered


def state_folder(name: str) -> Path:
    """Where a server or a site keeps its files: below $PROTOFED_HOME, else ~/.protofed."""
    root = os.environ.get("PROTOFED_HOME")
    return (Path(root).expanduser() if root else Path.home() / ".protofed") / name


def serve(home: Path, listen: tuple[str, int], keys: Path | None) -> None:
    """Serve until stopped; without keys on this machine alone."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = keys / "server" if keys else None
    stop_on_sigterm()
    with alone(home, _busy(home)):
        (home / RECORD).unlink(missing_ok=True)  # of a server that was killed
        _check_free(*listen)
        found = Server(
            free_port() if own else listen[1], str(own / "ca.crt") if own else "", _names(own)
        )
        log = Log(home / "superlink.log")
        with closing(Child(_superlink(found, own), flower_environment(home), log.file)) as link:
            _await(link, found, log)
            _configure(found, home)
            if own:
                _register(own, found, home)
            where = f"{listen[0]}:{listen[1]}"
            write_json(home / RECORD, {**found._asdict(), "pid": os.getpid(), "listens": where})
            known = f" with TLS, for {', '.join(found.sites) or 'no site yet'}" if own else ""
            print(f"serving on {where}{known}", flush=True)
            try:
                _stand(link, own, listen, found, log)
            finally:
                (home / RECORD).unlink(missing_ok=True)


def _busy(home: Path) -> str:
    """What to say where another server has its files."""
    record = home / RECORD
    told = read_table(record) if record.exists() else {}
    who = f" (process {told['pid']}, on {told['listens']})" if "pid" in told else ""
    return (
        f"a server already runs with its files in {home}{who}\n"
        f"stop that one, or give this one a folder of its own with --home"
    )


def _check_free(host: str, port: int) -> None:
    """Stop where the public port cannot be had: Flower's server takes long to say so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as fault:
        if fault.errno == errno.EADDRINUSE:
            told = f"port {port} of {host} is taken by another program; choose another with --port"
        else:
            told = f"cannot listen on {host}, port {port}: {fault.strerror}"
        raise ProtofedError(told) from fault


def _superlink(server: Server, own: Path | None) -> list[str]:
    """The command that starts Flower's server."""
    command = [sys.executable, "-m", "protofed.deploy.flower_process", "superlink"]
    place = ["--host", LOCAL, "--port", str(server.port)]
    return [*command, *place, "--disable-runtime-dependency-installation", *_tls(own)]


class Log:
    """What a process has written since it was started."""

    def __init__(self, file: Path):
        self.file = file
        self.start = file.stat().st_size if file.exists() else 0

    def end(self) -> str:
        """Its last lines, and where the others are."""
        text = self.file.read_bytes()[self.start :].decode(errors="replace")
        return f"the last lines of {self.file}:\n{_last_of(text)}"


def _last_of(text: str) -> str:
    """The last lines of what a process has said."""
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (it said nothing)"


def _tls(own: Path | None) -> list[str]:
    if own is None:
        return ["--insecure"]
    files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
    for file in files.values():
        if not (own / file).is_file():
            raise ProtofedError(f"{own / file} is not there: make keys with `protofed keys`")
    pairs = [[f"--ssl-{option}", str(own / file)] for option, file in files.items()]
    return [*(word for pair in pairs for word in pair), "--enable-supernode-auth"]


def _names(own: Path | None) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (own / "sites").glob("*.pub"))) if own else ()


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def _await(link: Child, server: Server, log: Log) -> None:
    """Wait until the SuperLink answers."""
    end = time.monotonic() + STARTING
    while not healthy(server):
        if not link.running or time.monotonic() > end:
            raise ProtofedError(f"Flower's server did not start; {log.end()}")
        time.sleep(0.2)


def healthy(server: Server) -> bool:
    """Whether a SuperLink answers."""
    if server.ca:
        trust = ssl.create_default_context(cafile=server.ca)
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            LOCAL, server.port, timeout=5, context=trust
        )
    else:
        link = http.client.HTTPConnection(LOCAL, server.port, timeout=5)
    try:
        link.request("GET", "/health")
        return link.getresponse().status == 200
    except OSError:
        return False
    finally:
        link.close()


def _configure(server: Server, home: Path) -> None:
    """Tell Flower's commands where the SuperLink is."""
    trust = f'root-certificates = "{server.ca}"' if server.ca else "insecure = true"
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{LOCAL}:{server.port}"\n{trust}\n'
    )
    (home / "flwr").mkdir(exist_ok=True)
    write_whole(home / "flwr" / "config.toml", text.encode())


def _register(own: Path, server: Server, home: Path) -> None:
    """Let the SuperLink know the sites' keys; it keeps nothing when it ends."""
    keys = [str(own / "sites" / f"{name}.pub") for name in server.sites]
    command, env = [sys.executable, "-m", "protofed.deploy.register"], flower_environment(home)
    done = subprocess.run(  # at home: Flower takes a folder called as our connection for an app
        [*command, *keys], env=env, cwd=home, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ProtofedError(
            f"the sites' keys were not taken:\n{_last_of(done.stdout + done.stderr)}"
        )


def _stand(
    link: Child, own: Path | None, listen: tuple[str, int], server: Server, log: Log
) -> None:
    """Until somebody stops this process, or the SuperLink ends."""
    if own is None:
        link.process.wait()
    else:
        from protofed.deploy.proxy import serve as stand

        def watch() -> None:
            link.process.wait()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
        upstream = f"https://{LOCAL}:{server.port}"
        files = (own / "server.crt", own / "server.key", own / "ca.crt", own / "sites")
        stand(listen, upstream, *files)
    if not link.running:
        raise ProtofedError(f"Flower's server ended by itself; {log.end()}")


def find(home: Path) -> Server:
    """The server that runs on this machine with its files in a folder."""
    record = home / RECORD
    if record.exists():
        told = read_table(record)
        server = Server(int(told["port"]), str(told["ca"]), tuple(told["sites"]))
        if healthy(server):
            return server
    raise ProtofedError(
        f"no server runs here ({home}): start one with `protofed serve`, on this machine"
    )
