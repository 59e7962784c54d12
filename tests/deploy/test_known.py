"""The gate's own look at signatures, made by Flower's own code for sites."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protofed.deploy.keys import make
from protofed.deploy.known import KEY, SIGNATURE, TIME, Known

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
    make(tmp_path, "localhost", ["north", "south"])
    (tmp_path / "server" / "sites" / "south.pub").rename(tmp_path / "south.pub")
    return tmp_path


def changed(headers: Headers, name: bytes, value: bytes | None) -> Headers:
    kept = [(n, v) for n, v in headers if n != name]
    return kept if value is None else [*kept, (name, value)]


def test_a_site_is_known_by_its_key_and_signature(keys: Path) -> None:
    known = Known(keys / "server" / "sites")
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
    known = Known(folder)
    assert known.signed(signed(keys, "north"))
    (folder / "north.pub").unlink()
    (keys / "south.pub").rename(folder / "south.pub")
    os.utime(folder, ns=(1, 1))  # the clock of some disks is too coarse for two changes
    assert not known.signed(signed(keys, "north"))
    assert known.signed(signed(keys, "south"))


def test_what_is_no_key_is_passed_over(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    (keys / "server" / "sites" / "bad.pub").write_text("ssh-ed25519 x")
    assert Known(keys / "server" / "sites").signed(signed(keys, "north"))
    assert "bad.pub is no public key" in caplog.text
