"""A site's supervisor: a link to the server and a worker, both started again when they end."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from time import monotonic
from time import sleep as nap

from protofed.data.npz_store import cache_folder
from protofed.deploy.confine import interpreter_folders
from protofed.deploy.policy import read_policy
from protofed.deploy.preflight import (
    FoundImages,
    JoiningSite,
    check_keys,
    describe_images,
    look_at_images,
)
from protofed.deploy.request_judge import ANSWERED, AnswerLedger
from protofed.deploy.serve import LOCAL
from protofed.engines.site_protocol import SITE_NAME
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.runtime.atomic_io import file_lock
from protofed.runtime.child_process import (
    ChildProcess,
    close_children,
    flower_environment,
    stop_on_sigterm,
)
from protofed.runtime.console import name_some, print_line

LOOK = 0.5  # seconds between two looks at the processes
RETRY = 3.0  # seconds before a process that has ended is started again
LEAVE = 3.0  # seconds in which a link signs off
PID = "join.pid"


def join_federation(site: JoiningSite) -> None:
    """Take part in a federation until stopped.

    Checks keys, policy and images, then runs two processes and restarts each that ends. The link
    speaks with the server and cannot read the images; the worker has the images and speaks with
    nobody but the link.
    """
    images = _check(site)
    site.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    stop_on_sigterm()
    with (
        file_lock(site.home, _busy(site)),
        tempfile.TemporaryDirectory(prefix="protofed-") as place,  # a socket's path must be short
    ):
        (site.home / PID).write_text(str(os.getpid()))
        _introduce(site, images)
        _tell_of_open_images(site)
        children: dict[str, ChildProcess] = {}
        try:
            _supervise(site, Path(place) / "worker.sock", children)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            print_line(f"leaving {site.server} ...")
            close_children(children.values(), LEAVE)
            (site.home / PID).unlink(missing_ok=True)
            print_line("left")


def _busy(site: JoiningSite) -> str:
    """The error of a second `join` with the same home."""
    record = site.home / PID
    number = record.read_text() if record.exists() else ""
    pid = f", process {number}" if number.isdecimal() else ""
    return (
        f"site {site.name} has joined on this machine already ({site.home}{pid})\n"
        f"stop that process first; another site needs a name and a home of its own"
    )


def _introduce(site: JoiningSite, images: FoundImages) -> None:
    """Print what is about to happen."""
    many = describe_images(images)
    print_line(f"joining {site.server} as {site.name}: {many} from {site.data}")
    if images.bad:
        unread = count_noun(len(images.bad), "file")
        print_line(f"skipping {unread} that cannot be read as images: {name_some(images.bad)}")
    source = f"{site.policy}, to apply a change restart `join`" if site.policy else "the default"
    print_line(f"policy ({source}):")
    for line in read_policy(site.policy).describe():
        print_line(f"  {line}")


def _supervise(site: JoiningSite, socket: Path, children: dict[str, ChildProcess]) -> None:
    ended: dict[str, float] = {}
    while True:
        for what in ("worker", "link"):
            child = children.get(what)
            if child and child.running:
                continue
            if child:
                code = child.process.returncode
                print_line(f"the {what} ended (exit code {code}, see {what}.log); trying again")
                child.close()
                del children[what]
                ended[what] = monotonic()
            if monotonic() - ended.get(what, -RETRY) >= RETRY:
                children[what] = _start(what, site, socket)
        nap(LOOK)


def _start(what: str, site: JoiningSite, socket: Path) -> ChildProcess:
    """One of a site's two processes: the link to the server, or the worker with the images."""
    command = _link(site, socket) if what == "link" else _worker(site, socket)
    env = {
        **flower_environment(site.home),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    confined = [sys.executable, "-m", "protofed.deploy.confine", *command]
    return ChildProcess(confined, env, site.home / f"{what}.log", speaks=True)


def _worker(site: JoiningSite, socket: Path) -> list[str]:
    """The process with the images: it may read and write, and call nobody."""
    policy = ["--policy", str(site.policy)] if site.policy else []
    paths = ["--data", str(site.data), "--home", str(site.home), "--socket", str(socket)]
    return ["--no-tcp", "--", "protofed.deploy.site_worker", "--name", site.name, *paths, *policy]


def _link(site: JoiningSite, socket: Path) -> list[str]:
    """The process that speaks with the server: it may read its keys, and write to one folder."""
    folder = site.home / "link"
    folder.mkdir(exist_ok=True, mode=0o700)
    keys = ["--keys", str(site.keys)] if site.keys else []
    most = str(read_policy(site.policy).most_bytes)
    who = ["--server", site.server, "--name", site.name, "--most", most, *keys]
    places = ["--folder", str(folder), "--socket", str(socket)]
    rules = [f"--read={place}" for place in _readable(site, socket)]
    words = ["protofed.deploy.site_link", *who, *places]
    return [*rules, f"--write={folder}", "--", *words]


def _readable(site: JoiningSite, socket: Path) -> list[Path]:
    """What the link has to read beside Python itself."""
    return [socket.parent, *([site.keys] if site.keys else [])]


def _tell_of_open_images(site: JoiningSite) -> None:
    """Say so where the images lie at a place that the link has to be able to read."""
    allowed = [*interpreter_folders(), *([site.keys] if site.keys else [])]
    for images in (site.data, cache_folder()):
        around = [place for place in allowed if images.resolve().is_relative_to(place.resolve())]
        if around:
            print_line(
                f"note: {images} lies below {around[0]}, where the process that speaks with the"
            )
            print_line("server must be able to read; at another place it would be shut out from it")


def _check(site: JoiningSite) -> FoundImages:
    """Tell what is wrong here, and not by processes that end again and again; what images are."""
    host = site.server.rpartition(":")[0]
    if not host or not site.server.rpartition(":")[2].isdigit():
        raise ProtofedError(f"write the server as HOST:PORT, got {site.server}")
    if not SITE_NAME.fullmatch(site.name):
        raise ProtofedError(
            f"'{printable_text(site.name, 80)}' cannot be the name of a site",
            hint="<name> takes up to 40 letters, digits, - and _, the first a letter or digit",
        )
    if site.keys:
        check_keys(site.keys, site.name)
    elif host not in (LOCAL, "localhost"):
        raise ProtofedError(
            f"{host} is another machine, which takes no site without keys",
            hint=f"give <keys>, the folder that the coordinator made for {site.name} with "
            f"`protofed keys`",
        )
    read_policy(site.policy)
    if (site.home / ANSWERED).exists():
        AnswerLedger(site.home)  # a damaged one is reported here, not in a log
    return look_at_images(site.data, site.name)
