"""What a site can find out before it joins: server, keys, clock, versions, images, room."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.core.machine import free_memory
from protofed.data.layout import one_domain
from protofed.deploy.keys import PORT
from protofed.deploy.lines import Line, show
from protofed.deploy.policy import Policy
from protofed.deploy.reach import reach

__all__ = ["Line", "check", "show"]

FLOWER = "1.41."  # whose commands and ports we know
GB = 10**9
LEAST_DISK, LEAST_MEMORY = 2 * GB, 1 * GB
MOST_NAMED = 5


def check(address: str, keys: Path | None, data: Path, home: Path) -> list[Line]:
    """Look at all that a site needs to take part; nothing is changed anywhere."""
    lines = [*reach(address, keys)]
    lines += [*_key(keys, address), *_versions(), *_data(data, _name(keys))]
    return [*lines, *_room(home)]


def _card(keys: Path | None) -> dict[str, object]:
    """What a folder of keys says of its site; nothing where it is not readable."""
    try:
        return dict(json.loads(((keys or Path()) / "site.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _name(keys: Path | None) -> str:
    return str(_card(keys).get("name", ""))


def _key(keys: Path | None, address: str) -> Iterator[Line]:
    """Whether the site's own key is there, whole, and for its owner's eyes alone."""
    if keys is None:
        yield Line("key", None, "none: only a server on this machine lets such a site in")
        return
    anew = "ask who made the keys for this site's folder, whole and unchanged"
    try:
        private, fault = keys / "site.key", _key_fault(keys)
        mode = private.stat().st_mode & 0o777
    except OSError as problem:
        yield Line("key", False, f"{problem.filename}: {problem.strerror}", anew)
        return
    except ImportError:
        yield Line("key", False, "cannot be looked at", "pip install 'protofed[flower]'")
        return
    if fault:
        yield Line("key", False, fault, anew)
    elif mode & 0o077:
        text = f"{private} can be read by others on this machine (mode {mode:o})"
        yield Line("key", False, text, f"chmod 600 {private}")
    else:
        yield Line("key", True, f"of site {_name(keys)}; the server must have it registered")
    told = _card(keys).get("server")
    if told and address not in (told, str(told).removesuffix(f":{PORT}")):
        yield Line("key", None, f"was made for the server at {told}, not for {address}")


def _key_fault(keys: Path) -> str:
    """What is wrong with the content of a site's folder."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        load_ssh_private_key,
        load_ssh_public_key,
    )

    try:
        private = load_ssh_private_key((keys / "site.key").read_bytes(), None)
        public = load_ssh_public_key((keys / "site.pub").read_bytes())
    except (ValueError, TypeError) as fault:
        return f"{keys}: not a key in SSH's format without a password: {fault}"
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        return (
            f"{keys / 'site.key'} is not on an elliptic curve of NIST's, and Flower takes no other"
        )
    if private.public_key() != public:
        return f"{keys}: site.key and site.pub do not belong together"
    return "" if _name(keys) else f"{keys / 'site.json'} does not say what the site is called"


def _versions() -> Iterator[Line]:
    """What is installed; Flower's version must be the one that this release was written for."""
    found = {"python": platform.python_version()}
    for name in ("protofed", "torch", "flwr"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    right = found["flwr"].startswith(FLOWER)
    yield Line("versions", right, text, "" if right else "pip install 'protofed[flower]'")


def _data(folder: Path, name: str) -> Iterator[Line]:
    """Whether the images can be read, and how many there are of each class."""
    try:
        found = one_domain(folder, name or "here")
        files = list(found.files())
    except ProtofedError as fault:
        first, *rest = str(fault).splitlines()
        yield Line("data", False, first, " ".join(rest) or "give a folder that holds class/image")
        return
    good = [file for file in files if not file.fault and os.access(file.path, os.R_OK)]
    bad = [file.name for file in files if file not in good]
    if not good:
        yield Line("data", False, f"{folder} holds no image that can be read", "look at its files")
        return
    text = f"{len(good)} images of {len(found.classes)} classes"
    if bad:
        yield Line("data", None, f"{text}; not readable: {_some(bad)}", "mend or remove these")
    else:
        yield Line("data", True, text)
    each, least = Counter(file.label for file in good), Policy().min_examples
    if few := [label for label in found.classes if each[label] < least]:
        text = f"fewer than {least} images of {_some(few)}: without a policy that says otherwise, "
        yield Line("data", None, f"{text}their prototypes are not sent")
    text = f"{_some(found.classes)}: compared with the other sites' when the first run starts"
    yield Line("classes", None, text)


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _room(home: Path) -> Iterator[Line]:
    """Whether there is room for checkpoints and for training."""
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    disk, memory = shutil.disk_usage(place).free, free_memory()
    free = f"{disk / GB:.1f} GB free at {place}"
    yield Line("disk", disk >= LEAST_DISK, free, f"make room for {LEAST_DISK // GB} GB")
    yield Line("write", os.access(place, os.W_OK), f"into {place}", "choose another --home")
    text = f"{memory / GB:.1f} GB free"
    yield Line("memory", memory >= LEAST_MEMORY, text, f"{LEAST_MEMORY // GB} GB are needed")
