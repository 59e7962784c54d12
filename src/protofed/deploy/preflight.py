"""What a site can check before it joins: keys, images, server, certificate, clock, versions."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from protofed.core.site import holdout_size
from protofed.data.folder_images import TEST_SHARE
from protofed.data.folder_layout import ImageFile, single_domain_layout
from protofed.deploy.keys import PORT, ServerAddress, SiteKey, parse_address
from protofed.deploy.policy import SitePolicy, read_policy
from protofed.errors import ProtofedError, count_noun
from protofed.runtime.console import NETWORK, CheckLine, format_check_lines, name_some
from protofed.runtime.resources import free_memory

KEY_FILES = ("ca.crt", "site.key", "site.pub", "site.json")
WHOLE = "ask the coordinator for this site's folder of keys, complete and unchanged"
ALONE = "give the folder that holds one folder for each class, with this site's images in them"


class JoiningSite(NamedTuple):
    """A site that joins a federation, as `protofed join` is given it.

    `data` is its folder of images, `home` the folder for its own files. Without `keys` it can join
    a server on this machine only; without `policy` it has the default one.
    """

    server: str  # HOST:PORT
    name: str
    data: Path
    home: Path
    keys: Path | None = None
    policy: Path | None = None


class FoundImages(NamedTuple):
    """What a folder of images holds, as far as that is seen without opening its files.

    `bad` are the names of files that cannot be images, or cannot be read.
    """

    classes: tuple[str, ...]
    good: list[ImageFile]
    bad: list[str]  # names of files that cannot be images, or not be read


def check_keys(keys: Path, name: str) -> None:
    """Refuse a folder that is not the complete folder of keys of the site called `name`.

    The error says which folder to give instead, where that can be seen.
    """
    missing = [file for file in KEY_FILES if not (keys / file).is_file()]
    if missing:
        raise ProtofedError(f"{keys} lacks {', '.join(missing)}", hint=_other_folder(keys, name))
    if fault := _content_fault(keys):
        raise ProtofedError(fault, hint=WHOLE)
    told = read_site_card(keys).get("name")
    if told != name:
        raise ProtofedError(
            f"the keys in {keys} are those of site {told}, not of {name}",
            hint=f"use <name={told}>, or the folder of keys that was made for {name}",
        )


def read_site_card(keys: Path) -> dict[str, object]:
    """What ``site.json`` in a folder of keys says: the site's name and its server.

    Empty if it cannot be read.
    """
    try:
        return dict(json.loads((keys / "site.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _other_folder(keys: Path, name: str) -> str:
    """What to do with a folder that is not a site's."""
    if not keys.is_dir():
        return f"there is no such folder; give the one that the coordinator made for {name}"
    if (keys / name / "site.json").exists():
        return f"it holds the keys of all sites: use <keys={keys / name}>"
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
    return "" if told else f"{keys / 'site.json'} does not name the site"


def look_at_images(data: Path, name: str) -> FoundImages:
    """Look at a site's folder of images; refuse one in which no image can be.

    The error of a folder that is one level too high names the right one.
    """
    try:
        return _look(data, name)
    except ProtofedError as fault:
        line = _failed("data", fault)
        raise ProtofedError(line.text, hint=_own_level(data, name) or line.fix or ALONE) from fault


def _look(data: Path, name: str) -> FoundImages:
    if not data.is_dir():
        raise ProtofedError(
            f"{data}: no such folder", hint="<data> must be a folder of images, class/image"
        )
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
    return f"it holds the images of several sites: use <data={data / name}>"


SECONDS = 10  # for a connection, and for an answer
SOON = 14 * 86400  # seconds before its end at which a certificate is reported
# Flower refuses signatures that are older than 300 s, or from a future of more than 5 s.
MOST_BEHIND, MOST_AHEAD = 300, 5
NOTHING = "/v1/fleet/nothing"  # passes the gate with a known signature, and is nowhere behind it


class ServerProbe(NamedTuple):
    """What came back from one request to a server: its status, its clock, its certificate.

    `asked` is our own clock in the middle of the exchange.
    """

    status: int
    date: str
    ends: float | None  # when the certificate does
    asked: float  # our clock, in the middle of the exchange


