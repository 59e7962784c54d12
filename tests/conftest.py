"""What all tests share: one thread, no trace outside the test's own folder, real data if there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# Who starts the tests in the background (nohup, some CI) may have Ctrl-C ignored, which all that
# they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the rendered digits of one test session in a folder of its own."""
    os.environ["PROTOFED_CACHE"] = str(tmp_path_factory.getbasetemp().parent / "protofed-cache")


@pytest.fixture
def real_data() -> Path:
    """The folder of real benchmarks, where there is one."""
    folder = os.environ.get("PROTOFED_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real images: set PROTOFED_DATA to their folder")
    return Path(folder)
