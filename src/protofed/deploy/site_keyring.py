"""Whether a request comes from a site that the server knows, seen before its body is read."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protofed.errors import printable_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

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
