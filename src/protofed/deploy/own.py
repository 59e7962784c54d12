"""What a site brings, looked at before it joins: its folder of keys and its folder of images."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from protofed.core.errors import ProtofedError
from protofed.data.layout import ImageFile, single_domain_layout

KEY_FILES = ("ca.crt", "site.key", "site.pub", "site.json")
WHOLE = "ask who made the keys for this site's folder, whole and unchanged"
ALONE = "give the folder that holds one folder for each class, with this site's images in them"


class JoiningSite(NamedTuple):
    """A site that joins a federation."""

    server: str  # HOST:PORT
    name: str
    data: Path
    home: Path
    keys: Path | None = None
    policy: Path | None = None


class FoundImages(NamedTuple):
    """What a folder holds, as far as that is seen without opening its files."""

    classes: tuple[str, ...]
    good: list[ImageFile]
    bad: list[str]  # names of files that cannot be images, or not be read


def check_keys(keys: Path, name: str) -> None:
    """Refuse a folder that is not the whole folder of keys of the site of this name."""
    missing = [file for file in KEY_FILES if not (keys / file).is_file()]
    if missing:
        raise ProtofedError(f"{keys} lacks {', '.join(missing)}\n{_other_folder(keys, name)}")
    if fault := _content_fault(keys):
        raise ProtofedError(f"{fault}\n{WHOLE}")
    told = read_site_card(keys).get("name")
    if told != name:
        raise ProtofedError(
            f"the keys in {keys} are those of site {told}, not of {name}\n"
            f"give --name {told}, or the folder of keys that was made for {name}"
        )


def read_site_card(keys: Path) -> dict[str, object]:
    """What a folder of keys says of its site; nothing where it is not readable."""
    try:
        return dict(json.loads((keys / "site.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _other_folder(keys: Path, name: str) -> str:
    """What to do with a folder that is not a site's."""
    if not keys.is_dir():
        return f"there is no such folder; give the one that the coordinator made for {name}"
    if (keys / name / "site.json").exists():
        return f"it holds the keys of all: give --keys {keys / name}"
    if (keys / "server.key").exists():
        return f"it is the server's own: give the one that was made for {name}"
    others = sorted(found.parent.name for found in keys.glob("*/site.json"))
    if others:
        return f"it holds the keys of {', '.join(others)}, and none of {name}"
    return WHOLE


def _content_fault(keys: Path) -> str:
    """What is wrong with the content of a site's folder."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        load_ssh_private_key,
        load_ssh_public_key,
    )

    try:
        private = load_ssh_private_key((keys / "site.key").read_bytes(), None)
        public = load_ssh_public_key((keys / "site.pub").read_bytes())
    except OSError as fault:
        return f"{fault.filename}: {fault.strerror}"
    except (ValueError, TypeError) as fault:
        return f"{keys}: not a key in SSH's format without a password: {fault}"
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        return (
            f"{keys / 'site.key'} is not on an elliptic curve of NIST's, and Flower takes no other"
        )
    if private.public_key() != public:
        return f"{keys}: site.key and site.pub do not belong together"
    told = read_site_card(keys).get("name")
    return "" if told else f"{keys / 'site.json'} does not say what the site is called"


def look_at_images(data: Path, name: str) -> FoundImages:
    """What a site's folder of images holds; one in which no image can be is refused."""
    try:
        return _look(data, name)
    except ProtofedError as fault:
        what, _, fix = str(fault).partition("\n")
        raise ProtofedError(f"{what}\n{_own_level(data, name) or fix or ALONE}") from fault


def _look(data: Path, name: str) -> FoundImages:
    if not data.is_dir():
        raise ProtofedError(f"--data {data}: no such folder\nit must hold class/image")
    found = single_domain_layout(data, name)
    files = list(found.files())
    good = [file for file in files if not file.fault and os.access(file.path, os.R_OK)]
    if not good:
        raise ProtofedError(f"{data} holds no image that can be read")
    fine = {file.name for file in good}
    return FoundImages(found.classes, good, [file.name for file in files if file.name not in fine])


def _own_level(data: Path, name: str) -> str:
    """What to give instead of a folder with the images of several sites, if it is one."""
    try:
        _look(data / name, name)
    except ProtofedError:
        return ""
    return f"it holds the images of several sites: give --data {data / name}"
