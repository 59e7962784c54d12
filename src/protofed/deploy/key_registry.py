"""Lets Flower's server know the keys of a folder, and follows the folder as it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from flwr.proto.control_pb2 import (
    RegisterNodeRequest,
    RegisterNodeResponse,
)

from protofed.core.errors import ProtofedError
from protofed.deploy.flower_client import CallError, FlowerClient
from protofed.deploy.known import public_bytes, read_key_file

LOOK = 2.0  # seconds between two looks at the folder


class KeyRegistry:
    """The sites whose keys are registered; `tell` is told of files that hold no key."""

    def __init__(self, client: FlowerClient, folder: Path, tell: Callable[[str], None]):
        self.client, self.folder, self.tell = client, folder, tell
        self.names: tuple[str, ...] = ()  # of the sites that may join
        self.registered: set[bytes] = set()
        self.refused: dict[str, str] = {}  # why, by the name of a file; told once

    def update(self) -> bool:
        """Let Flower know of new keys; whether the sites that may join are others than before.

        A key that is removed stays known to Flower, which takes none twice: the gate shuts it out.
        """
        before, self.names = self.names, ()
        for name, public in self._read().items():
            try:
                if public not in self.registered:
                    self._register(name, public)
                    self.registered.add(public)
                self.names = (*self.names, name)
            except CallError as fault:
                self._refuse(name, f"Flower does not take it: {fault}")
        return self.names != before

    def _register(self, name: str, public: bytes) -> None:
        asked = RegisterNodeRequest(public_key=public, name=name)
        self.client.call("control/register-node", asked, RegisterNodeResponse)

    def _read(self) -> dict[str, bytes]:
        """The keys of the folder by name; a file that holds none is told of and passed over."""
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
