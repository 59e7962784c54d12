"""Workers that several tests share: to start one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from protofed.engines.multiprocess import WorkerPool

Hire = Callable[[int], WorkerPool]


@pytest.fixture(scope="session")
def hire() -> Iterator[Hire]:
    """A pool of so many workers, the same one each time."""
    pools: dict[int, WorkerPool] = {}

    def hired(count: int) -> WorkerPool:
        if count not in pools:
            pools[count] = WorkerPool(count)
        return pools[count]

    yield hired
    for pool in pools.values():
        pool.end()
