"""Processes that decode images, when the one that started them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.data.pictures import drawing

KILLED = """
import multiprocessing, os, signal, sys
from protofed.data import image_decoding

if __name__ == "__main__":
    image_decoding.usable_cores = lambda: 2  # also where there is one, which would start no process
    path, how = sys.argv[1], int(sys.argv[2])
    work = [(24, [path]), *[(24, [path] * 100_000)] * 8]
    results = image_decoding._in_parallel(work, 10_000)
    assert len(next(results)) == 1  # now its workers are busy for a minute
    assert len(multiprocessing.active_children()) == 2
    os.kill(os.getpid(), how)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_they_end_with_it(how: signal.Signals, tmp_path: Path) -> None:
    Image.fromarray(drawing(0, 0)).save(tmp_path / "a.png")
    (tmp_path / "script.py").write_text(KILLED)
    words = [sys.executable, *map(str, (tmp_path / "script.py", tmp_path / "a.png", int(how)))]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    try:
        parent.communicate(timeout=120)  # ends when nobody holds the pipe any more
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        raise
    assert parent.returncode == -how
