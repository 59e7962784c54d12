"""Flower's SuperLink in a process of ours: it moves messages and runs no app."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from protofed.deploy.flower_client import CallError, FlowerClient, bundle_hash
from protofed.deploy.flower_compat import (
    OBJECT_FRAME,
    ServerHandlers,
    has_more_objects,
    max_object_count,
    read_pushed_reply,
    register_site,
    replace_server_handlers,
    run_superlink,
    server_handlers,
)
from protofed.deploy.keys import public_bytes, read_key_file
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_pipe

LOOK = 2.0  # seconds between two looks at the folder


class KeyRegistry:
    """Registers the sites' public keys with Flower's server, and follows their folder.

    `folder` holds a ``NAME.pub`` per site. `tell` receives a line for each file that holds no
    usable key, once per reason. The names of the sites that may join are in `names`.
    """

    def __init__(self, client: FlowerClient, folder: Path, tell: Callable[[str], None]):
        self.client, self.folder, self.tell = client, folder, tell
        self.names: tuple[str, ...] = ()  # of the sites that may join
        self.registered: set[bytes] = set()
        self.refused: dict[str, str] = {}  # the reason by the name of a file, reported once

    def update(self) -> bool:
        """Register new keys; True if the sites that may join have changed.

        Flower takes no key twice and forgets none, so a removed key stays known to it; the gate
        keeps that site out.
        """
        before, self.names = self.names, ()
        for name, public in self._read().items():
            try:
                if public not in self.registered:
                    register_site(self.client.call, name, public)
                    self.registered.add(public)
                self.names = (*self.names, name)
            except CallError as fault:
                self._refuse(name, f"Flower does not take it: {fault}")
        return self.names != before

    def _read(self) -> dict[str, bytes]:
        """The keys of the folder by name; a file without one is reported and skipped."""
        found: dict[str, bytes] = {}
        for file in sorted(self.folder.glob("*.pub")):
            held = read_key_file(str(file))
            public = public_bytes(held.key) if held.key else b""
            if not public:
                self._refuse(file.stem, held.fault)
            elif public in found.values():
                self._refuse(file.stem, "it is the key of another site, too")
            else:
                found[file.stem] = public
        return found

    def _refuse(self, name: str, reason: str) -> None:
        if self.refused.get(name) != reason:
            self.refused[name] = reason
            file = self.folder / f"{name}.pub"
            self.tell(f"warning: {file} is no public key of a site: {reason}")

    def follow(self, changed: Callable[[], None], ended: threading.Event) -> None:
        """Follow the folder in the background until `ended`; `changed` is called on each change."""

        def watch() -> None:
            while not ended.wait(LOOK):
                try:
                    if self.update():
                        changed()
                except (ProtofedError, OSError) as fault:
                    if not ended.is_set():
                        self.tell(f"warning: the sites' keys cannot be followed: {fault}")

        threading.Thread(target=watch, daemon=True).start()


SECRET_FILE = "PROTOFED_SERVER_SECRET"  # in the environment: where the secret is written
SECRET_HEADER = "protofed-secret"
OPEN = ("/health",)
FLEET = "/v1/fleet/"
# The calls of `serve` and `submit`; Flower has fifty more that are not needed here.
OWN = {
    *("/v1/control/start-run", "/v1/control/register-node"),
    *("/v1/runtime/acquire-task", "/v1/runtime/send-task-heartbeat"),
    *("/v1/runtime/pull-task-input", "/v1/runtime/push-task-output", "/v1/runtime/get-nodes"),
    *("/v1/runtime/push-messages", "/v1/runtime/pull-messages"),
    *("/v1/runtime/push-object", "/v1/runtime/pull-object"),
    "/v1/runtime/confirm-message-received",
}
MOST_BODY = 6 << 20  # bytes of a request; Flower cuts arrays into pieces of 5 MiB
MOST_SESSIONS = 10_000  # answers that are on their way into memory at the same time

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class ServerGuard:
    """ASGI middleware before Flower's server: only calls that bring the secret reach it.

    With keys, the gate brings the secret for the sites. Without keys, sites call directly, and
    `open_fleet` lets them. Bodies longer than any honest one are broken off.
    """

    def __init__(self, app: App, secret: str, open_fleet: bool):
        self.app, self.secret, self.open_fleet = app, secret.encode(), open_fleet

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One request, as ASGI hands it over."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self.passes(scope)):
            await self.app(scope, bounded(receive), send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"not for you\n"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def passes(self, scope: Scope) -> bool:
        """Whether a request may reach Flower."""
        path = scope["path"]
        if path in OPEN:
            return True
        if path.startswith(FLEET) and self.open_fleet:
            return True
        given = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
        known = hmac.compare_digest(given, self.secret)
        return known and (path in OWN or path.startswith(FLEET))


def bounded(receive: Receive) -> Receive:
    """Wrap an ASGI `receive` so it breaks off a body longer than any honest one.

    To Flower it looks as if the client had hung up.
    """
    taken = 0

    async def next_piece() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= MOST_BODY else {"type": "http.disconnect"}

    return next_piece


class ReplyLimits:
    """How many bytes each reply that is being handed in may still bring.

    The limit of a reply is known from the request that it answers. Flower gives the parts of one
    reply a session, by which they are counted here.
    """

    def __init__(self) -> None:
        self.left: OrderedDict[str, int] = OrderedDict()  # by Flower's session of one answer
        self.lock = threading.Lock()

    def begin(self, session: str, most: int) -> None:
        """An answer of at most so many bytes is about to come."""
        with self.lock:
            self.left[session] = most
            while len(self.left) > MOST_SESSIONS:
                self.left.popitem(last=False)

    def takes(self, session: str, size: int) -> bool:
        """Whether another part of an answer still fits; none does of one that was not announced."""
        with self.lock:
            left = self.left.get(session, -1) - size
            if session in self.left:
                self.left[session] = left
            return left >= 0


def limit_text(most: int) -> str:
    """The size limit of an answer, as text for the head of a request.

    Flower keeps such a text, which it calls a group, with the request, so the server finds it when
    the answer comes.
    """
    return f"at-most-{most}"


def limit_from(text: str) -> int:
    """The limit in bytes that `limit_text` wrote; 0 for any other text.

    So a request that the coordinator did not write allows no answer.
    """
    number = text.removeprefix("at-most-")
    return int(number) if number.isdecimal() and len(number) < 16 else 0


class GuardedHandlers:
    """Flower's own handlers, each behind a check of ours.

    They start no app but protofed's, take no reply in the name of another site, and take no more
    bytes than the coordinator expects.
    """

    def __init__(self, flower: ServerHandlers):
        self.flower = flower
        self.limits = ReplyLimits()

    def start_run(self, request: Any, *rest: Any, **more: Any) -> Any:
        """Start a run, if it is under our bundle."""
        if hashlib.sha256(request.fab.content).hexdigest() != bundle_hash() or request.app_spec:
            raise _refused(403, "only protofed's own app is started here")
        return self.flower.start_run(request, *rest, **more)

    def push_messages(self, request: Any, state: Any) -> Any:
        """Take the head of an answer, if it is the site's own and no longer than was expected."""
        reply = read_pushed_reply(request, state)
        if reply is None:
            raise _refused(400, "one answer at a time")
        if reply.claimed_by != reply.pushed_by:
            raise _refused(403, "an answer in the name of another site")
        most = limit_from(reply.group)
        objects = max_object_count(most)
        if has_more_objects(reply.tree, objects):
            raise _refused(413, f"at most {most} bytes are expected")
        answer = self.flower.push_messages(request, state)
        if answer.objects_to_push:
            self.limits.begin(answer.session_id, most + objects * OBJECT_FRAME)
        return answer

    def push_object(self, request: Any, state: Any) -> Any:
        """Take a part of an answer, if it still fits."""
        if not self.limits.takes(request.session_id, len(request.object_content)):
            raise _refused(413, "more than was expected")
        return self.flower.push_object(request, state)


