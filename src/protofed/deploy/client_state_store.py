"""A site's private states on its own disk, by run, round and leg, and the replies beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.serialization import pack_tree, unpack_tree
from protofed.deploy.request_judge import RUN_NAME
from protofed.engines.site_protocol import SiteRequest
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write, atomic_write_json

KEPT_RUNS = 8  # of which a site keeps states; the longest untouched ones go first
LINEAGE = "lineage.json"
Leg = tuple[int, int]


class KeptReply(NamedTuple):
    """What a site has kept of one leg: its reply, before the policy, and its state after it."""

    reply: Any
    state: Any


class ClientStateStore:
    """The states of one run: what was made in each leg, and which of it the session stands on.

    A leg that is asked for with the same message, from the same state, has the reply that it had
    before, also in a later session. A session that goes back to an earlier round stands on the
    states of before that round, whatever was made after it.
    """

    def __init__(self, home: Path, ask: SiteRequest):
        if not RUN_NAME.fullmatch(ask.run) or not RUN_NAME.fullmatch(ask.session):
            raise ProtofedError("not the name of a run")
        self.folder = home / "runs" / ask.run
        if not self.folder.exists():
            self.folder.mkdir(parents=True, mode=0o700)
            _drop_old(self.folder.parent)
        self.lineage = self._continued(ask)

    def _continued(self, ask: SiteRequest) -> dict[Leg, str]:
        """The legs that the session stands on, each with the key of what was made in it."""
        try:
            told = json.loads((self.folder / LINEAGE).read_bytes())
            session, legs = told["session"], {_leg(name): key for name, key in told["legs"].items()}
        except (OSError, ValueError, TypeError, KeyError):
            session, legs = "", {}
        if session == ask.session:
            return legs
        return {leg: key for leg, key in legs.items() if leg < (ask.start, 0)}

    def before(self, ask: SiteRequest) -> KeptReply | None:
        """What was made in the newest leg before this one."""
        for leg in sorted(
            (leg for leg in self.lineage if leg < (ask.round, ask.leg)), reverse=True
        ):
            if kept := self._read(leg, self.lineage[leg]):
                return kept
        return None

    def at(self, ask: SiteRequest, key: str) -> KeptReply | None:
        """What was made in this leg from the same message and state; the session stands on it."""
        kept = self._read((ask.round, ask.leg), key)
        if kept:
            self._stand_on(ask, key)
        return kept

    def keep(self, ask: SiteRequest, key: str, kept: KeptReply) -> None:
        """Write what came of a leg, and drop what no checkpoint can lead back to."""
        atomic_write(self._file((ask.round, ask.leg), key), pack_tree(list(kept)))
        self._stand_on(ask, key)
        needed = max((leg for leg in self.lineage if leg < (ask.floor, 0)), default=(0, 0))
        for file, leg in self._files():
            if leg < min(needed, (ask.floor, 0)):
                file.unlink(missing_ok=True)

    def _stand_on(self, ask: SiteRequest, key: str) -> None:
        self.lineage[ask.round, ask.leg] = key
        legs = {f"{number}-{leg}": made for (number, leg), made in self.lineage.items()}
        atomic_write_json(self.folder / LINEAGE, {"session": ask.session, "legs": legs})

    def _files(self) -> Iterator[tuple[Path, Leg]]:
        for file in self.folder.glob("*.safetensors"):
            yield file, _leg("-".join(file.stem.split("-")[:2]))

    def _file(self, leg: Leg, key: str) -> Path:
        return self.folder / f"{leg[0]}-{leg[1]}-{key[:32]}.safetensors"

    def _read(self, leg: Leg, key: str) -> KeptReply | None:
        """What was kept; nothing of a file that is gone or damaged, which is made again."""
        try:
            return KeptReply(*unpack_tree(self._file(leg, key).read_bytes()))
        except (OSError, ProtofedError, TypeError):
            return None


def _leg(name: str) -> Leg:
    number, leg = name.split("-")
    return int(number), int(leg)


def _drop_old(runs: Path) -> None:
    folders = sorted(runs.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
