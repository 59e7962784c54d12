"""Progress is silent unless asked for, and only the block that asks hears it."""

from __future__ import annotations

import threading
from contextvars import Context

import pytest

from protofed.runtime.console import telling


def work() -> None:
    for done in range(3):
        telling.get()("decoding", done + 1, 3)


def test_without_a_listener_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Context().run(work)  # another test of this process may have set a listener
    assert capsys.readouterr() == ("", "")


def test_a_listener_hears_its_own_context_and_no_other_thread() -> None:
    heard: list[tuple[str, int, int]] = []
    token = telling.set(lambda *news: heard.append(news))
    try:
        work()
        other = threading.Thread(target=work)  # begins with the default
        other.start()
        other.join()
    finally:
        telling.reset(token)
    work()
    assert heard == [("decoding", 1, 3), ("decoding", 2, 3), ("decoding", 3, 3)]
