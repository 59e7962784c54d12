"""Who gets in by the public port: registered sites with a right clock, and nobody else."""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode import node_auth_http_interceptor as signing
from flwr.supernode.fleet_http_client import FleetHttpClient

from protofed.deploy.keys import make_keys
from tests.deploy.flower import BIN, Guarded, await_port, called, free_port, running


@contextlib.contextmanager
def site_client(
    federation: Guarded, name: str, ca: Path | None = None
) -> Iterator[FleetHttpClient]:
    """Flower's own client for sites, which signs with a site's key."""
    key = load_ssh_private_key((federation.keys / name / "site.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    client = FleetHttpClient.from_server_address(
        f"localhost:{federation.public}",
        insecure=False,
        root_certificates=(ca or federation.ca).read_bytes(),
        interceptors=[signing.NodeAuthHttpInterceptor(key, key.public_key())],
    )
    with contextlib.closing(client):
        yield client


def public_bytes(federation: Guarded, name: str) -> bytes:
    key = load_ssh_private_key((federation.keys / name / "site.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    found: bytes = public_key_to_bytes(key.public_key())
    return found


def activation(federation: Guarded, name: str) -> ActivateNodeRequest:
    return ActivateNodeRequest(public_key=public_bytes(federation, name), heartbeat_interval=30)


def refused(federation: Guarded, signer: str, claimed: str) -> int:
    """The status with which a site is refused that signs as one and claims to be another."""
    asking = activation(federation, claimed)
    with site_client(federation, signer) as site, pytest.raises(httpx.HTTPStatusError) as fault:
        site.ActivateNode(asking)
    return fault.value.response.status_code


def states(federation: Guarded) -> list[str]:
    """The state of each registered site, as Flower's own command tells it."""
    words = ["flwr", "supernode", "list", "here", "--format", "json"]
    told = json.loads(called(words, federation.home / "server"))
    return [node["status"] for node in told["nodes"]]


def test_a_key_that_is_not_registered_is_refused_and_cannot_register_itself(
    federation: Guarded,
) -> None:
    assert refused(federation, "south", "south") >= 400
    asking = RegisterNodeFleetRequest(public_key=public_bytes(federation, "south"))
    with site_client(federation, "south") as site, pytest.raises(httpx.HTTPStatusError):
        site.RegisterNode(asking)
    assert refused(federation, "south", "south") >= 400


def test_nobody_signs_for_another_site(federation: Guarded) -> None:
    assert refused(federation, "south", "north") == 401


@pytest.mark.parametrize(
    ("seconds", "right"), [(-600, False), (-240, True), (0, True), (10, False), (600, False)]
)
def test_a_clock_that_is_off_is_refused(
    federation: Guarded, monkeypatch: pytest.MonkeyPatch, seconds: int, right: bool
) -> None:
    """Minutes behind, but only seconds ahead: `join --check` counts on these limits."""
    shift = datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(signing, "now", lambda: datetime.datetime.now(datetime.UTC) + shift)
    # With a right clock Flower gets as far as to find that this key is not registered.
    assert (refused(federation, "south", "south") != 401) == right


def test_a_server_of_a_foreign_authority_is_not_talked_to(
    federation: Guarded, tmp_path: Path
) -> None:
    make_keys(tmp_path / "foreign", "localhost", ["north"])
    asking, ca = activation(federation, "north"), tmp_path / "foreign" / "north" / "ca.crt"
    untrusted = pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED")
    with site_client(federation, "north", ca) as site, untrusted:
        site.ActivateNode(asking)


def test_plain_text_on_the_port_of_tls_gets_no_answer(federation: Guarded) -> None:
    sent = b"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    assert federation.say(sent, tls=False) == b""


def test_old_versions_of_tls_are_refused(federation: Guarded) -> None:
    context = ssl.create_default_context(cafile=str(federation.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    url = f"https://localhost:{federation.public}/"
    assert httpx.get(url, verify=context, trust_env=False).status_code == 403
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python advises against what is tried here
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, verify=context, trust_env=False)


@pytest.fixture
def strict(federation: Guarded, tmp_path: Path) -> Iterator[Guarded]:
    """A second gate before the same server, which lets in nobody whose key it does not have."""
    made, log = federation._replace(public=free_port()), tmp_path / "gate.log"
    words = made.gate(f"--sites={made.keys}/server/sites")
    with log.open("wb") as stream, running(words, tmp_path / "gate", stream) as process:
        await_port(made.public, process, log)
        yield made


def test_a_registered_site_gets_online(strict: Guarded, tmp_path: Path) -> None:
    """A real site's process, started as a site starts it, with nothing but its own folder."""
    shutil.copytree(strict.keys / "north", tmp_path / "north")
    node = [f"{BIN}/flower-supernode", f"--root-certificates={tmp_path}/north/ca.crt"]
    node += [f"--auth-supernode-private-key={tmp_path}/north/site.key"]
    node += [f"--superlink=localhost:{strict.public}"]
    node += ["--host=127.0.0.1", f"--port={free_port()}"]
    log = tmp_path / "node.log"
    with log.open("wb") as stream, running(node, tmp_path / "home", stream) as process:
        for _ in range(100):
            assert process.poll() is None, log.read_text()
            if (found := states(strict)) == ["online"]:
                break
            time.sleep(0.5)
        assert found == ["online"], log.read_text()


def test_a_gate_that_knows_the_sites_refuses_others_before_their_body(strict: Guarded) -> None:
    size = "Content-Length: 1000000"  # of which nothing is sent
    assert strict.ask("POST", "/v1/fleet/push-object", size) == 401
    assert strict.ask("POST", "/v1/control/list-runs", size) == 403
    assert refused(strict, "south", "south") not in (401, 403)  # known here, not to Flower
    assert refused(strict, "south", "north") == 401
