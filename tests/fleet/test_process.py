"""Flower's processes under our watch end when what they need has ended."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import subprocess, sys, time
from protofed.deploy.flower_process import end_with_a_child

end_with_a_child()
child = subprocess.Popen(["sleep", "0.1"])
if sys.argv[1] == "waits":
    child.wait()
time.sleep(4)
"""


def ended(how: str) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, how], timeout=60).returncode


def test_a_process_ends_when_a_child_has_died_that_nobody_looks_after() -> None:
    assert ended("goes on") == 1


def test_a_child_that_somebody_waits_for_may_end() -> None:
    assert ended("waits") == 0