def _refused(status: int, reason: str) -> Exception:
    from fastapi import HTTPException

    return HTTPException(status, reason)


def install_guard(secret: str, open_fleet: bool) -> None:
    """Put our checks before Flower's own handlers, in the process of the server.

    `open_fleet` lets sites call without the secret, for a server without keys. The tests verify
    with a real server that the checks hold.
    """
    from starlette.middleware import Middleware

    logging.getLogger("uvicorn.access").addFilter(lambda record: False)  # sites ask all the time
    guarded = GuardedHandlers(server_handlers())
    guard = Middleware(ServerGuard, secret=secret, open_fleet=open_fleet)
    replace_server_handlers(
        ServerHandlers(guarded.start_run, guarded.push_messages, guarded.push_object), (guard,)
    )


def superlink_main() -> None:
    """Run a guarded ``flower-superlink``: ``flower_server ARGUMENTS... --life HANDLE``.

    The arguments are Flower's own. The process ends when the other end of the pipe HANDLE is
    closed.
    """
    _, *rest = sys.argv
    *arguments, _, life = rest
    exit_with_pipe(int(life))
    install_guard(Path(os.environ[SECRET_FILE]).read_text().strip(), "--insecure" in arguments)
    run_superlink(arguments)


if __name__ == "__main__":
    superlink_main()
