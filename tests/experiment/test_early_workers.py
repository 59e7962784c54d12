"""When worker processes start before the first round, and that none is left if nothing comes of it.

The real ones are in tests/engines/test_multiprocess.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.errors import ProtofedError
from protofed.experiment import runner
from protofed.experiment.runner import least_seconds, run, start_early
from protofed.spec.experiment_spec import Experiment
from tests.experiment.conftest import Make

LONG = {"kind": "shares", "clients": 3, "samples": 300}
ENOUGH = 3.0  # seconds, as outside the tests, where conftest keeps workers from starting


class CountedPool:
    """A pool without processes."""

    def __init__(self, count: int):
        self.count, self.ended = count, False

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def tiny(tiny: Make) -> Make:
    """Images of 32 x 32 pixels, for which the speed is on record."""
    data = {"name": "digits-mini", "domains": ["optical", "print"], "side": 32}
    return lambda **sections: tiny(**{"data": data, **sections})


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[CountedPool]:
    """The pools that are started, on a machine with room for two workers."""
    started: list[CountedPool] = []

    def pool(count: int) -> CountedPool:
        started.append(CountedPool(count))
        return started[-1]

    monkeypatch.setattr(runner, "WorkerPool", pool)
    monkeypatch.setattr(runner, "worker_count", lambda participants, threads: 2)
    monkeypatch.setattr(runner, "START_WORKERS_AFTER", ENOUGH)
    return started


def test_a_short_run_starts_none(tiny: Make, tmp_path: Path, pools: list[CountedPool]) -> None:
    run(tiny(), tmp_path / "a")
    assert pools == []


def test_the_time_of_training_grows_with_all_that_is_trained_on(tiny: Make) -> None:
    one = tiny(participation=0.5, training={"epochs": 2})
    assert least_seconds(one, 3, 20_000) == 3 * 0.5 * 2 * 20_000 / 10_000  # 32 x 32 pixels
    larger = tiny(data={"name": "digits-mini", "side": 64})
    assert least_seconds(larger, 3, 20_000) == 3 * 20_000 * 4 / 10_000
    assert least_seconds(one, 3, None) == 0


@pytest.mark.parametrize(("rounds", "started"), [(0, 0), (29, 0), (30, 2), (1000, 2)])
def test_auto_starts_them_if_training_surely_takes_longer(
    rounds: int, started: int, tiny: Make, pools: list[CountedPool]
) -> None:
    start_early(tiny(), "auto", rounds, clients=3, images=1000)
    assert [pool.count for pool in pools] == [started][: bool(started)]


@pytest.mark.parametrize(("workers", "started"), [(0, []), (1, [1]), (5, [3])])
def test_a_given_number_is_started_at_once(
    workers: int, started: list[int], tiny: Make, pools: list[CountedPool]
) -> None:
    start_early(tiny(), workers, 1, clients=3, images=None)
    assert [pool.count for pool in pools] == started


@pytest.mark.parametrize(
    ("partition", "before"), [(LONG, True), ({"kind": "equal", "clients": 3}, False)]
)
def test_they_start_before_the_images_are_loaded_and_end_if_that_fails(
    partition: dict[str, Any],
    before: bool,
    tiny: Make,
    tmp_path: Path,
    pools: list[CountedPool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(experiment: Experiment) -> None:
        assert [pool.ended for pool in pools] == [False][:before]
        raise ProtofedError("no images")

    monkeypatch.setattr(runner, "build_federation", missing)
    with pytest.raises(ProtofedError, match="no images"):
        run(tiny(partition=partition, rounds=100), tmp_path / "a")
    assert [pool.ended for pool in pools] == [True][:before]


def test_images_that_only_the_data_count_start_them_as_well(
    tiny: Make, tmp_path: Path, pools: list[CountedPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        assert given[-1] is pools[0]
        raise ProtofedError("far enough")

    monkeypatch.setattr(runner, "create_local_engine", stop)
    with pytest.raises(ProtofedError, match="far enough"):
        run(tiny(partition={"kind": "equal", "clients": 3}, rounds=100), tmp_path / "a")
    assert [pool.ended for pool in pools] == [True]


def test_rounds_that_are_done_do_not_count(
    tiny: Make, tmp_path: Path, pools: list[CountedPool]
) -> None:
    """100 rounds are worth workers, but only two are asked for at a time."""
    experiment = tiny(partition={"kind": "shares", "clients": 3, "samples": 150}, rounds=100)
    assert least_seconds(experiment, 100, 450) > runner.START_WORKERS_AFTER
    run(experiment, tmp_path / "a", stop_after=2)
    run(experiment, tmp_path / "a", stop_after=4)
    assert pools == []
