"""Whether a request comes from a site that the server knows, seen before its body is read."""

from __future__ import annotations

import base64
import binascii
import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
log = logging.getLogger("protofed.gate")


def signed_headers(private: Path, time: str) -> dict[str, str]:
    """The headers with which the owner of a private key signs a request, as Flower's sites do."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = form.load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "looked at before"
    told = {
        KEY: _as_told(key.public_key()),
        TIME: time.encode(),
        SIGNATURE: base64.b64encode(key.sign(time.encode(), ec.ECDSA(SHA256()))),
    }
    return {name.decode(): value.decode() for name, value in told.items()}


def _as_told(key: EllipticCurvePublicKey) -> bytes:
    """A public key as it stands in a header."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return base64.b64encode(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


class Known:
    """The public keys of a folder; a key that is added or removed counts from the next request."""

    def __init__(self, folder: Path):
        self.folder, self.seen = folder, -1
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
        """Read the folder again where something was added or removed."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

        changed = self.folder.stat().st_mtime_ns
        if changed == self.seen:
            return
        self.seen, self.keys = changed, {}
        for path in sorted(self.folder.glob("*.pub")):
            try:
                key = form.load_ssh_public_key(path.read_bytes())
            except (OSError, ValueError) as fault:
                log.warning("%s is no public key: %s", path, fault)
                continue
            if isinstance(key, EllipticCurvePublicKey):
                self.keys[_as_told(key)] = key
