"""The server of a federation: Flower's SuperLink on this machine alone, and a gate before it."""

from __future__ import annotations

import errno
import http.client
import os
import secrets
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from protofed.deploy.flower_server import SECRET_FILE, SECRET_HEADER
from protofed.errors import ProtofedError, printable_text
from protofed.runtime.atomic_io import atomic_write_json, file_lock
from protofed.runtime.child_process import ChildProcess, flower_environment, stop_on_sigterm
from protofed.runtime.console import print_line
from protofed.runtime.json_files import read_json_table

LOCAL = "127.0.0.1"
RECORD = "serve.json"
STARTING = 90.0  # seconds
LAST_LINES = 8  # of a log, in an error
SECRET = "secret"  # the file with the word that opens the SuperLink


class RunningServer(NamedTuple):
    """A server that runs on this machine, as `submit` finds it.

    `port` is that of Flower's SuperLink, `ca` the file of its authority ("" without TLS), `sites`
    are those with a registered key, and `secret` opens it to its owner.
    """

    port: int  # of the SuperLink
    ca: str  # file of the authority that signs for it; "" without TLS
    sites: tuple[str, ...]  # whose keys are registered
    secret: str = ""  # opens it to those who can read the server's files

    @property
    def url(self) -> str:
        """Where the SuperLink answers, on this machine alone."""
        return f"{'https' if self.ca else 'http'}://{LOCAL}:{self.port}"


def state_folder(name: str) -> Path:
    """Where a server or a site keeps its files: below $PROTOFED_HOME, else ~/.protofed.

    `name` is ``server`` or ``site-NAME``.
    """
    root = os.environ.get("PROTOFED_HOME")
    return (Path(root).expanduser() if root else Path.home() / ".protofed") / name


def serve_federation(home: Path, listen: tuple[str, int], keys: Path | None) -> None:
    """Serve a federation until stopped by Ctrl-C or SIGTERM.

    `home` holds the server's files, `listen` is the public address. `keys` is the folder that
    `protofed keys` made; without it there is no TLS and no check of who joins, so the address must
    be one of this machine alone.
    """
    stop_on_sigterm()
    try:
        _serve(home, listen, keys / "server" if keys else None)
    except (KeyboardInterrupt, SystemExit):
        print_line("stopped")
        raise


def _serve(home: Path, listen: tuple[str, int], own: Path | None) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file_lock(home, _busy(home)):
        (home / RECORD).unlink(missing_ok=True)  # of a server that was killed
        _check_free(*listen)
        found = RunningServer(
            free_port() if own else listen[1], str(own / "ca.crt") if own else "", _names(own)
        )
        log = ProcessLog(home / "superlink.log")
        secret = _new_secret(home)
        env = {**flower_environment(home), SECRET_FILE: str(secret)}
        with closing(ChildProcess(_superlink(found, own), env, log.file)) as link:
            _await(link, found, log)
            found = found._replace(secret=secret.read_text())
            where = f"{listen[0]}:{listen[1]}"

            def record(sites: tuple[str, ...]) -> None:
                told = {"port": found.port, "ca": found.ca, "sites": sites}
                atomic_write_json(home / RECORD, {**told, "pid": os.getpid(), "listens": where})

            ended = threading.Event()
            known = _follow_keys(own, found, record, ended) if own else ""
            record(_names(own))
            serving = f"serving on {where}{known}"
            try:
                _stand(link, own, listen, found, log, lambda: print_line(serving))
            finally:
                ended.set()
                (home / RECORD).unlink(missing_ok=True)


def _new_secret(home: Path) -> Path:
    """A file with a new secret that only its owner can read."""
    file = home / SECRET
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(secrets.token_hex(32))
    return file


