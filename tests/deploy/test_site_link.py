"""What a site's link to the server says when it is not let in, and what it does when it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.flower_client import CallError
from protofed.deploy.flower_compat import TooLargeError
from protofed.deploy.site_link import SiteLink


@pytest.fixture
def link(tmp_path: Path) -> SiteLink:
    return SiteLink("fed.example.org:8443", "north", tmp_path, tmp_path, 1000)


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (0, "[Errno 111] Connection refused", "does not answer (is the server running"),
        (0, "[SSL: CERTIFICATE_VERIFY_FAILED] x", "does not show the certificate"),
        (502, "answered 502: x", "does not answer"),
        (401, "answered 401: x", "refuses the key of north: it is not registered there, or"),
        (412, 'answered 412: {"code":2004,"detail":"x"}', "believes north to be online already"),
        (418, "answered 418: teapot", "fed.example.org:8443 answered 418: teapot"),
    ],
)
def test_why_a_site_is_not_let_in_is_told(
    link: SiteLink, status: int, text: str, told: str
) -> None:
    assert told in link._reason(CallError(status, text))


def test_what_is_the_case_is_told_once(link: SiteLink, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("a", "a", "b", "a"):
        link.report(text)
    assert capsys.readouterr().out.split() == ["a", "b", "a"]


def test_the_number_of_a_site_outlives_its_process(link: SiteLink, tmp_path: Path) -> None:
    assert link._before() == 0
    (tmp_path / "node-number").write_text("42\n")
    assert link._before() == 42
    for damaged in (b"\x00nonsense", b"\xff\xfe", b""):
        (tmp_path / "node-number").write_bytes(damaged)
        assert link._before() == 0


class Odd:
    """A line to a server that answers oddly."""

    def __init__(self, fault: Exception):
        self.fault, self.asked = fault, 0

    def next_request(self) -> None:
        self.asked += 1
        raise self.fault


@pytest.mark.parametrize("status", [404, 429, 500])
def test_a_server_that_answers_oddly_is_not_asked_without_a_pause(
    link: SiteLink, status: int, tmp_path: Path
) -> None:
    line: Any = Odd(CallError(status, f"answered {status}"))
    assert link._work(line, tmp_path) is False


@pytest.mark.parametrize("fault", [TooLargeError("too much"), TimeoutError("the worker is away")])
def test_what_a_server_sends_does_not_end_the_link(
    link: SiteLink, fault: Exception, tmp_path: Path
) -> None:
    line: Any = Odd(fault)
    assert link._work(line, tmp_path) is False


def test_foreign_apps_do_not_fill_the_disk_or_steer_a_terminal(
    link: SiteLink,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("protofed.deploy.site_link.MOST_RECORDED", 1000)
    for _ in range(50):
        link._report("\x1b[2J" * 1000, "ab" * 1000)
    assert (tmp_path / "foreign-apps.jsonl").stat().st_size < 3000
    said = capsys.readouterr().out
    assert said.count("REFUSED") == 50
    assert "\x1b" not in said
