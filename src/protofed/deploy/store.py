"""A site's private states on its own disk, by run, round and leg."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.disk import write_whole
from protofed.core.errors import ProtofedError
from protofed.core.pack import pack, unpack
from protofed.engines.wire import Ask

KEPT_RUNS = 8  # of which a site keeps states; the longest untouched ones go first
NAME = re.compile(r"[0-9a-f]{8,64}")


class Kept(NamedTuple):
    """What a site has kept of one leg: which question it was, its reply, its state after it."""

    asked: str  # SHA-256 of the message
    reply: Any
    state: Any


class Store:
    """The states of one run; whatever the coordinator repeats, a round begins with the same one."""

    def __init__(self, home: Path, ask: Ask):
        if not NAME.fullmatch(ask.run) or not NAME.fullmatch(ask.session):
            raise ProtofedError("not the name of a run")
        self.folder = home / "runs" / ask.run
        if not self.folder.exists():
            self.folder.mkdir(parents=True, mode=0o700)
            _drop_old(self.folder.parent)
        self._begin(ask)

    def _begin(self, ask: Ask) -> None:
        """Drop states of a session that the coordinator has gone back behind."""
        session = self.folder / "session"
        if session.exists() and session.read_text() == ask.session:
            return
        for file in self._files():
            if _place(file) >= (ask.start, 0):
                file.unlink()
        write_whole(session, ask.session.encode())

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"), key=_place)

    def at(self, ask: Ask) -> Kept | None:
        """What was kept of just this leg."""
        file = self._file(ask)
        return _read(file) if file.exists() else None

    def before(self, ask: Ask) -> Kept | None:
        """What was kept of the newest leg before this one."""
        older = [file for file in self._files() if _place(file) < (ask.round, ask.leg)]
        return _read(older[-1]) if older else None

    def keep(self, ask: Ask, kept: Kept) -> None:
        """Write what came of a leg, and drop what no checkpoint can lead back to."""
        write_whole(self._file(ask), pack(list(kept)))
        behind = [file for file in self._files() if _place(file) < (ask.floor, 0)]
        for file in behind[:-1]:
            file.unlink()

    def _file(self, ask: Ask) -> Path:
        return self.folder / f"{ask.round}-{ask.leg}.safetensors"


def _place(file: Path) -> tuple[int, int]:
    number, leg = file.stem.split("-")
    return int(number), int(leg)


def _read(file: Path) -> Kept:
    return Kept(*unpack(file.read_bytes()))


def _drop_old(runs: Path) -> None:
    folders = sorted(runs.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
