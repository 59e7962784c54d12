"""A server that cannot be started says why, and what to do."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protofed.deploy import serve as module
from protofed.deploy.gate import log_refusal
from protofed.deploy.serve import LOCAL, RECORD, free_port, serve_federation
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write_json, file_lock


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "stop_on_sigterm", lambda: None)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody has."""
    with socket.create_server((LOCAL, 0)) as held:
        yield int(held.getsockname()[1])


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path, taken: int) -> None:
    words = f"port {taken} of {LOCAL} is taken by another program\nchoose another `port`"
    with pytest.raises(ProtofedError, match=words):
        serve_federation(tmp_path, (LOCAL, taken), None)
    assert not (tmp_path / "superlink.log").exists()


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match=r"cannot listen on 192\.0\.2\.1, port"):
        serve_federation(tmp_path, ("192.0.2.1", free_port()), None)


def test_a_second_server_with_the_same_files_is_told_of_the_first(
    tmp_path: Path, taken: int
) -> None:
    with file_lock(tmp_path):
        with pytest.raises(ProtofedError, match=r"already runs with its files in \S+\nstop"):
            serve_federation(tmp_path, (LOCAL, taken), None)
        atomic_write_json(tmp_path / RECORD, {"pid": 4242, "listens": "0.0.0.0:8443"})
        with pytest.raises(ProtofedError, match=r"process 4242, on 0\.0\.0\.0:8443\).*") as caught:
            serve_federation(tmp_path, (LOCAL, taken), None)
    assert "give this one a home of its own" in str(caught.value)


def test_the_last_words_of_flowers_server_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "superlink.log"
    log.write_text("of an earlier start\n")
    failing = [sys.executable, "-c", "import sys; sys.exit('no such \x1b thing')"]
    monkeypatch.setattr(module, "_superlink", lambda server, own: failing)
    with pytest.raises(ProtofedError) as caught:
        serve_federation(tmp_path, (LOCAL, free_port()), None)
    told = str(caught.value)
    assert told.startswith("Flower's server did not start; the last lines of ")
    assert str(log) in told
    assert "no such \\x1b thing" in told
    assert "earlier" not in told


@pytest.mark.parametrize(
    ("method", "path", "level"),
    [
        ("GET", b"/health", logging.INFO),
        ("GET", b"/v1/control/x", logging.WARNING),
        ("POST", b"/health", logging.WARNING),
    ],
)
def test_strangers_are_logged_and_our_own_checks_are_no_warning(
    method: str, path: bytes, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    scope: dict[str, Any] = {"method": method, "raw_path": path, "client": ("192.0.2.1", 1)}
    with caplog.at_level(logging.INFO):
        log_refusal(scope, "refused")
    assert [record.levelno for record in caplog.records] == [level]
