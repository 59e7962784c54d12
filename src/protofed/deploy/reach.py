"""What can be seen of a server from outside: whether it answers, who it is, what time it has."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from protofed.core.errors import ProtofedError
from protofed.deploy.keys import ServerAddress, parse_address
from protofed.deploy.known import SiteKey
from protofed.deploy.lines import CheckLine

SECONDS = 10  # for a connection, and for an answer
SOON = 14 * 86400  # seconds before its end at which a certificate is told of
# Flower refuses signatures that are older than 300 s, or from a future of more than 5 s.
MOST_BEHIND, MOST_AHEAD = 300, 5
NOTHING = "/v1/fleet/nothing"  # passes the gate with a known signature, and is nowhere behind it
NETWORK = "is the server running, the port open in its firewall, and the address right?"


class ServerProbe(NamedTuple):
    """What came back from one request."""

    status: int
    date: str
    ends: float | None  # when the certificate does
    asked: float  # our clock, in the middle of the exchange


def probe_server(text: str, keys: Path | None) -> Iterator[CheckLine]:
    """The lines on a server's address, certificate, gate and clock."""
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
        told = f"{fault.verify_message}; it was held against {(keys or Path()) / 'ca.crt'}"
        yield CheckLine(
            "certificate", False, told, "is this the federation's server? ask who runs it"
        )
        return
    except (OSError, http.client.HTTPException) as fault:
        told = f"cannot be looked at: {fault or type(fault).__name__}"
        yield CheckLine("certificate", False, told, f"{NETWORK} is ca.crt with the keys?")
        return
    yield from check_certificate(seen, address)
    yield check_gate(seen)
    yield check_clock(seen)


def check_registration(text: str, keys: Path) -> CheckLine:
    """Whether the server knows a site's key: it is asked for nothing, but with a signature."""
    link = _link(parse_address(text), keys)
    try:
        headers = SiteKey(keys / "site.key").headers()
        link.request("POST", NOTHING, b"", headers)
        known = link.getresponse().status != 401
    except (OSError, http.client.HTTPException) as fault:
        return CheckLine(
            "registered", None, f"cannot be looked at: {fault or type(fault).__name__}"
        )
    finally:
        link.close()
    text = "the server knows this key" if known else "the server does not know this key"
    fix = "ask who runs it: the file site.pub belongs into its folder server/sites"
    return CheckLine("registered", known, text, fix)


def _link(address: ServerAddress, keys: Path | None) -> http.client.HTTPConnection:
    if keys is None:
        return http.client.HTTPConnection(*address, timeout=SECONDS)
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    return http.client.HTTPSConnection(*address, timeout=SECONDS, context=trust)


def request_health(address: ServerAddress, keys: Path | None) -> ServerProbe:
    """Ask for something that a guarded server refuses."""
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
    """How long the certificate holds, which has been verified by now."""
    if seen.ends is None:
        local = address.host in ("localhost", "127.0.0.1", "::1")
        text = "none, as no keys were given: anybody on the way can read and change everything"
        yield CheckLine("certificate", None if local else False, text, "give --keys")
        return
    left = seen.ends - time.time()
    text = (
        f"by our authority, for {address.host}, until {time.strftime('%F', time.gmtime(seen.ends))}"
    )
    yield CheckLine("certificate", None if left < SOON else True, text, "ask for its renewal")


def check_gate(seen: ServerProbe) -> CheckLine:
    """Whether a gate stands before Flower."""
    if seen.ends is None or seen.status == 403:
        text = "closed to all but sites" if seen.ends else "none, as no keys were given"
        return CheckLine("gate", True if seen.ends else None, text)
    text = f"the server answers {seen.status} to a stranger: all of Flower stands open there, and "
    text += "whoever reaches it can run code at this site"
    return CheckLine(
        "gate", False, text, "do not join; the server must be started by `protofed serve`"
    )


def check_clock(seen: ServerProbe) -> CheckLine:
    """How far this machine's clock is from the server's."""
    try:
        ahead = round(seen.asked - parsedate_to_datetime(seen.date).timestamp() - 0.5)
    except ValueError:
        return CheckLine("clock", None, "the server does not tell its time")
    text = f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    right = -MOST_BEHIND < ahead < MOST_AHEAD
    limits = f"at most {MOST_AHEAD} s ahead and {MOST_BEHIND} s behind are let in: set it by NTP"
    return CheckLine("clock", right, text, limits)
