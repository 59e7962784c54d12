"""Files that somebody may put among the sites' public keys and that are none."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
)


def _line(kind: str, *parts: bytes) -> bytes:
    """A public key as SSH writes it, of any kind."""
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), *parts))
    return kind.encode() + b" " + base64.b64encode(blob) + b" somebody\n"


def _of_ssh(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def security_key() -> bytes:
    """A key of a hardware token, on a curve that sites' keys are on as well."""
    point = ec.generate_private_key(ec.SECP256R1()).public_key()
    raw = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return _line("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", raw, b"ssh:")


def certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate that a key has signed for itself."""
    builder = SSHCertificateBuilder().public_key(key.public_key()).serial(1)
    builder = builder.type(SSHCertificateType.USER).key_id(b"x").valid_principals([b"x"])
    return bytes(builder.valid_after(0).valid_before(2**60).sign(key).public_bytes())


def _unreadable(path: Path) -> None:
    path.write_bytes(b"")  # the test sees to it that it cannot be opened


CONTENTS: dict[str, Callable[[], bytes]] = {
    "dss": lambda: _line("ssh-dss", b"\x17", b"\x0b", b"\x04", b"\x08"),
    "security-key": security_key,
    "certificate": lambda: certificate(ec.generate_private_key(ec.SECP384R1())),
    "ed25519": lambda: _of_ssh(ed25519.Ed25519PrivateKey.generate().public_key()),
    "rsa": lambda: _of_ssh(rsa.generate_private_key(65537, 2048).public_key()),
    "unheard-of": lambda: _line("ssh-tomorrow", b"x"),
    "garbage": lambda: bytes(range(256)) * 10,
    "empty": lambda: b"",
    "blank": lambda: b" \n\t ",
    "cut-short": lambda: b"ecdsa-sha2-nistp384 AAAA",
    "wrong-point": lambda: _line("ecdsa-sha2-nistp384", b"nistp384", b"\x04" + b"\x01" * 96),
    "endless": lambda: b"ecdsa-sha2-nistp384 " + b"A" * (1 << 20),
}
THINGS: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "circle": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": _unreadable,
}


def place(kind: str, path: Path) -> None:
    """Put something odd where a public key should be."""
    if kind in CONTENTS:
        path.write_bytes(CONTENTS[kind]())
    else:
        THINGS[kind](path)
