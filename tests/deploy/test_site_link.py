"""What a site's link to the server says when it is not let in, and what it does when it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.flower_client import CallError
from protofed.deploy.site_link import SiteLink


@pytest.fixture
def link(tmp_path: Path) -> Iterator[SiteLink]:
    with closing(SiteLink("fed.example.org:8443", "north", tmp_path, tmp_path, 1000)) as made:
        yield made


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (0, "[Errno 111] Connection refused", "does not answer (is the server running"),
        (0, "[SSL: CERTIFICATE_VERIFY_FAILED] x", "does not show the certificate"),
        (502, "answered 502: x", "does not answer"),
        (401, "answered 401: x", "refuses the key of north: it is not registered there, or"),
        (412, 'answered 412: {"code":2004,"detail":"x"}', "takes north to be there already"),
        (418, "answered 418: teapot", "fed.example.org:8443 answered 418: teapot"),
    ],
)
def test_why_a_site_is_not_let_in_is_told(
    link: SiteLink, status: int, text: str, told: str
) -> None:
    assert told in link._reason(CallError(status, text))


def test_what_is_the_case_is_told_once(link: SiteLink, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("a", "a", "b", "a"):
        link.tell(text)
    assert capsys.readouterr().out.split() == ["a", "b", "a"]


def test_the_number_of_a_site_outlives_its_process(link: SiteLink, tmp_path: Path) -> None:
    assert link._before() == 0
    link._remember(12345678901234567890)
    link._remember(42)
    with closing(SiteLink("fed.example.org:8443", "north", tmp_path, tmp_path, 1000)) as again:
        assert again._before() == 42
        (tmp_path / "node-number").write_text("\x00nonsense")
        assert again._before() == 0


def test_foreign_apps_do_not_fill_the_disk_or_steer_a_terminal(
    link: SiteLink,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("protofed.deploy.site_link.MOST_RECORDED", 3)
    for _ in range(5):
        link._report("\x1b[2J" * 1000, "ab" * 1000)
    assert (tmp_path / "foreign-apps.jsonl").read_text().count("\n") == 3
    said = capsys.readouterr().out
    assert said.count("REFUSED") == 5
    assert "\x1b" not in said
