"""The keys of a federation: a certificate for the server, and a key of its own for each site.

::

    KEYS/ca/      ca.key, ca.crt                        stays with who makes the keys
    KEYS/server/  ca.crt, server.crt, server.key, sites/NAME.pub
    KEYS/NAME/    ca.crt, site.key, site.pub, site.json
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protofed.errors import ProtofedError, printable_text
from protofed.runtime.atomic_io import rename_over, sync_directory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

PORT = 8443  # where a server listens by default
DAYS = 365  # a server's certificate
CA_DAYS = 3660  # longer than any of those, as a new one means new files for every site
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
RESERVED = ("ca", "server")


class ServerAddress(NamedTuple):
    """Where a server is reached: a host, and a port.

    `str` writes it as HOST:PORT, with an IPv6 address in brackets.
    """

    host: str  # a name, or an IP address without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MadeKeys(NamedTuple):
    """What `make_keys` made, and what was there before.

    `new` and `kept` are names of sites; `certificate` is True if the server's is new.
    """

    folder: Path
    server: ServerAddress
    new: tuple[str, ...]  # sites with a new key
    kept: tuple[str, ...]  # sites that had one
    certificate: bool  # whether the server's is new


def make_keys(folder: Path, server: str, sites: Sequence[str], days: int = DAYS) -> MadeKeys:
    """Make what is missing in a folder of keys; a file that exists is never overwritten.

    `server` is the address at which sites will reach the server, `sites` are their names. Calling
    it again with more names adds sites. `days` is how long the server's certificate holds. The
    layout of the folder is described at the top of this module.
    """
    from protofed.deploy.certificates import require_cryptography

    require_cryptography()
    address = parse_address(server)
    had = _known(folder)
    names = _checked(sites, had)
    _private_folder(folder)
    authority, new = _server(folder, address, days)
    for name in names:
        if name in had:
            _check_held(folder, name)
        else:
            _site(folder, name, address, authority)
    kept = tuple(name for name in names if name in had)
    return MadeKeys(folder, address, tuple(n for n in names if n not in had), kept, new)


def parse_address(text: str) -> ServerAddress:
    """Read HOST or HOST:PORT; an IPv6 address stands in brackets.

    Without a port it is 8443. Anything else is an error with examples.
    """
    host, port = text.strip().lower(), str(PORT)
    if host.startswith("[") and "]" in host:
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") if rest else port
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not (is_ip(host) or HOST.fullmatch(host)) or not re.fullmatch("[0-9]{1,5}", port):
        raise ProtofedError(
            f"'{printable_text(text, 80)}' is no address: write a name or an IP address, and a "
            f"port if it is not {PORT}, e.g. fl.example.org:{PORT}, 192.0.2.7 or "
            f"[2001:db8::7]:{PORT}"
        )
    if not 1 <= int(port) <= 65535:
        raise ProtofedError(f"{printable_text(text, 80)}: a port is a number from 1 to 65535")
    return ServerAddress(host, int(port))


def is_ip(host: str) -> bool:
    """Whether a host is given by an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _known(folder: Path) -> list[str]:
    """The sites that the server's folder knows."""
    return sorted(path.stem for path in (folder / "server" / "sites").glob("*.pub"))


def _checked(sites: Sequence[str], had: Iterable[str]) -> list[str]:
    """The names of sites, each of which becomes a folder and is shown in logs."""
    names = list(dict.fromkeys(sites))
    for name in names:
        if not NAME.fullmatch(name):
            raise ProtofedError(
                f"'{printable_text(name, 80)}' cannot be a site's name: write letters, digits, - "
                f"and _, at most 40, the first of them a letter or digit"
            )
        if name.lower() in RESERVED:
            raise ProtofedError(f"a site cannot be called {name}: that folder is the {name}'s own")
        twins = [n for n in (*had, *names) if n != name and n.lower() == name.lower()]
        if twins:
            raise ProtofedError(f"the sites {name} and {twins[0]} differ only by case: rename one")
    return names


