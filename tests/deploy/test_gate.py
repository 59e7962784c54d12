"""What the public port lets through, tried with a real Flower server behind it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from protofed.deploy.gate import MOST_BODY, MOST_PART
from tests.deploy.flower import Guarded, status

pytest.importorskip("flwr", reason="needs the flower extra")

MEDIA = "Content-Type: application/protobuf"
ROUTES = """
import json
from fastapi.routing import iter_route_contexts
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.main import create_app
found = {tuple(key) for key in PROTOBUF_REQUEST_TYPES}
for context in iter_route_contexts(create_app().routes):
    route = context.route
    found |= {(m, route.path) for m in getattr(route, "methods", None) or ["GET", "POST"]}
print("\\n" + json.dumps(sorted(found)))
"""


@pytest.fixture(scope="session")
def routes() -> list[tuple[str, str]]:
    """Every method and path that the installed Flower serves."""
    ended = subprocess.run(
        [sys.executable, "-c", ROUTES], capture_output=True, text=True, timeout=240, check=True
    )
    return [(method, path) for method, path in json.loads(ended.stdout.splitlines()[-1])]


def test_of_all_routes_only_those_for_sites_are_reached(
    federation: Guarded, routes: list[tuple[str, str]]
) -> None:
    other = [route for route in routes if not route[1].startswith("/v1/fleet/")]
    kinds = {path.split("/")[2] for _, path in other if path.startswith("/v1/")}
    assert {"control", "runtime"} <= kinds
    assert len(other) > 50
    found = {route: federation.ask(*route) for route in other}
    assert set(found.values()) == {403}
    passed = {p: federation.ask(m, p, MEDIA) for m, p in routes if p.startswith("/v1/fleet/")}
    assert len(passed) > 10
    assert set(passed.values()) == {401}  # Flower's own answer to who has no key


def test_what_is_refused_at_the_gate_flower_would_have_answered(federation: Guarded) -> None:
    """The reason for the gate; if Flower asks for credentials one day, this tells us."""
    for path in ("/v1/control/list-runs", "/v1/control/list-nodes"):
        assert federation.ask("POST", path, MEDIA, port=federation.inner) == 200
        assert federation.ask("POST", path, MEDIA) == 403


TRICKS = [
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "/v1/fleet/%2E%2E%2Fcontrol%2Flist-runs",
    "/v1/fleet/..;/control/list-runs",
    "/v1/fleet/.%00./control/list-runs",
    "/v1/fleet/..\\control\\list-runs",
    "/v1/fleet//../control/list-runs",
    "//v1/control/list-runs",
    "//v1/fleet/activate-node",
    "/v1//fleet/activate-node",
    "/v1/fleet/",
    "/v1/fleet",
    "/v1/fleet/activate-node/",
    "/v1/fleet/activate-node/../../control/list-runs",
    "/v1/fleet/activate-node?x=/v1/control/list-runs",
    "/v1/fleet/activate-node%3f",
    "/v1/fleet/activate%2dnode",
    "/V1/fleet/activate-node",
    "/v1/Fleet/activate-node",
    "/v1/control/list-runs?/v1/fleet/activate-node",
    "/v1/control/list-runs%23/v1/fleet/activate-node",
    "http://localhost/v1/control/list-runs",
    "http://localhost/v1/fleet/activate-node",
    "https://127.0.0.1/v1/fleet/../control/list-runs",
    "*",
    "/",
    "/docs",
    "/openapi.json",
    "/health",
]


@pytest.mark.parametrize("target", TRICKS)
def test_no_spelling_of_a_path_leads_around_the_gate(federation: Guarded, target: str) -> None:
    assert federation.ask("POST", target) == 403


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "X"]
)
def test_no_other_method_is_passed_on(federation: Guarded, method: str) -> None:
    assert federation.ask(method, "/v1/fleet/activate-node") == 403


@pytest.mark.parametrize(
    "headers",
    [
        ("X-Original-URL: /v1/control/list-runs",),
        ("X-Rewrite-URL: /v1/control/list-runs",),
        ("X-HTTP-Method-Override: GET",),
        ("X-Forwarded-Prefix: /v1/control", "X-Forwarded-For: 127.0.0.1"),
        ("Upgrade: websocket", "Connection: Upgrade"),
        ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQ"),
    ],
)
def test_headers_do_not_lead_around_the_gate(federation: Guarded, headers: tuple[str, ...]) -> None:
    assert federation.ask("POST", "/v1/fleet/activate-node", MEDIA, *headers) == 401
    assert federation.ask("GET", "/v1/fleet/activate-node", *headers) == 403
    assert federation.ask("POST", "/v1/control/list-runs", *headers) == 403


SECOND = "POST /v1/control/list-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        f"Content-Length: {len(SECOND)}\r\nTransfer-Encoding: chunked",
        f"Content-Length: 0\r\nContent-Length: {len(SECOND)}",
        "Transfer-Encoding: xchunked",
        f"Content-Length: +{len(SECOND)}",
        "Content-Length: -1",
        f"Content-Length : {len(SECOND)}",
        " Content-Length: 0",
    ],
)
def test_no_second_request_is_smuggled_in_a_body(federation: Guarded, headers: str) -> None:
    first = f"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
    answers = federation.say(f"{first}0\r\n\r\n{SECOND}".encode()).split(b"HTTP/1.1 ")[1:]
    assert answers
    assert all(int(answer[:3]) >= 400 for answer in answers)


def test_a_second_request_on_one_connection_is_judged_anew(federation: Guarded) -> None:
    head = "POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\n"
    head += f"{MEDIA}\r\nContent-Length: 0\r\n\r\n"
    answers = federation.say((head + SECOND).encode()).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [401, 403]


def test_too_large_a_body_is_refused_before_it_is_read(federation: Guarded) -> None:
    path = "/v1/fleet/push-object"
    other = "/v1/fleet/push-messages"
    assert federation.ask("POST", path, f"Content-Length: {MOST_PART + 1}") == 413
    assert federation.ask("POST", other, f"Content-Length: {MOST_BODY + 1}") == 413
    assert federation.ask("POST", path, f"Content-Length: {10**30}") == 400
    head = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
    piece = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    sent = f"{head}\r\n\r\n".encode() + piece * (MOST_PART // (1 << 20) + 1)
    assert status(federation.say(sent)) == 413


def test_a_body_up_to_the_limit_reaches_flower(federation: Guarded) -> None:
    head = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"{MEDIA}\r\nContent-Length: {MOST_PART}\r\n\r\n"
    answer = federation.say(head.encode() + bytes(MOST_PART))
    assert status(answer) == 400  # zeros are no message of Flower's
    assert b"protobuf" in answer.lower()
