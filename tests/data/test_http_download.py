"""Downloads against a real server with real faults."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from protofed.data import http_download as fetching
from protofed.data.http_download import RemoteFile, fetch_file
from protofed.errors import ProtofedError
from tests.data.serving import Host

CONTENT = bytes(range(256)) * 1200  # 300 KB
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def nothing(done: int, total: int | None) -> None:
    pass


@pytest.fixture
def remote(host: Host) -> RemoteFile:
    (host.root / "file.bin").write_bytes(CONTENT)
    return RemoteFile("file.bin", (f"{host.url}/file.bin",), len(CONTENT), DIGEST)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "to" / "file.bin"


def complaint(remote: RemoteFile, target: Path) -> str:
    with pytest.raises(ProtofedError) as caught:
        fetch_file(remote, target, nothing)
    assert not target.exists()
    return str(caught.value)


def test_a_file_arrives_whole_and_alone(remote: RemoteFile, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    fetch_file(remote, target, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert list(target.parent.iterdir()) == [target]


def test_a_broken_connection_goes_on_where_it_broke(
    host: Host, remote: RemoteFile, target: Path
) -> None:
    host.drops, host.drop_after = 3, 70_000
    fetch_file(remote, target, nothing)
    assert target.read_bytes() == CONTENT
    assert [asked for _, asked in host.asked] == [
        "",
        "bytes=70000-",
        "bytes=140000-",
        "bytes=210000-",
    ]


def test_more_breaks_than_tries_are_fine_while_there_is_progress(
    host: Host, remote: RemoteFile, target: Path
) -> None:
    host.drops, host.drop_after = 2 * fetching.TRIES, 20_000
    fetch_file(remote, target, nothing)
    assert target.read_bytes() == CONTENT


def test_a_host_without_ranges_starts_anew(host: Host, remote: RemoteFile, target: Path) -> None:
    host.drops, host.drop_after, host.ranges = 1, 70_000, False
    fetch_file(remote, target, nothing)
    assert target.read_bytes() == CONTENT


def test_a_host_that_sends_another_part_is_not_believed(
    host: Host, remote: RemoteFile, target: Path
) -> None:
    host.drops, host.drop_after, host.shift = 1, 70_000, 100
    fetch_file(remote, target, nothing)
    assert target.read_bytes() == CONTENT
    assert [asked for _, asked in host.asked] == ["", "bytes=70000-", ""]


def test_wrong_bytes_are_put_aside_and_nothing_else_is_touched(
    host: Host, remote: RemoteFile, target: Path
) -> None:
    target.parent.mkdir()
    (target.parent / "other.npz").write_bytes(b"good")
    wrong = CONTENT[:-1] + b"!"
    (host.root / "file.bin").write_bytes(wrong)
    told = complaint(remote, target)
    assert "file.bin is not the published file: expected sha256" in told
    assert hashlib.sha256(wrong).hexdigest() in told
    assert (target.parent / "file.bin.wrong").read_bytes() == wrong
    assert (target.parent / "other.npz").read_bytes() == b"good"
    (host.root / "file.bin").write_bytes(CONTENT)
    fetch_file(remote, target, nothing)  # what was wrong is not gone on with
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("code", [403, 404, 410])
def test_an_address_without_the_file_is_left_for_the_next(
    host: Host, remote: RemoteFile, target: Path, code: int
) -> None:
    host.failures = [code]
    twice = remote._replace(urls=(f"{host.url}/gone.bin", *remote.urls))
    fetch_file(twice, target, nothing)
    assert target.read_bytes() == CONTENT


def test_an_address_with_a_wrong_file_is_left_for_the_next(
    host: Host, remote: RemoteFile, target: Path
) -> None:
    (host.root / "stale.bin").write_bytes(CONTENT[:-1] + b"!")
    twice = remote._replace(urls=(f"{host.url}/stale.bin", *remote.urls))
    fetch_file(twice, target, nothing)
    assert target.read_bytes() == CONTENT
    assert host.asked == [("/stale.bin", ""), ("/file.bin", "")]


def test_no_address_has_it(host: Host, remote: RemoteFile, target: Path) -> None:
    told = complaint(remote._replace(urls=(f"{host.url}/gone.bin",)), target)
    assert "file.bin cannot be downloaded" in told
    assert "HTTP 404" in told
    assert "PROTOFED_MIRROR" in told


def test_a_busy_host_is_asked_again(host: Host, remote: RemoteFile, target: Path) -> None:
    host.failures = [503, 503]
    fetch_file(remote, target, nothing)
    assert target.read_bytes() == CONTENT
    assert len(host.asked) == 3


def test_a_host_that_stays_busy_is_given_up(host: Host, remote: RemoteFile, target: Path) -> None:
    host.failures = [503] * 50
    assert "HTTP 503" in complaint(remote, target)
    assert len(host.asked) == fetching.TRIES


@pytest.mark.parametrize("claim", [5000, -5000])
def test_a_lie_about_the_length_never_ends_as_a_wrong_file(
    host: Host, remote: RemoteFile, target: Path, claim: int
) -> None:
    host.claim = claim
    if claim > 0:  # more than comes: the rest is asked for, and there is none
        fetch_file(remote, target, nothing)
        assert target.read_bytes() == CONTENT
        assert host.asked[-1][1] == f"bytes={len(CONTENT)}-"
    else:
        assert "is not the published file" in complaint(remote, target)


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_only_the_web_is_followed(host: Host, remote: RemoteFile, target: Path, to: str) -> None:
    host.redirect = to
    told = complaint(remote, target)
    assert to in told
    assert "is not allowed" in told or "which is refused" in told
    assert len(host.asked) == 1


def test_an_address_that_is_no_web_address_is_refused(remote: RemoteFile, target: Path) -> None:
    told = complaint(remote._replace(urls=("file:///etc/passwd",)), target)
    assert "must start with http:// or https://" in told


def test_a_web_page_is_not_taken_for_the_file(host: Host, remote: RemoteFile, target: Path) -> None:
    host.page = True
    assert "sent a web page" in complaint(remote, target)


def test_an_endless_file_is_given_up(
    host: Host, remote: RemoteFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ROOM", 1000)
    assert "far larger than expected" in complaint(remote._replace(size=1000), target)


def test_a_full_disk_is_told_before_it_is_filled(
    remote: RemoteFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ROOM", 2**60)
    assert "GB are needed" in complaint(remote, target)


@pytest.mark.parametrize("checked", [True, False])
def test_what_came_from_elsewhere_is_gone_on_with_only_if_it_can_be_checked(
    host: Host, remote: RemoteFile, target: Path, checked: bool
) -> None:
    target.parent.mkdir()
    (target.parent / "file.bin.part").write_bytes(CONTENT[:100])
    (target.parent / "file.bin.part.json").write_text('{"url": "http://other/x", "tag": ""}')
    fetch_file(remote if checked else remote._replace(checksum=""), target, nothing)
    assert target.read_bytes() == CONTENT
    assert host.asked[0][1] == ("bytes=100-" if checked else "")
