"""Progress without a terminal: a line at least every 30 s, by a clock that the tests turn."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from protofed.runtime import progress_display
from protofed.runtime.progress_display import LONGEST_SILENCE, ProgressDisplay

Capture = pytest.CaptureFixture[str]


class FakeClock:
    """A clock that stands still until a test moves it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return FakeClock()


def lines_of(display: ProgressDisplay, clock: FakeClock, capsys: Capture) -> list[tuple[int, str]]:
    """What a log says when, while 100 steps take a second each."""
    found = []
    for second in range(100):
        display.show(f"step {second}")
        display.beat()
        found += [(second, line) for line in capsys.readouterr().err.splitlines()]
        clock.now += 1
    return found


def test_a_log_has_a_line_every_30_s_and_not_more_often(clock: FakeClock, capsys: Capture) -> None:
    display = ProgressDisplay("", "", clock=clock)
    found = lines_of(display, clock, capsys)
    assert found == [(30, "step 30"), (60, "step 60"), (90, "step 90")]


def test_a_log_of_each_line_breaks_silences_only(clock: FakeClock, capsys: Capture) -> None:
    display = ProgressDisplay("", "", each=True, clock=clock)
    assert lines_of(display, clock, capsys) == [(n, f"step {n}") for n in range(100)]
    for _ in range(2):  # as long as the silence lasts
        clock.now += LONGEST_SILENCE
        display.beat()
        display.beat()
        assert capsys.readouterr().err == "step 99\n"


def test_a_line_that_must_be_seen_is_said_at_once_and_counts(
    clock: FakeClock, capsys: Capture
) -> None:
    display = ProgressDisplay("", "", clock=clock)
    display.show("step")
    clock.now += 20
    display.say("news")
    assert capsys.readouterr().err == "news\n"
    clock.now += 20
    display.beat()
    assert capsys.readouterr().err == ""
    clock.now += 10
    display.beat()
    assert capsys.readouterr().err == "step\n"


def test_a_patient_log_is_silent_about_short_work(clock: FakeClock, capsys: Capture) -> None:
    with ProgressDisplay("", "", patient=True, clock=clock) as display:
        display.say("what it is")
        display.show("step 1")
        clock.now += 29
        display.beat()
    assert capsys.readouterr().err == ""


def test_a_patient_log_tells_all_once_it_begins_and_how_it_ended(
    clock: FakeClock, capsys: Capture
) -> None:
    with ProgressDisplay("", "", patient=True, clock=clock) as display:
        display.say("what it is")
        display.show("step 1")
        clock.now += 30
        display.beat()
        assert capsys.readouterr().err == "what it is\nstep 1\n"
        display.say("news")
        display.show("step 2")
    assert capsys.readouterr().err == "news\nstep 2\n"


def work_until_interrupted(capsys: Capture) -> None:
    """Raise within a display, once its thread has said twice that the work goes on."""
    err, end = "", time.monotonic() + 60
    with ProgressDisplay("", "") as display:
        display.show("working")
        while err.count("working") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
            err += capsys.readouterr().err
        raise KeyboardInterrupt


def test_the_thread_beats_by_itself_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(progress_display, "LONGEST_SILENCE", 0.01)
    monkeypatch.setattr(progress_display, "LOOK", 0.01)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        work_until_interrupted(capsys)
    assert threading.active_count() == before


def test_a_notebook_has_one_line_that_is_rewritten(
    clock: FakeClock, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    before = threading.active_count()
    with ProgressDisplay("", "", clock=clock) as display:
        assert threading.active_count() == before
        for text in ("a long first line", "second"):
            clock.now += 1
            display.show(text)
        display.show("too soon to be seen")
        display.say("news")
        clock.now += 1
        display.show("third")
        display.show("last, too soon, but the end")
    assert capsys.readouterr().err == (
        "\ra long first line\rsecond           \rnews  \n\rthird\rlast, too soon, but the end\n"
    )


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_work_continues_without_a_reader(
    stream: io.StringIO | None, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stream:
        stream.close()
    display = ProgressDisplay("", "", each=True, clock=clock)
    monkeypatch.setattr(sys, "stderr", stream)
    display.show("step")
    display.say("news")
