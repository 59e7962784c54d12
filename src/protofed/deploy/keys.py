"""Certificates and keys as bytes, by the ``cryptography`` library, which comes with Flower."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from protofed.runtime.atomic_io import sync_directory
from protofed.errors import ProtofedError
from protofed.errors import printable_text
from typing import NamedTuple
from typing import TYPE_CHECKING
import datetime
import ipaddress
import json
import os
import re
import shutil
import tempfile

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LOCAL = ("localhost", "127.0.0.1")  # a server also talks to itself
EARLIER = datetime.timedelta(hours=1)  # clocks differ
DAY = datetime.timedelta(days=1)


def require_cryptography() -> None:
    """Stop with the command to type where the library is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as fault:
        raise ProtofedError(
            "keys need the library that comes with Flower: pip install 'protofed[flower]'"
        ) from fault


def new_authority(days: int) -> tuple[bytes, bytes]:
    """Private key and certificate of a new authority that signs for one federation."""
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
    """Private key and certificate of a server at `host`, which also holds on its own machine."""
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
            f"certificate of {days} days would\ngive fewer --days, or begin a new folder of keys"
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
    """A site's private and public key in SSH's format; of the curves, Flower takes NIST's alone."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """The authority's private key."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not path.exists():
        raise ProtofedError(
            f"a server's certificate is signed with {path}, which is not there\n"
            f"run this where the keys were first made, or begin a new folder of keys"
        )
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as fault:
        raise ProtofedError(f"{path}: no private key: {printable_text(str(fault), 200)}") from fault
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ProtofedError(f"{path}: not a key on an elliptic curve, so none of ours")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate from its file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as fault:
        raise ProtofedError(f"{path}: no certificate: {printable_text(str(fault), 200)}") from fault


def check_host(path: Path, host: str) -> None:
    """Stop where a server's certificate is for other hosts."""
    from cryptography import x509

    found = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    hosts = [str(name.value) for name in found.value]
    if host not in hosts:
        raise ProtofedError(
            f"{path} is a certificate for {', '.join(hosts)}, not for {host}\n"
            f"for a new one, remove server.crt and server.key beside it, and try again"
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
    """What a key is for: to sign certificates, or to prove who a server is."""
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


PORT = 8443  # where a server listens if nobody says otherwise
DAYS = 365  # a server's certificate
CA_DAYS = 3660  # longer than any of those, as a new one means new files for every site
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
RESERVED = ("ca", "server")


class ServerAddress(NamedTuple):
    """Where a server is reached."""

    host: str  # a name, or an IP address without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MadeKeys(NamedTuple):
    """What `make` left in a folder of keys."""

    folder: Path
    server: ServerAddress
    new: tuple[str, ...]  # sites with a new key
    kept: tuple[str, ...]  # sites that had one
    certificate: bool  # whether the server's is new


def make_keys(folder: Path, server: str, sites: Sequence[str], days: int = DAYS) -> MadeKeys:
    """Make what is missing in a folder of keys; no file that is there is ever written again."""
    from protofed.deploy.keys import require_cryptography

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
    """HOST or HOST:PORT as an address; an IPv6 address stands in brackets."""
    host, port = text.strip().lower(), str(PORT)
    if host.startswith("[") and "]" in host:
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") if rest else port
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not (is_ip(host) or HOST.fullmatch(host)) or not re.fullmatch("[0-9]{1,5}", port):
        raise ProtofedError(
            f"'{printable_text(text, 80)}' is no address: write a name or an IP address, and a port "
            f"if it is not {PORT}, e.g. fl.example.org:{PORT}, 192.0.2.7 or [2001:db8::7]:{PORT}"
        )
    if not 1 <= int(port) <= 65535:
        raise ProtofedError(f"{printable_text(text, 80)}: a port is a number from 1 to 65535")
    return ServerAddress(host, int(port))


def is_ip(host: str) -> bool:
    """Whether a host is given by its IP address."""
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
                f"'{printable_text(name, 80)}' cannot be a site's name: write letters, digits, - and _, "
                f"at most 40, the first of them a letter or digit"
            )
        if name.lower() in RESERVED:
            raise ProtofedError(f"a site cannot be called {name}: that folder is the {name}'s own")
        twins = [n for n in (*had, *names) if n != name and n.lower() == name.lower()]
        if twins:
            raise ProtofedError(f"the sites {name} and {twins[0]} differ only by case: rename one")
    return names


def _check_held(folder: Path, name: str) -> None:
    """A site that the server knows keeps its key, unless somebody exchanged one half of it."""
    own, told = folder / name / "site.pub", folder / "server" / "sites" / f"{name}.pub"
    if own.exists() and own.read_bytes() != told.read_bytes():
        raise ProtofedError(f"{own} and {told} differ\nremove the one that is wrong, and try again")


def _server(folder: Path, address: ServerAddress, days: int) -> tuple[bytes, bool]:
    """The authority's certificate, and whether the server's had to be made."""
    from protofed.deploy import keys

    ca, home = folder / "ca", folder / "server"
    if not (ca / "ca.crt").exists() and not (home / "ca.crt").exists():
        key, certificate = keys.new_authority(CA_DAYS)
        _place(folder, "ca", {"ca.key": key, "ca.crt": certificate})
    authority = (ca / "ca.crt" if (ca / "ca.crt").exists() else home / "ca.crt").read_bytes()
    _private_folder(home)
    _private_folder(home / "sites")
    if not (home / "ca.crt").exists():
        _write_new(home / "ca.crt", authority)
    files = [home / "server.crt", home / "server.key"]
    there = [path for path in files if path.exists()]
    if len(there) == 1:
        raise ProtofedError(f"{there[0]} lacks its other half\nremove it, and both are made anew")
    if there:
        keys.check_host(files[0], address.host)
        return authority, False
    signer = keys.read_private_key(ca / "ca.key")
    key, certificate = keys.server_certificate(address.host, days, signer, authority)
    _write_new(files[1], key)
    _write_new(files[0], certificate)
    return authority, True


def _site(folder: Path, name: str, address: ServerAddress, authority: bytes) -> None:
    """A site's own folder, whole or not at all, and its public key for the server."""
    from protofed.deploy import keys

    if (folder / name).exists():  # made by a command that was stopped before the server knew
        public = (folder / name / "site.pub").read_bytes()
    else:
        key, public = keys.new_site_key(name)
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
        draft.rename(folder / name)
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