def _follow_keys(
    own: Path,
    server: RunningServer,
    record: Callable[[tuple[str, ...]], None],
    ended: threading.Event,
) -> str:
    """Register the sites' keys, and keep doing so as the folder changes; return text for people."""
    from protofed.deploy.flower_client import FlowerClient
    from protofed.deploy.flower_server import KeyRegistry

    trust = ssl.create_default_context(cafile=server.ca)
    headers = {SECRET_HEADER: server.secret}
    client = FlowerClient(server.url, "flwr CLI", trust, lambda: headers)
    registry = KeyRegistry(client, own / "sites", print_line)

    def changed() -> None:
        record(registry.names)
        print_line(f"the sites with a key are now {', '.join(registry.names) or 'none'}")

    registry.update()
    registry.follow(changed, ended)
    return f" with TLS, for {', '.join(registry.names) or 'no site yet'}"


def _busy(home: Path) -> str:
    """The error of a second server with the same home."""
    record = home / RECORD
    told = read_json_table(record) if record.exists() else {}
    who = f" (process {told['pid']}, on {told['listens']})" if "pid" in told else ""
    return (
        f"a server already runs with its files in {home}{who}\n"
        f"stop that one, or give this one a home of its own"
    )


def _check_free(host: str, port: int) -> None:
    """Stop if the public port cannot be had; Flower's server would take long to report it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as fault:
        if fault.errno == errno.EADDRINUSE:
            taken = f"port {port} of {host} is taken by another program"
            raise ProtofedError(taken, hint="choose another <port>") from fault
        raise ProtofedError(
            f"cannot listen on {host}, port {port}: {fault.strerror}",
            hint="choose another <host>, an address of this machine",
        ) from fault


def _superlink(server: RunningServer, own: Path | None) -> list[str]:
    """The command that starts Flower's server."""
    command = [sys.executable, "-m", "protofed.deploy.flower_server"]
    place = ["--host", LOCAL, "--port", str(server.port)]
    nothing_runs = ["--isolation", "process", "--disable-runtime-dependency-installation"]
    return [*command, *place, *nothing_runs, *_tls(own)]


class ProcessLog:
    """The log file of a process, from where it stood when the process was started."""

    def __init__(self, file: Path):
        self.file = file
        self.start = file.stat().st_size if file.exists() else 0

    def end(self) -> str:
        """Its last lines, and where the others are."""
        text = self.file.read_bytes()[self.start :].decode(errors="replace")
        return f"the last lines of {self.file}:\n{_last_of(text)}"


def _last_of(text: str) -> str:
    """The last lines of what a process has said."""
    lines = [printable_text(line) for line in text.splitlines() if line.strip()]
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
    """A port of this machine that is free now; another program may take it."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def _await(link: ChildProcess, server: RunningServer, log: ProcessLog) -> None:
    """Wait until the SuperLink answers."""
    end = time.monotonic() + STARTING
    while not is_healthy(server):
        if not link.running or time.monotonic() > end:
            raise ProtofedError(f"Flower's server did not start; {log.end()}")
        time.sleep(0.2)


def is_healthy(server: RunningServer) -> bool:
    """Whether the SuperLink of a server answers, within five seconds."""
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


def _stand(
    link: ChildProcess,
    own: Path | None,
    listen: tuple[str, int],
    server: RunningServer,
    log: ProcessLog,
    ready: Callable[[], None],
) -> None:
    """Run until this process is stopped, or the SuperLink ends."""
    if own is None:
        ready()
        link.process.wait()
    else:
        from protofed.deploy.gate import serve_gate as stand

        def watch() -> None:
            link.process.wait()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
        upstream = f"https://{LOCAL}:{server.port}"
        files = (own / "server.crt", own / "server.key", own / "ca.crt", own / "sites")
        stand(listen, upstream, *files, ready, server.secret)
    if not link.running:
        raise ProtofedError(f"Flower's server ended by itself; {log.end()}")


def find_server(home: Path) -> RunningServer:
    """The server that runs on this machine with its files in `home`.

    It is an error if there is none, or if it does not answer.
    """
    record = home / RECORD
    if record.exists():
        told = read_json_table(record)
        secret = (home / SECRET).read_text()
        server = RunningServer(int(told["port"]), str(told["ca"]), tuple(told["sites"]), secret)
        if is_healthy(server):
            return server
    raise ProtofedError(
        f"no server runs here ({home}): start one with `protofed serve`, on this machine"
    )
