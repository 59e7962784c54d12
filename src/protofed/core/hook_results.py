"""What a method's hooks return, checked where they are called, so that a slip is told in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import cast

from protofed.core.message import Message
from protofed.core.method import AnyMethod, C, Method, S, ServerState
from protofed.core.site import ClientId, Site
from protofed.errors import ProtofedError


@contextmanager
def explain_hook_faults(method: AnyMethod, hook: str) -> Iterator[None]:
    """Turn an attempt to keep state on the method into an error that says where state belongs."""
    try:
        yield
    except FrozenInstanceError as fault:
        raise ProtofedError(
            f"{_name(method, hook)}: {fault}: a method holds no state between calls\n"
            "return it instead: a client's from init_client and train, the server's from "
            "init_server and merge"
        ) from fault


def check_trained(method: Method[S, C], result: object) -> tuple[Message, C]:
    """What `train` returned, if it is a reply and a client's state."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Message):
        return result
    raise ProtofedError(
        f"{_name(method, 'train')} must return a message and the client's private state, as in "
        f"`return reply, state`; got {_kind(result)}"
    )


def check_sent(method: AnyMethod, result: object) -> dict[ClientId, Message]:
    """What `send` returned, if it is a message for each of some clients."""
    if isinstance(result, Mapping) and all(isinstance(one, Message) for one in result.values()):
        return dict(result)
    raise ProtofedError(
        f"{_name(method, 'send')} must return a message for each client, as in "
        f"`return dict.fromkeys(to, message)`; got {_kind(result)}"
    )


def check_server_state(method: Method[S, C], hook: str, result: object) -> S:
    """What `merge` or `init_server` returned, if it is a server's state."""
    if isinstance(result, ServerState):
        return cast(S, result)  # of which kind is the method's own affair
    raise ProtofedError(
        f"{_name(method, hook)} must return the server's state, a ServerState or a node derived "
        f"from it; got {_kind(result)}"
    )


def first_server_state(method: Method[S, C], site: Site) -> S:
    """The server's state before the first round, as the method makes it."""
    with explain_hook_faults(method, "init_server"):
        made = method.init_server(site)
    return check_server_state(method, "init_server", made)


def _name(method: AnyMethod, hook: str) -> str:
    return f"{type(method).__name__}.{hook}"


def _kind(result: object) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return "nothing (None)" if result is None else f"a {type(result).__name__}"
