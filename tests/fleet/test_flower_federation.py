"""A real federation: server, sites and runs as processes of their own, on this machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from faults_flower.fleet import Fleet

from protofed.runtime.child_process import OFFLINE
from tests.fleet.desks import SITES
from tests.fleet.test_equal import STATE, local, spec


def test_nothing_of_flower_is_loaded_unless_it_is_used() -> None:
    program = (
        "import sys, protofed, protofed.cli, protofed.experiment.runner;"
        "import protofed.deploy.site_worker;"
        "print([name for name in sys.modules if name.split('.')[0] == 'flwr'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_process_that_speaks_with_the_server_does_not_wait_for_torch() -> None:
    program = (
        "import sys, protofed.deploy.site_link;"
        "print([name for name in sys.modules if name.split('.')[0] == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def check_that_flower_calls_nobody(fleet: Fleet) -> None:
    """All of Flower's processes that are still there have our settings."""
    ours = {f"{key}={value}".encode() for key, value in OFFLINE.items()}
    checked = 0
    for pid in fleet.left():
        with suppress(OSError):  # it has ended by now
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            there = {*Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
            if there != {b""} and (b"flower_server" in words or b"site_link" in words):
                assert ours <= there
                checked += 1
    assert checked >= 1 + len(SITES)


@pytest.mark.long
@pytest.mark.timeout(900)  # dozens of processes start: minutes on a busy machine
def test_three_methods_at_once_give_the_bits_of_the_local_engine(
    images: Path, tmp_path: Path
) -> None:
    """Three sites with registered keys behind TLS; FPL and PGCT send more than weights."""
    specs = {
        name: spec(name, evaluate_every=2, net="moon-cnn") for name in ("fedavg", "fpl", "pgct")
    }
    clone = tmp_path / "fleet" / "protofed"  # who works beside a clone must not be in its way
    clone.mkdir(parents=True)
    (clone / "pyproject.toml").write_text('[project]\nname = "protofed"\nversion = "1"\n')
    with Fleet(tmp_path / "fleet", images, SITES) as fleet:
        # At once, as starting Flower's processes is most of the work; no run must disturb another.
        patience = ("--deadline", "300", "--wait", "300")
        runs = {n: fleet.submit(raw, tmp_path / n, *patience) for n, raw in specs.items()}
        alone = {n: local(raw, images, tmp_path / f"local-{n}") for n, raw in specs.items()}
        for name, run in runs.items():
            assert run.wait(600) == 0, fleet.said(name)
            for file in ("scores.jsonl", STATE):
                assert (tmp_path / name / file).read_bytes() == (alone[name] / file).read_bytes()
            assert not (tmp_path / name / "events.jsonl").exists()
        check_that_flower_calls_nobody(fleet)
    assert fleet.left() == []
