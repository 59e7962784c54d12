"""A site that is killed with a request and started again at once, with real processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from faults_flower.fleet import Fleet, wait_for

from protofed.experiment.run_folder import RunDir
from tests.fleet.desks import SPEC

pytestmark = pytest.mark.long

SITES = ("site-a", "site-b")
DEADLINE = 400.0


@pytest.mark.timeout(900)
def test_a_site_that_is_killed_with_a_request_and_rejoins_is_asked_again(
    images: Path, tmp_path: Path
) -> None:
    """Flower never sees it offline, so nothing but the new connection tells of the loss."""
    out = tmp_path / "out"
    slow = {**SPEC, "training": {"epochs": 100, "batch": 1}, "rounds": 1, "min_clients": 2}
    with Fleet(tmp_path / "fleet", images, SITES) as fleet:
        began = time.monotonic()
        run = fleet.submit(slow, out, "--deadline", f"{DEADLINE:g}", "--wait", "300")
        wait_for(lambda: "FedAvg, 1 round" in fleet.said("site-b"), 300)
        assert "trained in" not in fleet.said("site-b"), "too late to kill it"
        fleet.signal("site-b", signal.SIGKILL)
        fleet.join("site-b")
        assert run.wait(DEADLINE) == 0, fleet.said("out")
        assert time.monotonic() - began < DEADLINE
        assert "site-b has rejoined: what it had not answered is sent again" in fleet.said("out")
    assert fleet.said("serve").endswith("stopped\n")
    assert fleet.said("site-a").endswith("left\n")
    log = (tmp_path / "fleet" / "home" / "server" / "superlink.log").read_bytes()
    assert b"INFO" in log
    assert b"\x1b" not in log  # no colours in a file
    (line,) = RunDir(out).lines(out / "rounds.jsonl")
    assert sorted(line["legs"][0]) == ["0", "1"]
    assert not (out / "events.jsonl").exists()
