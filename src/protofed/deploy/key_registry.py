"""Lets Flower's server know the keys of a folder, and follows the folder as it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flwr.proto.control_pb2 import (
    RegisterNodeRequest,
    RegisterNodeResponse,
    UnregisterNodeRequest,
    UnregisterNodeResponse,
)

from protofed.core.errors import ProtofedError
from protofed.deploy.flower_client import CallError, FlowerClient
from protofed.deploy.known import look, public_bytes

LOOK = 2.0  # seconds between two looks at the folder


class Registered(NamedTuple):
    """A site that Flower's server knows."""

    public: bytes
    node: int


class KeyRegistry:
    """The sites whose keys are registered; `tell` is told of files that hold no key."""

    def __init__(self, client: FlowerClient, folder: Path, tell: Callable[[str], None]):
        self.client, self.folder, self.tell = client, folder, tell
        self.known: dict[str, Registered] = {}
        self.refused: dict[str, str] = {}  # why, by the name of a file; told once

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that may join."""
        return tuple(sorted(self.known))

    def update(self) -> bool:
        """Bring Flower's server in line with the folder; whether anything has changed."""
        found = self._read()
        changed = False
        for name in [n for n in self.known if found.get(n) != self.known[n].public]:
            asked = UnregisterNodeRequest(node_id=self.known.pop(name).node)
            self.client.call("control/unregister-node", asked, UnregisterNodeResponse)
            changed = True
        for name, public in found.items():
            if name not in self.known:
                self.known[name] = Registered(public, self._register(name, public))
                changed = True
        return changed

    def _register(self, name: str, public: bytes) -> int:
        asked = RegisterNodeRequest(public_key=public, name=name)
        try:
            answer = self.client.call("control/register-node", asked, RegisterNodeResponse)
        except CallError as fault:
            raise ProtofedError(f"the key of {name} was not taken: {fault}") from fault
        return int(answer.node_id)

    def _read(self) -> dict[str, bytes]:
        """The keys of the folder by name; a file that holds none is told of and passed over."""
        found: dict[str, bytes] = {}
        for file in sorted(self.folder.glob("*.pub")):
            held = look(str(file))
            if held.key:
                found[file.stem] = public_bytes(held.key)
            elif self.refused.get(file.name) != held.fault:
                self.refused[file.name] = held.fault
                self.tell(f"warning: {file} is no public key of a site: {held.fault}")
        return found

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
