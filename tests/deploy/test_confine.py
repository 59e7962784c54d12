"""The process that speaks with the server cannot read images; the worker cannot call anybody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protofed.deploy.confine import TCP_SINCE, landlock_version
from tests.data.pictures import make

needs_landlock = pytest.mark.skipif(
    not landlock_version(), reason="this kernel has no Landlock, or forbids it"
)
SHIELDED = """
import os, sys
from pathlib import Path
from protofed.deploy.site_link import shield

images, keys = Path(sys.argv[1]), Path(sys.argv[2])
inside = open(next(images.rglob("*.png")), "rb")  # open before: stays open, as a log does
shield(images, [keys])
import ctypes, json, subprocess, wave  # modules can still be loaded

def tried(what):
    try:
        what()
        return "yes"
    except OSError as fault:
        return type(fault).__name__

picture = next(iter(sys.argv[3:]))
print(json.dumps({
    "open": tried(lambda: open(picture, "rb")),
    "list": tried(lambda: os.listdir(images)),
    "by /proc": tried(lambda: open(f"/proc/self/root{picture}", "rb")),
    "by a link": tried(lambda: os.link(picture, keys / "link")),
    "by a child": "yes" if subprocess.run(["cat", picture], capture_output=True).stdout else "no",
    "by its parent": tried(lambda: open(f"/proc/{os.getppid()}/cwd/x", "rb")),
    "write": tried(lambda: open(images / "new", "wb")),
    "keys": tried(lambda: open(keys / "site.key", "rb")),
}))
"""
SILENT = """
import json, socket
from protofed.deploy.confine import no_tcp

open_before = socket.create_server(("127.0.0.1", 0))
assert no_tcp()

def tried(what):
    try:
        what()
        return "yes"
    except OSError as fault:
        return type(fault).__name__

print(json.dumps({
    "call": tried(lambda: socket.create_connection(open_before.getsockname(), 2)),
    "listen": tried(lambda: socket.create_server(("127.0.0.1", 0))),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX).connect("/nowhere")),
}))
"""


def program(text: str, *words: object) -> dict[str, str]:
    import json

    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, words)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_landlock
def test_the_process_that_speaks_with_the_server_cannot_read_the_images(tmp_path: Path) -> None:
    images, keys = make(tmp_path / "images", ("a",), each=2), tmp_path / "keys"
    keys.mkdir()
    (keys / "site.key").write_text("secret")
    picture = next(images.rglob("*.png"))
    found = program(SHIELDED, images, keys, picture)
    assert found.pop("keys") == "yes"
    assert found.pop("by a child") == "no"
    assert found.pop("by its parent") in ("PermissionError", "FileNotFoundError")
    assert set(found.values()) == {"PermissionError"}, found


@needs_landlock
def test_images_that_cannot_be_shut_away_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from protofed.deploy import confine, site_link

    monkeypatch.setattr(confine, "read_only", lambda folders: pytest.fail("shut in"))
    site_link.shield(tmp_path / "keys" / "images", [tmp_path / "keys"])
    assert f"the images lie below {tmp_path / 'keys'}" in capsys.readouterr().out


def test_a_system_that_cannot_shut_them_away_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from protofed.deploy import confine, site_link

    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    site_link.shield(tmp_path / "images", [tmp_path / "keys"])
    assert "takes Linux with Landlock" in capsys.readouterr().out


@pytest.mark.skipif(landlock_version() < TCP_SINCE, reason="this kernel's Landlock knows no TCP")
def test_the_worker_cannot_call_anybody() -> None:
    found = program(SILENT)
    assert found == {"call": "PermissionError", "listen": "PermissionError", "unix": found["unix"]}
    assert found["unix"] == "FileNotFoundError"
