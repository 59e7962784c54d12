"""`protofed data get` as people call it, and as a real process that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protofed.data.benchmarks import load_benchmark
from tests.cli.conftest import Cli
from tests.data.publishing import PUBLISHERS, Truth
from tests.data.serving import Host, serving

PROTOFED = [sys.executable, "-c", "from protofed.cli import main; main()"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host of the sets for which no checksum is published, so that small ones will do."""
    with serving(tmp_path / "host") as started:
        monkeypatch.setenv("PROTOFED_MIRROR", started.url)
        monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
        yield started


def published(host: Host, name: str) -> Truth:
    (host.root / name).mkdir(parents=True)
    return PUBLISHERS[name](host.root / name)


def test_licence_and_citation_come_first_and_the_files_are_used(
    cli: Cli, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(host, "pacs")
    ended = cli("data", "get", "pacs", "--to", "mine", "--yes", "--json")
    assert ended.code == 0
    first = ended.err.index("licence: none stated")
    assert first < ended.err.index("cite: Li, Yang, Song, Hospedales") < ended.err.index("fetching")
    assert "checksum: none is published" in ended.err
    assert "note: " in ended.err  # these are not the 1,670 published photographs
    told = json.loads(ended.out)
    assert told["sets"] == [
        {"name": "pacs", "folder": str(Path("mine/pacs").absolute()), "fetched": True}
    ]
    assert f"export PROTOFED_DATA={Path('mine').absolute()}" in ended.err
    monkeypatch.setenv("PROTOFED_DATA", str(Path("mine").absolute()))
    again = cli("data", "get", "pacs", "--yes")
    assert again.out == f"pacs: already in {Path('mine/pacs').absolute()}\n"
    rows = {row["name"]: row for row in json.loads(cli("data", "list", "--json").out)}
    assert (rows["pacs"]["missing"], rows["vlcs"]["missing"]) == ([], ["vlcs"])
    assert rows["digits"]["missing"] == ["mnist", "svhn", "usps"]  # mnistm is on request
    listed = [row.rstrip() for row in cli("data", "list").out.splitlines()]
    assert next(row for row in listed if row.startswith("pacs")).endswith("PROTOFED_DATA")
    assert next(r for r in listed if r.startswith("vlcs")).endswith("protofed data get vlcs")
    assert "photo" in cli("data", "show", "pacs").out


def test_nobody_to_ask_means_no(cli: Cli, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        ended = cli("data", "get", "digits", "--to", "mine")
    assert ended.code == 2
    assert ended.err.splitlines()[-1].endswith("pass --yes to accept it")
    for name in ("mnist", "mnistm", "svhn", "usps"):
        assert f"{name}: " in ended.err
    assert host.asked == []
    assert not Path("mine").exists()


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 2)])
def test_a_person_is_asked(
    cli: Cli, host: Host, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    import pty

    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    with open(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        ended = cli("data", "get", "pacs", "--to", "mine")
    os.close(ours)
    assert ended.code == code
    assert "Fetch under these terms?" in ended.err
    assert bool(host.asked) == (code == 2)  # and then the host has not got it
    assert ("HTTP 404" in ended.err) == (code == 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("get pacs", "pass --to FOLDER, or set PROTOFED_DATA"),
        ("get pasc --to a", "unknown public set 'pasc'; did you mean 'pacs'?"),
        ("get mnist --to a --side 64 --yes", "keep their size"),
        ("get pacs --to a --side 4", "8<=x<=512"),
        ("show vlcs", "`protofed data get vlcs` fetches it"),
    ],
)
def test_a_fault_is_told_with_what_to_do(cli: Cli, words: str, told: str) -> None:
    ended = cli("data", *words.split())
    assert ended.code == 2
    assert told in ended.err
    assert not Path("a").exists()


@pytest.mark.long
def test_a_killed_process_goes_on_where_it_was(host: Host, tmp_path: Path) -> None:
    truth = published(host, "pacs")
    whole = {path.name: path.read_bytes() for path in (host.root / "pacs").iterdir()}
    host.pause, host.block = threading.Event(), 2**16
    words = ["data", "get", "pacs", "--yes", "--to", "mine"]
    started = subprocess.Popen([*PROTOFED, *words], stderr=subprocess.DEVNULL)
    part = Path("mine/pacs/.get-pacs/photo.tgz.part")
    began = time.monotonic()
    while not (part.exists() and part.stat().st_size) and time.monotonic() - began < 240:
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    had = part.read_bytes()
    assert 0 < len(had) < len(whole["photo.tgz"])
    assert whole["photo.tgz"].startswith(had)
    assert not list(Path("mine").rglob("*.npz"))
    host.pause.set()
    host.pause = None
    host.asked.clear()
    done = subprocess.run([*PROTOFED, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert host.asked[0] == ("/pacs/photo.tgz", f"bytes={len(had)}-")
    for file, arrays in truth.items():
        with np.load(f"mine/pacs/{file}") as stored:
            assert np.array_equal(stored["x"], arrays["x"])
    assert not Path("mine/pacs/.get-pacs").exists()


def test_the_fetched_set_loads(cli: Cli, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = published(host, "office-caltech")
    monkeypatch.setenv("PROTOFED_DATA", str(Path("mine").absolute()))
    assert cli("data", "get", "office-caltech", "--yes").code == 0
    (dslr,) = load_benchmark("office-caltech", ("dslr",), side=64).domains
    wanted = truth["dslr.npz"]["x"][[row % 10 <= 7 for row in range(40)]]
    assert np.array_equal(dslr.train.images.numpy(), wanted)
