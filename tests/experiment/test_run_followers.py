"""What a run says while it trains: inside a round, in a library, in a log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.engines.engine import reply_progress
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_followers import RunWatcher
from protofed.experiment.runner import run
from protofed.runtime.console import telling
from protofed.spec.experiment_spec import Experiment
from tests.runtime.test_progress_display import FakeClock

Make = Callable[..., Experiment]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def watcher(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> RunWatcher:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    made = RunWatcher(tiny(rounds=20), Path("a"))
    made.clock = FakeClock()
    made.began = made.last = made.clock()
    return made


def after_30_s(watcher: RunWatcher, capsys: Capture) -> str:
    """What a log is told after a silence of 30 s."""
    capsys.readouterr()
    assert isinstance(watcher.clock, FakeClock)
    watcher.clock.now += 30
    watcher.beat()
    return capsys.readouterr().err


def test_a_log_says_what_happens_in_a_long_first_round(
    watcher: RunWatcher, capsys: Capture
) -> None:
    with watcher:
        assert after_30_s(watcher, capsys) == "reading images  0:30 so far\n"
        telling.get()("decoding images", 1200, 3000)
        told = "decoding images: 1,200 of 3,000  1:00 so far\n"
        assert after_30_s(watcher, capsys) == told
        watcher(RoundReport(0, 20, None, float("nan")))
        assert after_30_s(watcher, capsys) == "training round 1/20  1:30 so far\n"
        reply_progress.get()(3, 10)
        told = "training round 1/20: 3 of 10 clients done  2:00 so far\n"
        assert after_30_s(watcher, capsys) == told
        watcher(RoundReport(1, 20, 50.0, 130.0))
        assert capsys.readouterr().err == "round 1/20  mean accuracy 50.00 %  2:10 left\n"
        told = "training round 2/20  mean accuracy 50.00 %  2:10 left\n"
        assert after_30_s(watcher, capsys) == told


def test_nobody_listens_after_a_run(watcher: RunWatcher) -> None:
    before = telling.get(), reply_progress.get()
    with watcher:
        assert (telling.get(), reply_progress.get()) != before
    assert (telling.get(), reply_progress.get()) == before


@pytest.mark.parametrize("workers", [0, 2])
def test_engines_tell_how_many_clients_are_done(workers: int, tiny: Make, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    token = reply_progress.set(lambda done, asked: heard.append((done, asked)))
    try:
        run(tiny(rounds=2), tmp_path / "a", workers=workers, progress=False)
    finally:
        reply_progress.reset(token)
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)] * 2


def test_a_short_run_in_a_library_prints_nothing_without_a_terminal(
    tiny: Make, tmp_path: Path, capsys: Capture
) -> None:
    run(tiny(), tmp_path / "a")
    assert capsys.readouterr() == ("", "")


def test_a_long_run_in_a_library_says_so_unless_it_is_silenced(
    tiny: Make, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.runtime.progress_display.LONGEST_SILENCE", 0.0)
    monkeypatch.setattr("protofed.runtime.progress_display.LOOK", 0.001)
    run(tiny(), tmp_path / "a", progress=False)
    assert capsys.readouterr().err == ""
    run(tiny(), tmp_path / "b")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == f"FedAvg on digits-mini with moon-mlp -> {tmp_path / 'b'}"
    assert re.match(r"round 3/3  mean accuracy [\d.]+ %  0:00 left", last)
