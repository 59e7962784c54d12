"""The keys of a federation: a certificate for the server, and a key of its own for each site.

::

    KEYS/ca/      ca.key, ca.crt                        stays with who makes the keys
    KEYS/server/  ca.crt, server.crt, server.key, sites/NAME.pub
    KEYS/NAME/    ca.crt, site.key, site.pub, site.json
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError, printable_text
from protofed.runtime.atomic_io import rename_over, sync_directory

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