def probe_server(text: str, keys: Path | None) -> Iterator[CheckLine]:
    """Check a server's address, certificate, gate and clock; a line for each.

    Stops at the first that makes the next impossible.
    """
    try:
        address = parse_address(text)
        socket.create_connection(address, SECONDS).close()
    except (ProtofedError, OSError) as fault:
        yield CheckLine("address", False, f"{text}: {fault}", NETWORK)
        return
    yield CheckLine("address", True, f"{address} is reached")
    try:
        seen = request_health(address, keys)
    except ssl.SSLCertVerificationError as fault:
        told = f"{fault.verify_message}; it was checked against {(keys or Path()) / 'ca.crt'}"
        yield CheckLine(
            "certificate", False, told, "is this the federation's server? ask the coordinator"
        )
        return
    except (OSError, http.client.HTTPException) as fault:
        told = f"cannot be checked: {fault or type(fault).__name__}"
        yield CheckLine("certificate", False, told, f"{NETWORK} is ca.crt with the keys?")
        return
    yield from check_certificate(seen, address)
    yield check_gate(seen)
    yield check_clock(seen)


def check_registration(text: str, keys: Path) -> CheckLine:
    """Check whether the server knows a site's key.

    Sends an empty signed request, which passes the gate only with a known key.
    """
    link = _link(parse_address(text), keys)
    try:
        headers = SiteKey(keys / "site.key").headers()
        link.request("POST", NOTHING, b"", headers)
        known = link.getresponse().status != 401
    except (OSError, http.client.HTTPException) as fault:
        return CheckLine("registered", None, f"cannot be checked: {fault or type(fault).__name__}")
    finally:
        link.close()
    text = "the server knows this key" if known else "the server does not know this key"
    fix = "ask the coordinator to put site.pub into the server's folder server/sites"
    return CheckLine("registered", known, text, fix)


def _link(address: ServerAddress, keys: Path | None) -> http.client.HTTPConnection:
    if keys is None:
        return http.client.HTTPConnection(*address, timeout=SECONDS)
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    return http.client.HTTPSConnection(*address, timeout=SECONDS, context=trust)


def request_health(address: ServerAddress, keys: Path | None) -> ServerProbe:
    """Ask a server for something that the gate refuses to everybody.

    The answer shows its clock, its certificate, and whether there is a gate.
    """
    link = _link(address, keys)
    try:
        link.connect()
        shown = link.sock.getpeercert() if isinstance(link.sock, ssl.SSLSocket) else None
        ends = ssl.cert_time_to_seconds(str(shown["notAfter"])) if shown else None
        before = time.time()
        link.request("GET", "/health")
        answer = link.getresponse()
        middle = (before + time.time()) / 2
        return ServerProbe(answer.status, answer.getheader("Date", ""), ends, middle)
    finally:
        link.close()


def check_certificate(seen: ServerProbe, address: ServerAddress) -> Iterator[CheckLine]:
    """Check how long the certificate holds; its signature has been verified by then."""
    if seen.ends is None:
        local = address.host in ("localhost", "127.0.0.1", "::1")
        text = "none, as no keys were given: anybody on the way can read and change everything"
        yield CheckLine("certificate", None if local else False, text, "give <keys>")
        return
    left = seen.ends - time.time()
    text = (
        f"by our authority, for {address.host}, until {time.strftime('%F', time.gmtime(seen.ends))}"
    )
    yield CheckLine("certificate", None if left < SOON else True, text, "ask for its renewal")


def check_gate(seen: ServerProbe) -> CheckLine:
    """Check that a gate stands before Flower: a stranger's request must get a 403."""
    if seen.ends is None or seen.status == 403:
        text = "closed to all but sites" if seen.ends else "none, as no keys were given"
        return CheckLine("gate", True if seen.ends else None, text)
    text = f"the server answers {seen.status} to a stranger: all of Flower stands open there, and "
    text += "whoever reaches it can run code at this site"
    return CheckLine(
        "gate", False, text, "do not join; the server must be started by `protofed serve`"
    )


def check_clock(seen: ServerProbe) -> CheckLine:
    """Check how far this machine's clock is from the server's.

    Flower refuses signatures that are too old, or from the future.
    """
    try:
        ahead = round(seen.asked - parsedate_to_datetime(seen.date).timestamp() - 0.5)
    except ValueError:
        return CheckLine("clock", None, "the server does not tell its time")
    text = f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    right = -MOST_BEHIND < ahead < MOST_AHEAD
    limits = f"at most {MOST_AHEAD} s ahead and {MOST_BEHIND} s behind are let in: set it by NTP"
    return CheckLine("clock", right, text, limits)


