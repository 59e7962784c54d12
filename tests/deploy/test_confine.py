"""The process that speaks with the server cannot read images; the worker cannot call anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protofed.deploy import confine
from protofed.deploy import join as joining
from protofed.deploy.confine import TCP_SINCE, landlock_version
from protofed.deploy.preflight import JoiningSite
from tests.data.pictures import make

needs_landlock = pytest.mark.skipif(
    not landlock_version(), reason="this kernel has no Landlock, or forbids it"
)
# How every probe program begins.
TRIED = """
def tried(what):
    try:
        what()
        return "yes"
    except OSError as fault:
        return type(fault).__name__

"""
# What a taken-over link would try, in its first thread and in one that it starts.
READER = """
import json, os, subprocess, sys, threading
from pathlib import Path

picture, folder, key = map(Path, sys.argv[1:4])

def every():
    return {
        "open": tried(lambda: open(picture, "rb")),
        "list": tried(lambda: os.listdir(picture.parent)),
        "by /proc": tried(lambda: open(f"/proc/self/root{picture}", "rb")),
        "by a link": tried(lambda: os.link(picture, folder / "link")),
        "write": tried(lambda: open(picture.parent / "new", "wb")),
        "its keys": tried(lambda: open(key, "wb")),
    }

import wave  # modules can still be loaded
found = every()
later = {}
other = threading.Thread(target=lambda: later.update(every()))
other.start()
other.join()
found.update({f"{name}, in a thread": what for name, what in later.items()})
child = subprocess.run(["cat", str(picture)], capture_output=True)
found["by a child"] = "yes" if child.stdout else "PermissionError"
allowed = {"key": tried(lambda: open(key, "rb")), "own": tried(lambda: open(folder / "x", "wb"))}
print(json.dumps([found, allowed]))
"""
CALLER = """
import json, socket

print(json.dumps({
    "call": tried(lambda: socket.create_connection(("127.0.0.1", 9), 2)),
    "listen": tried(lambda: socket.create_server(("127.0.0.1", 0))),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX).connect("/nowhere")),
}))
"""


def confined(folder: Path, text: str, rules: list[str], *words: object) -> str:
    """What a program says that was started as `join` starts its processes."""
    (folder / "probe.py").write_text(TRIED + text)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "protofed.deploy.confine", *rules, "--", "probe"]
    done = subprocess.run(
        [*command, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_landlock
def test_the_process_that_speaks_with_the_server_cannot_read_the_images(tmp_path: Path) -> None:
    images, keys, own = make(tmp_path / "images", ("a",), each=2), tmp_path / "keys", tmp_path / "o"
    for folder in (keys, own, tmp_path / "code"):
        folder.mkdir()
    (keys / "site.key").write_text("secret")
    rules = [f"--read={keys}", f"--read={tmp_path / 'code'}", f"--write={own}"]
    picture = next(images.rglob("*.png"))
    said = confined(tmp_path / "code", READER, rules, picture, own, keys / "site.key")
    found, allowed = json.loads(said)
    assert len(found) == 13
    assert set(found.values()) <= {"PermissionError", "OSError"}, found  # the latter of links
    assert allowed == {"key": "yes", "own": "yes"}
    assert (keys / "site.key").read_text() == "secret"


@needs_landlock
def test_rights_are_not_given_up_where_another_thread_would_keep_them() -> None:
    program = (
        "import threading; from protofed.deploy.confine import restrict_files;"
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); restrict_files([])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "other threads would keep what this one gives up" in done.stderr


def test_a_system_that_cannot_shut_them_away_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    monkeypatch.setattr("runpy.run_module", lambda *words, **more: None)
    monkeypatch.setattr(sys, "argv", ["confine", "--read=/etc", "--", "this"])
    confine.main()
    assert "takes Linux with Landlock" in capsys.readouterr().out


def test_images_at_a_place_that_the_link_must_read_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    site = JoiningSite(
        "127.0.0.1:1", "north", tmp_path / "images", tmp_path / "home", tmp_path / "keys"
    )
    joining._tell_of_open_images(site)
    assert capsys.readouterr().out == ""
    joining._tell_of_open_images(site._replace(data=tmp_path / "keys" / "images"))
    assert f"lies below {tmp_path / 'keys'}" in capsys.readouterr().out


@pytest.mark.skipif(landlock_version() < TCP_SINCE, reason="this kernel's Landlock knows no TCP")
def test_the_worker_cannot_call_anybody(tmp_path: Path) -> None:
    found = json.loads(confined(tmp_path, CALLER, ["--no-tcp"]))
    assert (found["call"], found["listen"]) == ("PermissionError", "PermissionError")
    assert found["unix"] == "FileNotFoundError"


@needs_landlock
def test_a_site_starts_both_its_processes_confined(tmp_path: Path) -> None:
    site = JoiningSite("127.0.0.1:1", "north", tmp_path / "images", tmp_path, tmp_path / "keys")
    link, worker = joining._link(site, tmp_path / "s"), joining._worker(site, tmp_path / "s")
    assert link[: link.index("--")] == [
        f"--read={tmp_path}",
        f"--read={tmp_path / 'keys'}",
        f"--write={tmp_path / 'link'}",
    ]
    assert worker[0] == "--no-tcp"
