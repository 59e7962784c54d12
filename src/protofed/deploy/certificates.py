"""Certificates and keys as bytes, by the ``cryptography`` library, which comes with Flower."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.errors import ProtofedError, printable_text

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LOCAL = ("localhost", "127.0.0.1")  # a server also talks to itself
EARLIER = datetime.timedelta(hours=1)  # clocks differ
DAY = datetime.timedelta(days=1)


def require_cryptography() -> None:
    """Stop with the command to type if the ``cryptography`` library is not installed.

    It comes with Flower; a plain installation of protofed does not have it.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as fault:
        raise ProtofedError(
            "keys need the library that comes with Flower: pip install 'protofed[flower]'"
        ) from fault


def new_authority(days: int) -> tuple[bytes, bytes]:
    """Make the authority that signs the server's certificate of one federation.

    Returns its private key and its self-signed certificate, both as PEM. It can sign certificates
    of servers only, not of further authorities.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    draft = _draft("protofed federation", "protofed federation", key.public_key(), days)
    draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    draft = draft.add_extension(_usage(signs=True), critical=True)
    return _pem(key), _certificate(draft.sign(key, hashes.SHA256()))


def server_certificate(
    host: str, days: int, signer: EllipticCurvePrivateKey, ca: bytes
) -> tuple[bytes, bytes]:
    """Make the certificate of a server at `host`, signed by the federation's authority.

    `signer` is the authority's private key and `ca` its certificate as PEM. Returns the server's
    private key and certificate, both as PEM. The certificate is also valid for ``localhost``,
    because `submit` talks to the server on its own machine.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.load_pem_x509_certificate(ca)
    if issuer.public_key() != signer.public_key():
        raise ProtofedError("ca.key does not belong to ca.crt: these are of two federations")
    if _now() + days * DAY > issuer.not_valid_after_utc:
        raise ProtofedError(
            f"the federation's authority ends on {issuer.not_valid_after_utc:%Y-%m-%d}, before a "
            f"certificate of {days} days would",
            hint="choose fewer <days>, or begin a new folder of keys",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    draft = _draft("protofed server", "protofed federation", key.public_key(), days)
    names = [_name(each) for each in dict.fromkeys((host, *LOCAL))]
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ):
        draft = draft.add_extension(extension, critical=critical)
    return _pem(key), _certificate(draft.sign(signer, hashes.SHA256()))


def new_site_key(name: str) -> tuple[bytes, bytes]:
    """Make a key pair for a site: the private key, and the public key with `name` as comment.

    Both are in the format of SSH. The curve is P-384, one of the three that Flower accepts.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Read the authority's private key from its PEM file.

    A key that is missing, damaged or of another kind is an error that says what to do.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not path.exists():
        raise ProtofedError(
            f"a server's certificate is signed with {path}, which is not there",
            hint="run this where the keys were first made, or begin a new folder of keys",
        )
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as fault:
        raise ProtofedError(f"{path}: no private key: {printable_text(str(fault), 200)}") from fault
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ProtofedError(f"{path}: not a key on an elliptic curve, so none of ours")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate from its PEM file; an error names a file that is none."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as fault:
        raise ProtofedError(f"{path}: no certificate: {printable_text(str(fault), 200)}") from fault


def check_host(path: Path, host: str) -> None:
    """Stop if the certificate at `path` was made for other hosts than `host`.

    Sites would refuse a server that shows it, so this is found out when keys are made.
    """
    from cryptography import x509

    found = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    hosts = [str(name.value) for name in found.value]
    if host not in hosts:
        raise ProtofedError(
            f"{path} is a certificate for {', '.join(hosts)}, not for {host}",
            hint="for a new one, remove server.crt and server.key beside it, and try again",
        )


def _draft(subject: str, issuer: str, public: object, days: int) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509.oid import NameOID

    assert isinstance(public, EllipticCurvePublicKey)
    called = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(called[0])
        .issuer_name(called[1])
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - EARLIER)
        .not_valid_after(_now() + days * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    """What a key is for: to sign certificates, or to prove the identity of a server."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _certificate(signed: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return signed.public_bytes(Encoding.PEM)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