__all__ = ["CheckLine", "format_check_lines", "run_preflight"]

FLOWER = "1.41."  # whose commands and ports we know
GB = 10**9
LEAST_DISK, LEAST_MEMORY = 2 * GB, 1 * GB


def run_preflight(site: JoiningSite) -> list[CheckLine]:
    """Check everything a site needs to take part, without changing anything anywhere.

    Covers the server, the keys, the installed versions, the policy, the images, and room on disk
    and in memory; returns a line per check.
    """
    lines = [*probe_server(site.server, site.keys), *_key(site)]
    if site.keys and all(line.ok is not False for line in lines):
        lines.append(check_registration(site.server, site.keys))
    lines += _versions()
    try:
        policy = read_policy(site.policy)
        lines += [CheckLine("policy", True, line) for line in policy.describe()]
    except ProtofedError as fault:
        policy = SitePolicy()
        lines.append(_failed("policy", fault))
    return [*lines, *_data(site, policy), *_room(site.home)]


def _failed(name: str, fault: ProtofedError) -> CheckLine:
    what, *more = str(fault.args[0]).split("\n")
    return CheckLine(name, False, what, " ".join([*more, *fault.hint.split("\n")]).strip())


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
        yield CheckLine("key", False, "cannot be checked", "pip install 'protofed[flower]'")
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


def _data(site: JoiningSite, policy: SitePolicy) -> Iterator[CheckLine]:
    """Whether the images can be read, and how many there are of each class."""
    try:
        found = look_at_images(site.data, site.name)
    except ProtofedError as fault:
        yield _failed("data", fault)
        return
    text = describe_images(found)
    if found.bad:
        yield CheckLine(
            "data", None, f"{text}; not readable: {name_some(found.bad)}", "fix or remove these"
        )
    else:
        yield CheckLine("data", True, text)
    yield from _small_classes(found, policy)
    text = f"{name_some(found.classes)}: compared with the other sites' when the first run starts"
    yield CheckLine("classes", None, text)


def describe_images(found: FoundImages) -> str:
    """How many images there are: ``95 images of 3 classes``."""
    classes = len(found.classes)
    return f"{count_noun(len(found.good), 'image')} of {classes} class{'es' * (classes != 1)}"


def _small_classes(found: FoundImages, policy: SitePolicy) -> Iterator[CheckLine]:
    """What the policy keeps back because a class has too few images."""
    least, each = policy.min_examples, Counter(file.label for file in found.good)
    if few := [label for label in found.classes if each[label] < least]:
        text = f"fewer than {least} images of {name_some(few)}: by the policy (min_examples), "
        yield CheckLine("data", None, f"{text}their prototypes are not sent")
    tests = expected_test_counts(found)
    if few := [label for label in found.classes if 0 < tests[label] < least]:
        text = f"fewer than {least} test images of {name_some(few)}: as this site keeps its counts "
        text += "back (send_counts), it will never be scored"
        fix = "add images, lower min_examples, or set send_counts = true"
        if not policy.send_counts:
            yield CheckLine("scores", None, text, fix)


def expected_test_counts(found: FoundImages) -> Counter[str]:
    """How many test images each class will have, if every file turns out to be an image.

    They are those of the folder for tests; a site without one tests on a fifth of each class.
    """
    if any(file.part == "test" for file in found.good):
        return Counter(file.label for file in found.good if file.part == "test")
    every = Counter(file.label for file in found.good)
    return Counter({label: holdout_size(count, TEST_SHARE) for label, count in every.items()})


def _room(home: Path) -> Iterator[CheckLine]:
    """Whether there is room for checkpoints and for training."""
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    disk, memory = shutil.disk_usage(place).free, free_memory()
    free = f"{disk / GB:.1f} GB free at {place}"
    yield CheckLine("disk", disk >= LEAST_DISK, free, f"make room for {LEAST_DISK // GB} GB")
    yield CheckLine("write", os.access(place, os.W_OK), f"into {place}", "choose another <home>")
    text = f"{memory / GB:.1f} GB free"
    yield CheckLine("memory", memory >= LEAST_MEMORY, text, f"{LEAST_MEMORY // GB} GB are needed")
