"""A site's private states on its own disk, by run, round and place, and the replies beside them."""

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
Place = tuple[int, int]


class KeptReply(NamedTuple):
    """What a site has kept of one exchange: its reply, and its private state after it.

    The reply is stored as it was made; the policy is applied each time it leaves the site.
    """

    reply: Any
    state: Any


class ClientStateStore:
    """The private states and replies of one run, in files of the site.

    An exchange that is asked for with the same message, from the same state, gets the reply it had
    before, also in a later session. So a repeated request costs no training and moves no state. A
    session that resumes at an earlier round builds on the states from before that round, whatever
    was made after it.
    """

    def __init__(self, home: Path, ask: SiteRequest):
        if not RUN_NAME.fullmatch(ask.run) or not RUN_NAME.fullmatch(ask.session):
            raise ProtofedError("not the name of a run")
        self.folder = home / "runs" / ask.run
        if not self.folder.exists():
            self.folder.mkdir(parents=True, mode=0o700)
            _drop_old(self.folder.parent)
        self.lineage = self._continued(ask)

    def _continued(self, ask: SiteRequest) -> dict[Place, str]:
        """The places that the session stands on, each with the key of what was made in it."""
        try:
            told = json.loads((self.folder / LINEAGE).read_bytes())
            session, places = (
                told["session"],
                {_place(name): key for name, key in told["legs"].items()},
            )
        except (OSError, ValueError, TypeError, KeyError):
            session, places = "", {}
        if session == ask.session:
            return places
        return {place: key for place, key in places.items() if place < (ask.start, 0)}

    def before(self, ask: SiteRequest) -> KeptReply | None:
        """What was made in the newest exchange before this one; None for the first one."""
        for place in sorted(
            (place for place in self.lineage if place < (ask.round, ask.exchange)), reverse=True
        ):
            if kept := self._read(place, self.lineage[place]):
                return kept
        return None

    def at(self, ask: SiteRequest, key: str) -> KeptReply | None:
        """What was made in this exchange from the same message and state, if anything.

        The session builds on it from then on. `key` is the digest of both, see `site_worker`.
        """
        kept = self._read((ask.round, ask.exchange), key)
        if kept:
            self._stand_on(ask, key)
        return kept

    def keep(self, ask: SiteRequest, key: str, kept: KeptReply) -> None:
        """Write what came of an exchange, and drop what no checkpoint can lead back to."""
        atomic_write(self._file((ask.round, ask.exchange), key), pack_tree(list(kept)))
        self._stand_on(ask, key)
        needed = max((place for place in self.lineage if place < (ask.floor, 0)), default=(0, 0))
        for file, place in self._files():
            if place < min(needed, (ask.floor, 0)):
                file.unlink(missing_ok=True)

    def _stand_on(self, ask: SiteRequest, key: str) -> None:
        self.lineage[ask.round, ask.exchange] = key
        places = {f"{number}-{place}": made for (number, place), made in self.lineage.items()}
        atomic_write_json(self.folder / LINEAGE, {"session": ask.session, "legs": places})

    def _files(self) -> Iterator[tuple[Path, Place]]:
        for file in self.folder.glob("*.safetensors"):
            yield file, _place("-".join(file.stem.split("-")[:2]))

    def _file(self, place: Place, key: str) -> Path:
        return self.folder / f"{place[0]}-{place[1]}-{key[:32]}.safetensors"

    def _read(self, place: Place, key: str) -> KeptReply | None:
        """What was kept; nothing of a file that is gone or damaged, which is made again."""
        try:
            return KeptReply(*unpack_tree(self._file(place, key).read_bytes()))
        except (OSError, ProtofedError, TypeError):
            return None


def _place(name: str) -> Place:
    number, place = name.split("-")
    return int(number), int(place)


def _drop_old(runs: Path) -> None:
    folders = sorted(runs.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
