from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protofed.deploy.keys import ServerAddress, make_keys, parse_address
from protofed.errors import ProtofedError
from tests.deploy.shaking import shake

pytest.importorskip("cryptography", reason="keys need the flower extra")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from protofed.deploy.certificates import read_certificate


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", "fl.example.org:9000", ["north", "south"])
    return tmp_path / "keys"


def test_the_folders_hold_what_each_place_needs_and_nothing_more(keys: Path) -> None:
    site = {"ca.crt", "site.key", "site.pub", "site.json"}
    assert set(contents(keys)) == {
        *("ca/ca.key", "ca/ca.crt", "server/ca.crt", "server/server.crt", "server/server.key"),
        *("server/sites/north.pub", "server/sites/south.pub"),
        *(f"{name}/{file}" for name in ("north", "south") for file in site),
    }
    for path in keys.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert keys.stat().st_mode & 0o777 == 0o700
    card = json.loads((keys / "north" / "site.json").read_text())
    assert card == {"name": "north", "server": "fl.example.org:9000"}


def test_every_site_has_a_key_of_its_own_on_a_curve_that_flower_takes(keys: Path) -> None:
    numbers = set()
    for name in ("north", "south"):
        private = load_ssh_private_key((keys / name / "site.key").read_bytes(), None)
        public = load_ssh_public_key((keys / name / "site.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key() == public
        told = (keys / "server" / "sites" / f"{name}.pub").read_bytes()
        assert told == (keys / name / "site.pub").read_bytes()
        numbers.add(private.private_numbers().private_value)
    assert len(numbers) == 2


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        ("fl.example.org", ""),
        ("localhost", ""),
        ("127.0.0.1", ""),
        ("other.example.org", "Hostname mismatch"),
        ("127.0.0.2", "IP address mismatch"),
    ],
)
def test_a_client_accepts_the_server_under_its_own_names_alone(
    keys: Path, host: str, fault: str
) -> None:
    home = keys / "server"
    found = shake(home / "server.crt", home / "server.key", keys / "north" / "ca.crt", host)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_a_server_of_another_federation_is_not_accepted(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "foreign", "fl.example.org:9000", ["north"])
    home = tmp_path / "foreign" / "server"
    found = shake(home / "server.crt", home / "server.key", keys / "north/ca.crt", "fl.example.org")
    assert found != ""


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl command")
def test_openssl_reads_and_verifies_the_certificates(keys: Path) -> None:
    words = ["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile"]
    ended = subprocess.run(
        ["openssl", *words, keys / "server/ca.crt", keys / "server/server.crt"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert ended.stdout.endswith(": OK\n")


@pytest.mark.parametrize("host", ["192.0.2.7", "[2001:db8::7]:443"])
def test_an_ip_address_is_certified_as_one(tmp_path: Path, host: str) -> None:
    made = make_keys(tmp_path, host, ["north"], days=30)
    home = tmp_path / "server"
    found = shake(home / "server.crt", home / "server.key", home / "ca.crt", made.server.host)
    assert found == ""
    signed = read_certificate(home / "server.crt")
    assert (signed.not_valid_after_utc - signed.not_valid_before_utc).days == 30


def test_a_site_is_added_and_nothing_is_overwritten(keys: Path) -> None:
    before = contents(keys)
    made = make_keys(keys, "fl.example.org:9000", ["north", "west"])
    assert (made.new, made.kept, made.certificate) == (("west",), ("north",), False)
    after = contents(keys)
    assert {name: after[name] for name in before} == before
    assert {name.rsplit("/", 1)[0] for name in after.keys() - before} == {"west", "server/sites"}


def test_a_site_can_be_added_without_the_key_of_the_authority(keys: Path) -> None:
    shutil.rmtree(keys / "ca")
    make_keys(keys, "fl.example.org", ["west"])
    assert (keys / "west" / "ca.crt").read_bytes() == (keys / "server" / "ca.crt").read_bytes()
    (keys / "server" / "server.crt").unlink()
    (keys / "server" / "server.key").unlink()
    with pytest.raises(ProtofedError, match=r"signed with .*ca\.key, which is not there"):
        make_keys(keys, "fl.example.org", ["west"])


def test_a_certificate_is_renewed_after_its_files_are_removed(keys: Path) -> None:
    old = (keys / "server" / "server.crt").read_bytes()
    (keys / "server" / "server.key").unlink()
    with pytest.raises(ProtofedError, match="lacks its other half"):
        make_keys(keys, "fl.example.org", ["north"])
    (keys / "server" / "server.crt").unlink()
    assert make_keys(keys, "fl.example.org", ["north"]).certificate
    home = keys / "server"
    assert (home / "server.crt").read_bytes() != old
    ca = keys / "south" / "ca.crt"  # handed over long ago
    assert shake(home / "server.crt", home / "server.key", ca, "fl.example.org") == ""


def test_a_site_that_has_its_folder_is_not_given_another_key(keys: Path) -> None:
    shutil.rmtree(keys / "north")  # handed over, and removed here
    before = contents(keys)
    assert make_keys(keys, "fl.example.org", ["north"]).kept == ("north",)
    assert contents(keys) == before


def test_what_a_stopped_command_left_is_completed(keys: Path) -> None:
    (keys / "server" / "sites" / "south.pub").unlink()
    assert make_keys(keys, "fl.example.org", ["south"]).new == ("south",)
    told = (keys / "server" / "sites" / "south.pub").read_bytes()
    assert told == (keys / "south" / "site.pub").read_bytes()


def test_another_host_is_refused(keys: Path) -> None:
    with pytest.raises(ProtofedError, match=r"is a certificate for fl\.example\.org, localhost"):
        make_keys(keys, "fl.example.com", ["north"])


BAD_NAMES = ["", ".", "..", "../x", "a/b", "a\\b", "-x", "a b", "a\n", "a\x1b[31m", "ä", "x" * 41]


@pytest.mark.parametrize("name", [*BAD_NAMES, "ca", "Server"])
def test_odd_names_are_refused_and_make_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProtofedError, match="cannot be"):
        make_keys(tmp_path / "keys", "localhost", ["good", name])
    assert list(tmp_path.iterdir()) == []


def test_names_that_differ_by_case_are_refused(keys: Path) -> None:
    with pytest.raises(ProtofedError, match="differ only by case"):
        make_keys(keys, "fl.example.org", ["North"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("fl.example.org", ServerAddress("fl.example.org", 8443)),
        ("FL.example.org:1", ServerAddress("fl.example.org", 1)),
        ("192.0.2.7:9000", ServerAddress("192.0.2.7", 9000)),
        ("[::1]:9000", ServerAddress("::1", 9000)),
        ("::1", ServerAddress("::1", 8443)),
    ],
)
def test_addresses_are_read(text: str, address: ServerAddress) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", ":80", "a:b", "a:70000", "a:0", "https://a", "a/b", "a_b", "[::1", "a..b", "a\nb"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ProtofedError, match=r"is no address|a port is"):
        parse_address(text)


def test_without_the_extra_the_command_to_install_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError('not here')")
    code = "from protofed.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "keys", "mine", "--server", "localhost", "--sites", "a"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install 'protofed[flower]'" in ended.stderr
    assert not (tmp_path / "mine").exists()