def _check_held(folder: Path, name: str) -> None:
    """A site that the server knows keeps its key, unless one half of it was exchanged."""
    own, known = folder / name / "site.pub", folder / "server" / "sites" / f"{name}.pub"
    if own.exists() and own.read_bytes() != known.read_bytes():
        raise ProtofedError(
            f"{own} and {known} differ\nremove the one that is wrong, and try again"
        )


def _server(folder: Path, address: ServerAddress, days: int) -> tuple[bytes, bool]:
    """The authority's certificate, and whether the server's had to be made."""
    from protofed.deploy import certificates

    ca, home = folder / "ca", folder / "server"
    if not (ca / "ca.crt").exists() and not (home / "ca.crt").exists():
        key, certificate = certificates.new_authority(CA_DAYS)
        _place(folder, "ca", {"ca.key": key, "ca.crt": certificate})
    authority = (ca / "ca.crt" if (ca / "ca.crt").exists() else home / "ca.crt").read_bytes()
    _private_folder(home)
    _private_folder(home / "sites")
    if not (home / "ca.crt").exists():
        _write_new(home / "ca.crt", authority)
    files = [home / "server.crt", home / "server.key"]
    there = [path for path in files if path.exists()]
    if len(there) == 1:
        raise ProtofedError(f"{there[0]} lacks its other half\nremove it, and both are made again")
    if there:
        certificates.check_host(files[0], address.host)
        return authority, False
    signer = certificates.read_private_key(ca / "ca.key")
    key, certificate = certificates.server_certificate(address.host, days, signer, authority)
    _write_new(files[1], key)
    _write_new(files[0], certificate)
    return authority, True


def _site(folder: Path, name: str, address: ServerAddress, authority: bytes) -> None:
    """A site's own folder, whole or not at all, and its public key for the server."""
    from protofed.deploy import certificates

    if (folder / name).exists():  # made by a command that was stopped before the server knew
        public = (folder / name / "site.pub").read_bytes()
    else:
        key, public = certificates.new_site_key(name)
        card = json.dumps({"name": name, "server": str(address)}, indent=2) + "\n"
        files = {"ca.crt": authority, "site.key": key, "site.pub": public}
        _place(folder, name, {**files, "site.json": card.encode()})
    _write_new(folder / "server" / "sites" / f"{name}.pub", public)


