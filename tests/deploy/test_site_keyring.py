"""The gate's own look at signatures, made by Flower's own code for sites."""

from __future__ import annotations

import os
import time
import timeit
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protofed.deploy.flower_server import KeyRegistry
from protofed.deploy.keys import KEY, SETTLED, SIGNATURE, TIME, SiteKeyring, make_keys
from tests.deploy.odd_keys import CONTENTS, THINGS, certificate, place

Headers = list[tuple[bytes, bytes]]


def signed(keys: Path, name: str) -> Headers:
    """The headers that Flower's own code puts on a site's request, as a server sees them."""
    key = load_ssh_private_key((keys / name / "site.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    request = httpx.Request("POST", "https://localhost/v1/fleet/activate-node")
    context = ProtobufRequestContext("", ActivateNodeRequest(), request)
    signer = NodeAuthHttpInterceptor(key, key.public_key())
    signer.intercept(context, lambda _: httpx.Response(200))
    return [(name.lower(), value) for name, value in request.headers.raw]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path, "localhost", ["north", "south"])
    (tmp_path / "server" / "sites" / "south.pub").rename(tmp_path / "south.pub")
    return tmp_path


def changed(headers: Headers, name: bytes, value: bytes | None) -> Headers:
    kept = [(n, v) for n, v in headers if n != name]
    return kept if value is None else [*kept, (name, value)]


def test_a_site_is_known_by_its_key_and_signature(keys: Path) -> None:
    known = SiteKeyring(keys / "server" / "sites")
    north, south = signed(keys, "north"), signed(keys, "south")
    assert known.signed(north)
    assert not known.signed(south)
    assert not known.signed([])
    for name in (KEY, TIME, SIGNATURE):
        assert not known.signed(changed(north, name, None))
        assert not known.signed(changed(north, name, b"?"))
        assert not known.signed(changed(north, name, dict(south)[name]))


def test_a_site_is_shut_out_or_let_in_at_once(keys: Path) -> None:
    folder = keys / "server" / "sites"
    known = SiteKeyring(folder)
    assert known.signed(signed(keys, "north"))
    (folder / "north.pub").unlink()
    (keys / "south.pub").rename(folder / "south.pub")
    assert not known.signed(signed(keys, "north"))
    assert known.signed(signed(keys, "south"))


@pytest.mark.timeout(20)  # a pipe to which nobody writes must not hang the gate
@pytest.mark.parametrize("kind", [*CONTENTS, *THINGS])
def test_what_is_no_key_is_told_of_once_and_keeps_nobody_out(
    keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = keys / "server" / "sites"
    place(kind, folder / "bad.pub")  # sorts before all others
    opened = os.open

    def refusing(path: Any, *more: Any, **named: Any) -> int:
        if Path(path).name == "bad.pub":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **named)

    if kind == "unreadable":  # whoever runs the tests may be allowed to read everything
        monkeypatch.setattr(os, "open", refusing)
    known = SiteKeyring(folder)
    for _ in range(3):
        assert known.signed(signed(keys, "north"))
    assert len(known.keys) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("bad.pub is no public key of a site: ")
    (keys / "south.pub").rename(folder / "south.pub")
    assert known.signed(signed(keys, "south"))
    assert len(caplog.records) == 1


def test_all_that_is_odd_at_once_keeps_nobody_out(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = keys / "server" / "sites"
    odd = [kind for kind in (*CONTENTS, *THINGS) if kind != "unreadable"]
    for kind in odd:
        place(kind, folder / f"{kind}.pub")
    known = SiteKeyring(folder)
    assert known.signed(signed(keys, "north"))
    assert known.signed(signed(keys, "north"))
    assert [text.split(".pub")[0] for text in caplog.messages] == sorted(odd)


def test_a_certificate_for_a_key_lets_nobody_in(keys: Path) -> None:
    """Nobody would look at who signed it, and until when."""
    folder = keys / "server" / "sites"
    private = load_ssh_private_key((keys / "south" / "site.key").read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    (folder / "south.pub").write_bytes(certificate(private))
    known = SiteKeyring(folder)
    assert not known.signed(signed(keys, "south"))
    assert known.signed(signed(keys, "north"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["certificate", "unheard-of", "directory", "fifo", "dangling"])
def test_a_server_names_once_what_is_no_key_and_registers_the_others(keys: Path, kind: str) -> None:
    file, told = keys / "server" / "sites" / "bad.pub", list[str]()
    place(kind, file)
    client: Any = Registering()
    registry = KeyRegistry(client, file.parent, told.append)
    assert registry.update()
    assert not registry.update()
    assert registry.names == ("north",)
    (line,) = told
    assert line.startswith(f"warning: {file} is no public key of a site: ")


class Registering:
    """A server that takes every key."""

    def call(self, name: str, request: Any, kind: Any) -> Any:
        return kind(node_id=len(request.name) + 1)


def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no file's times and number tell of a change, as within one tick of a disk."""
    real, seen = os.stat, dict[str, os.stat_result]()

    def stat(path: Any, **named: Any) -> os.stat_result:
        return seen.setdefault(str(path), real(path, **named))

    monkeypatch.setattr(os, "stat", stat)


def test_a_key_that_is_written_over_no_longer_counts(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, south = keys / "server" / "sites", (keys / "south.pub").read_bytes()
    file, known = folder / "north.pub", SiteKeyring(folder)
    north = file.read_bytes()
    assert len(north) == len(south)
    assert known.signed(signed(keys, "north"))
    for content, right, wrong in [(south, "south", "north"), (north, "north", "south")] * 3:
        with file.open("r+b") as stream:  # in place, of the same size, its old time put back
            before = os.fstat(stream.fileno())
            stream.write(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not known.signed(signed(keys, wrong))
        assert known.signed(signed(keys, right))
    frozen(monkeypatch)
    for content, right, wrong in [(south, "south", "north"), (north, "north", "south")]:
        file.write_bytes(content)
        assert not known.signed(signed(keys, wrong))
        assert known.signed(signed(keys, right))


def test_a_change_after_a_quiet_time_is_seen(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that did not change of late are not opened, and still no change is missed."""
    monkeypatch.setattr("protofed.deploy.keys.SETTLED", 50_000_000)
    folder = keys / "server" / "sites"
    known = SiteKeyring(folder)
    time.sleep(0.1)
    assert known.signed(signed(keys, "north"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", None)  # is not called
        assert known.signed(signed(keys, "north"))
    (folder / "north.pub").write_bytes((keys / "south.pub").read_bytes())
    assert not known.signed(signed(keys, "north"))
    assert known.signed(signed(keys, "south"))


def test_a_key_behind_a_link_follows_what_it_points_to(keys: Path) -> None:
    folder, target = keys / "server" / "sites", keys / "target"
    target.write_bytes((folder / "north.pub").read_bytes())
    (folder / "north.pub").unlink()
    (folder / "link.pub").symlink_to(target)
    known = SiteKeyring(folder)
    assert known.signed(signed(keys, "north"))
    target.write_bytes((keys / "south.pub").read_bytes())
    assert not known.signed(signed(keys, "north"))
    assert known.signed(signed(keys, "south"))


@pytest.mark.parametrize("lost", ["gone", "no folder", "not allowed"])
def test_without_its_folder_the_gate_lets_nobody_in_until_it_is_back(
    keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    folder, aside = keys / "server" / "sites", keys / "aside"
    known = SiteKeyring(folder)
    assert known.signed(signed(keys, "north"))
    with monkeypatch.context() as patched:
        if lost == "not allowed":
            denied = Mock(side_effect=PermissionError(13, "Permission denied"))
            patched.setattr(os, "listdir", denied)
            patched.setattr(os, "scandir", denied)
            patched.setattr(os, "stat", denied)
        else:
            folder.rename(aside)
        if lost == "no folder":
            folder.write_text("a file")
        for _ in range(3):
            assert not known.signed(signed(keys, "north"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "no site is admitted until it can be read" in caplog.text
    if lost != "not allowed":
        folder.unlink(missing_ok=True)
        aside.rename(folder)
    assert known.signed(signed(keys, "north"))
    assert "can be read again" in caplog.messages[-1]


def test_of_a_hundred_keys_that_have_not_changed_none_is_opened(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = keys / "server" / "sites"
    for number in range(100):
        key = generate_private_key(SECP384R1()).public_key()
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"site-{number}.pub").write_bytes(line)
    known = SiteKeyring(folder)
    time.sleep(SETTLED / 1e9 + 0.1)
    known.signed([])
    opened: list[object] = []
    monkeypatch.setattr("protofed.deploy.keys._content", opened.append)
    taken = min(timeit.repeat(lambda: known.signed([]), number=20, repeat=10)) / 20
    print(f"{taken * 1e6:.0f} microseconds")
    assert len(known.keys) == 101
    assert opened == []
