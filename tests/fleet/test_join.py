"""What `join` looks at before it joins, says while it does, and does when it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.deploy import join as module
from protofed.deploy.join import join_federation
from protofed.deploy.keys import make_keys
from protofed.deploy.preflight import JoiningSite
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import file_lock
from protofed.runtime.child_process import ChildProcess, close_children, stop_on_sigterm
from tests.cli.conftest import Cli

NOBODY = "localhost:9"
IDLE = "import time; print('here', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('here', flush=True); time.sleep(60)"
)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation") / "keys"
    make_keys(folder, "localhost", ["north", "south"])
    return folder


@pytest.fixture
def site(images: Path, keys: Path, tmp_path: Path) -> JoiningSite:
    return JoiningSite(NOBODY, "north", images / "site-a", tmp_path / "home", keys / "north")


def refusal(site: JoiningSite) -> str:
    """Why a site does not join."""
    with pytest.raises(ProtofedError) as fault:
        join_federation(site)
    assert not site.home.exists()
    return str(fault.value)


def test_keys_of_another_site_are_refused(site: JoiningSite) -> None:
    told = refusal(site._replace(name="south"))
    assert "are those of site north, not of south\nuse `name=north`, or the folder" in told


def test_a_folder_that_is_not_a_sites_is_refused_with_the_right_one(
    site: JoiningSite, keys: Path
) -> None:
    told = refusal(site._replace(keys=keys))
    assert "lacks ca.crt, site.key, site.pub, site.json" in told
    assert f"use `keys={keys / 'north'}`" in told
    assert "north, south, and none of west" in refusal(site._replace(keys=keys, name="west"))
    assert "it is the server's own" in refusal(site._replace(keys=keys / "server"))
    assert "there is no such folder" in refusal(site._replace(keys=keys / "nowhere"))


def test_keys_that_are_not_whole_are_refused(site: JoiningSite, keys: Path, tmp_path: Path) -> None:
    own = shutil.copytree(keys / "north", tmp_path / "own")
    (own / "site.pub").write_bytes((keys / "south" / "site.pub").read_bytes())
    assert "do not belong together" in refusal(site._replace(keys=own))
    (own / "site.key").unlink()
    assert "lacks site.key\nask the coordinator" in refusal(site._replace(keys=own))


def test_a_folder_without_images_is_refused(site: JoiningSite, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    assert "holds no class folders\nwrite class/image" in refusal(site._replace(data=own))
    (own / "cat").mkdir()
    (own / "cat" / "notes.txt").write_text("?")
    told = refusal(site._replace(data=own))
    assert "holds no image that can be read\ngive the folder that holds one folder" in told


@pytest.mark.parametrize("litter", [False, True])
def test_a_folder_one_level_too_high_is_refused_with_the_right_one(
    site: JoiningSite, images: Path, tmp_path: Path, litter: bool
) -> None:
    every = shutil.copytree(images, tmp_path / "every")
    if litter:  # files between the folders make domains look like classes
        (every / "site-a" / "readme.txt").write_text("?")
    told = refusal(site._replace(name="site-a", keys=None, data=every))
    assert f"use `data={every / 'site-a'}`" in told
    assert "domain/" not in told


def test_a_second_one_at_the_same_place_is_told_what_to_do(site: JoiningSite) -> None:
    site.home.mkdir()
    (site.home / "join.pid").write_text("4711")
    with file_lock(site.home, "busy"), pytest.raises(ProtofedError) as fault:
        join_federation(site)
    assert "site north has joined on this machine already" in str(fault.value)
    assert "process 4711" in str(fault.value)
    assert "another site needs a name and a home of its own" in str(fault.value)


def test_json_goes_with_check_alone(site: JoiningSite, cli: Cli) -> None:
    words = ["join", NOBODY, "--name", "north", "--data", str(site.data), "--json"]
    ended = cli(*words)
    assert ended.code == 2
    assert "--json goes with --check alone" in ended.err
    ended = cli(*words, "--check", "--home", str(site.home))
    assert ended.code == 1  # nobody serves there
    words[words.index("--data") + 1] = str(site.data.parent / "nowhere")
    told = cli(*words[:-1], "--check", "--home", str(site.home)).out
    assert "-> --data must be a folder of images" in told  # on the command line, options are flags
    assert '"name": "address"' in ended.out


def test_it_says_what_it_does_from_beginning_to_end(
    site: JoiningSite, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(what: str, site: JoiningSite, socket: Path) -> ChildProcess:
        return ChildProcess([sys.executable, "-c", IDLE], os.environ, site.home / f"{what}.log")

    looks = iter(range(3))

    def sleep(seconds: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt
        time.sleep(0)

    own = shutil.copytree(site.data, site.home.parent / "own")
    (own / "cat" / "notes.txt").write_text("?")
    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "nap", sleep)
    with pytest.raises(SystemExit) as ended:
        join_federation(site._replace(data=own))
    assert ended.value.code == 130
    assert not (site.home / "join.pid").exists()
    joining, bad, policy, *lines, leaving, left = capfd.readouterr().out.splitlines()
    assert joining == f"joining {NOBODY} as north: 18 images of 2 classes from {own}"
    assert bad == "skipping 1 file that cannot be read as images: cat/notes.txt"
    assert policy == "policy (the default):"
    assert (
        lines[0] == "  runs: any method; any number of rounds per run; any number of runs per day"
    )
    assert all(line.startswith("  ") and len(line) < 140 for line in lines)
    assert (leaving, left) == (f"leaving {NOBODY} ...", "left")


def test_a_policy_comes_with_the_advice_to_restart(
    site: JoiningSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_rounds = 3")
    module._introduce(site._replace(policy=policy), module._check(site))
    said = capsys.readouterr().out
    assert (
        f"policy ({policy}, to apply a change restart `join`):\n  runs: any method; up to 3" in said
    )


def test_sigterm_ends_a_process_once_as_an_exit_does() -> None:
    stop_on_sigterm()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one disturbs nobody


def test_children_are_ended_at_the_same_time(tmp_path: Path) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    every = [ChildProcess([sys.executable, "-c", STUBBORN], os.environ, log) for log in logs]
    while not all(log.read_text() for log in logs):
        time.sleep(0.02)
    began = time.monotonic()
    close_children(every, 3.0)
    assert time.monotonic() - began < 5.7  # one after the other would take 6 s
    assert [child.process.returncode for child in every] == [-signal.SIGKILL] * 2


def test_a_child_that_speaks_is_heard_here_and_its_faults_stand_in_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('for people'); print('for the log', file=sys.stderr)"
    child = ChildProcess([sys.executable, "-c", program], os.environ, tmp_path / "log", speaks=True)
    child.process.wait()
    child.close()
    assert capfd.readouterr().out == "for people\n"
    assert (tmp_path / "log").read_text() == "for the log\n"