def _place(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """A new folder with its files, which is not there before all of them are."""
    draft = Path(tempfile.mkdtemp(prefix=".", dir=folder))  # 0700
    try:
        for file, content in files.items():
            _write_new(draft / file, content)
        rename_over(draft, folder / name)
    except BaseException:
        shutil.rmtree(draft)
        raise
    sync_directory(folder)


def _private_folder(path: Path) -> None:
    """A folder that only its owner can look into; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    """A file that only its owner can read and that did not exist before."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
# Not their certificates, nor security keys, which sign something else than they are given.
KINDS = (b"ecdsa-sha2-nistp256", b"ecdsa-sha2-nistp384", b"ecdsa-sha2-nistp521")
MOST_BYTES = 1 << 14  # of a key file; ours have some 200
# Clocks of disks are coarse: a file may change again within the tick of its last change. So one
# that changed this short a time ago is read at every request.
SETTLED = 2 * 10**9  # nanoseconds
log = logging.getLogger("protofed.gate")


class SiteKey:
    """The private key with which a site signs each of its calls.

    Without a file it is a new one, which only a server without registered keys takes.
    """

    def __init__(self, file: Path | None):
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        if file is None:
            self.private = ec.generate_private_key(ec.SECP384R1())
        else:
            key = load_ssh_private_key(file.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey), "looked at before"
            self.private = key
        self.public = public_bytes(self.private.public_key())

    def headers(self, time: str = "") -> dict[str, str]:
        """The headers of a call that is made now, or at another time: key, time and signature."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        signed = (time or datetime.now(UTC).isoformat()).encode()
        told = {
            KEY: base64.b64encode(self.public),
            TIME: signed,
            SIGNATURE: base64.b64encode(self.private.sign(signed, ec.ECDSA(SHA256()))),
        }
        return {name.decode(): value.decode() for name, value in told.items()}


def public_bytes(key: EllipticCurvePublicKey) -> bytes:
    """A public key in the form in which Flower registers it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class KeyFile(NamedTuple):
    """What a ``NAME.pub`` was found to hold, and a stamp by which a change is noticed.

    `key` is None for a file without a usable key; `fault` then says why.
    """

    stamp: tuple[int, ...] = ()  # nothing where it must be read again in any case
    content: bytes | None = None
    key: EllipticCurvePublicKey | None = None
    fault: str = ""


class SiteKeyring:
    """The public keys of a folder, as its files are at each request.

    A file without a site's key is reported once and affects nobody else. While the folder cannot be
    read, nobody is admitted.
    """

    def __init__(self, folder: Path):
        self.folder, self.fault = folder, ""
        self.files: dict[str, KeyFile] = {}
        self.keys: dict[bytes, EllipticCurvePublicKey] = {}

    def signed(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether the headers are signed by a known site; how long ago is left to Flower."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        self._refresh()
        told = dict(headers)
        key = self.keys.get(told.get(KEY, b""))
        if key is None:
            return False
        try:
            signature = base64.b64decode(told.get(SIGNATURE, b""), validate=True)
            key.verify(signature, told.get(TIME, b""), ec.ECDSA(SHA256()))
        except (binascii.Error, InvalidSignature):
            return False
        return True

    def _refresh(self) -> None:
        """Bring the keys up to what the folder holds now; only files that changed are opened."""
        files = {
            name: read_key_file(f"{self.folder}/{name}", self.files.get(name))
            for name in self._names()
        }
        if files == self.files:
            return
        for name, file in files.items():
            if file.fault and file.fault != self.files.get(name, KeyFile()).fault:
                log.warning("%s is no public key of a site: %s", printable_text(name), file.fault)
        self.files = files
        self.keys = {
            base64.b64encode(public_bytes(file.key)): file.key
            for file in files.values()
            if file.key
        }

    def _names(self) -> list[str]:
        """The key files in the folder; none if it cannot be read, which is reported once."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".pub"))
            fault = ""
        except OSError as found:
            names, fault = [], found.strerror or type(found).__name__
        if fault and fault != self.fault:
            log.error("%s: %s: no site is admitted until it can be read", self.folder, fault)
        elif self.fault and not fault:
            log.warning("%s can be read again", self.folder)
        self.fault = fault
        return names


def read_key_file(path: str, before: KeyFile | None = None) -> KeyFile:
    """Read a ``NAME.pub``; `before`, what it held last time, is returned if it is unchanged.

    Never raises, and never blocks: the folder may hold anything.
    """
    now = time.time_ns()
    try:
        found = os.stat(path)
        times = found.st_mtime_ns, found.st_ctime_ns  # the second cannot be set
        stamp: tuple[int, ...] = (found.st_dev, found.st_ino, found.st_size, *times)
        if before and before.stamp == stamp:
            return before
        if not stat.S_ISREG(found.st_mode):
            return KeyFile(fault="it is not a regular file")
        content = _content(path)
    except OSError as fault:  # may pass without a change of the file, so it is read again
        return KeyFile(fault=fault.strerror or type(fault).__name__)
    if now - found.st_ctime_ns < SETTLED:
        stamp = ()
    if before and before.content == content:
        return before._replace(stamp=stamp)
    try:
        return KeyFile(stamp, content, _key(content))
    except Exception as fault:  # whatever one file holds must not keep the other sites out
        return KeyFile(
            stamp, content, fault=printable_text(str(fault) or type(fault).__name__, 160)
        )


def _content(path: str) -> bytes:
    """The beginning of a file, which is all of a key; never waits for a writer."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        return stream.read(MOST_BYTES + 1)


def _key(content: bytes) -> EllipticCurvePublicKey:
    """The key that a file holds, if it is of a kind that sites sign with."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    kind = content.split(maxsplit=1)[0] if content.strip() else b""
    if kind not in KINDS:
        shown = printable_text(kind.decode("latin-1"), 40)
        wanted = f"a key on an elliptic curve does ({KINDS[1].decode()})"
        raise ValueError(f"it begins with '{shown}', not as {wanted}")
    key = load_ssh_public_key(content)
    assert isinstance(key, EllipticCurvePublicKey), "the others have names of their own"
    return key
