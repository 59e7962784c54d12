"""What all tests share: equal surroundings, no trace outside the tests' own folder, long trials."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.analysis import parallel_runs
from protofed.experiment import runner

torch.set_num_threads(1)
# Who starts the tests in the background (nohup, some CI) may have Ctrl-C ignored, which all that
# they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What people set for themselves: colours, widths, proxies, places. A test sets what it is about.
PERSONAL = (
    *("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"),
    *("PROTOFED_MIRROR", "PROTOFED_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
    *("PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONSAFEPATH"),
)
for name in PERSONAL:
    os.environ.pop(name, None)
os.environ |= {"OMP_NUM_THREADS": "1", "TERM": "xterm"}
Once = Callable[[str, Callable[[Path], None]], Path]
LEFT_OUT = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of one test session have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _own_cache(shared_folder: Path) -> None:
    """Keep the rendered digits of one test session in a folder of its own."""
    os.environ["PROTOFED_CACHE"] = str(shared_folder / "protofed-cache")


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Once:
    """Have a folder filled by the first worker that needs it; the others wait and then read it."""

    def made(name: str, fill: Callable[[Path], None]) -> Path:
        place, done = shared_folder / name, shared_folder / f"{name}-made"
        with (shared_folder / f"{name}-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(place, ignore_errors=True)  # of a worker that failed on its way
                place.mkdir()
                fill(place)
                done.touch()
        return place

    return made


@pytest.fixture(scope="session", autouse=True)
def _stay_in_this_process() -> Iterator[None]:
    """Let short runs start no workers on a busy machine either, and look at grids more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "START_WORKERS_AFTER", 300.0)
        patch.setattr(parallel_runs, "LOOK", 0.05)
        yield


@pytest.fixture
def real_data() -> Path:
    """The folder of real benchmarks, where there is one."""
    folder = os.environ.get("PROTOFED_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real images: set PROTOFED_DATA to their folder")
    return Path(folder)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: one that began last would keep all others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the long tests that were left out; a worker tells it to whom it works for."""
    config: Any = items[0].config
    count = sum(item.get_closest_marker("long") is not None for item in items)
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + count
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's count; all workers have collected the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    count = config.stash.get(LEFT_OUT, 0)
    if count and "long" in config.option.markexpr:
        terminalreporter.write_line(f"long tests left out: {count}; make test-all runs them too")
