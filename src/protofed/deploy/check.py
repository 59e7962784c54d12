"""What a site can find out before it joins: server, keys, clock, versions, images, room."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.core.machine import free_memory
from protofed.deploy.keys import PORT
from protofed.deploy.lines import CheckLine, format_check_lines, name_some
from protofed.deploy.own import JoiningSite, check_keys, look_at_images, read_site_card
from protofed.deploy.policy import SitePolicy, read_policy
from protofed.deploy.reach import check_registration, probe_server

__all__ = ["CheckLine", "format_check_lines", "run_preflight"]

FLOWER = "1.41."  # whose commands and ports we know
GB = 10**9
LEAST_DISK, LEAST_MEMORY = 2 * GB, 1 * GB


def run_preflight(site: JoiningSite) -> list[CheckLine]:
    """Look at all that a site needs to take part; nothing is changed anywhere."""
    lines = [*probe_server(site.server, site.keys), *_key(site)]
    if site.keys and all(line.ok is not False for line in lines):
        lines.append(check_registration(site.server, site.keys))
    lines += _versions()
    try:
        policy = read_policy(site.policy)
        lines.append(CheckLine("policy", True, "; ".join(policy.words())))
    except ProtofedError as fault:
        policy = SitePolicy()
        lines.append(_failed("policy", fault))
    return [*lines, *_data(site, policy.min_examples), *_room(site.home)]


def _failed(name: str, fault: ProtofedError) -> CheckLine:
    what, _, fix = str(fault).partition("\n")
    return CheckLine(name, False, what, fix.replace("\n", " "))


def _key(site: JoiningSite) -> Iterator[CheckLine]:
    """Whether the site's own key is there, whole, and for its owner's eyes alone."""
    if site.keys is None:
        yield CheckLine("key", None, "none: only a server on this machine lets such a site in")
        return
    try:
        check_keys(site.keys, site.name)
    except ProtofedError as fault:
        yield _failed("key", fault)
        return
    except ImportError:
        yield CheckLine("key", False, "cannot be looked at", "pip install 'protofed[flower]'")
        return
    private = site.keys / "site.key"
    mode = private.stat().st_mode & 0o777
    if mode & 0o077:
        text = f"{private} can be read by others on this machine (mode {mode:o})"
        yield CheckLine("key", False, text, f"chmod 600 {private}")
    else:
        yield CheckLine("key", True, f"of site {site.name}")
    told = str(read_site_card(site.keys).get("server", ""))
    if told and site.server not in (told, told.removesuffix(f":{PORT}")):
        yield CheckLine("key", None, f"was made for the server at {told}, not for {site.server}")


def _versions() -> Iterator[CheckLine]:
    """What is installed; Flower's version must be the one that this release was written for."""
    found = {"python": platform.python_version()}
    for name in ("protofed", "torch", "flwr"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    right = found["flwr"].startswith(FLOWER)
    yield CheckLine("versions", right, text, "" if right else "pip install 'protofed[flower]'")


def _data(site: JoiningSite, least: int) -> Iterator[CheckLine]:
    """Whether the images can be read, and how many there are of each class."""
    try:
        found = look_at_images(site.data, site.name)
    except ProtofedError as fault:
        yield _failed("data", fault)
        return
    text = f"{len(found.good)} images of {len(found.classes)} classes"
    if found.bad:
        yield CheckLine(
            "data", None, f"{text}; not readable: {name_some(found.bad)}", "mend or remove these"
        )
    else:
        yield CheckLine("data", True, text)
    each = Counter(file.label for file in found.good)
    if few := [label for label in found.classes if each[label] < least]:
        text = f"fewer than {least} images of {name_some(few)}: by the policy (min_examples), "
        yield CheckLine("data", None, f"{text}their prototypes are not sent")
    text = f"{name_some(found.classes)}: compared with the other sites' when the first run starts"
    yield CheckLine("classes", None, text)


def _room(home: Path) -> Iterator[CheckLine]:
    """Whether there is room for checkpoints and for training."""
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    disk, memory = shutil.disk_usage(place).free, free_memory()
    free = f"{disk / GB:.1f} GB free at {place}"
    yield CheckLine("disk", disk >= LEAST_DISK, free, f"make room for {LEAST_DISK // GB} GB")
    yield CheckLine("write", os.access(place, os.W_OK), f"into {place}", "choose another --home")
    text = f"{memory / GB:.1f} GB free"
    yield CheckLine("memory", memory >= LEAST_MEMORY, text, f"{LEAST_MEMORY // GB} GB are needed")
