"""A folder of images packed once: decoded on all cores, split, counted, checksummed, kept."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from protofed.core.disk import atomic_write_json, file_sha256
from protofed.core.errors import count_noun
from protofed.data.cache import cache_folder, write_arrays
from protofed.data.decode import display_path
from protofed.data.layout import FolderLayout, ImageFile, read_layout
from protofed.data.pool import decode_in_parallel
from protofed.data.rows import TEST_SHARE, FolderRow, rows_to_arrays, split_folder_rows

Parts = dict[str, dict[str, list[FolderRow]]]  # by domain, then "train" and "test"
RULE = 2  # raise it whenever the same files would become other arrays
_kept: dict[tuple[Path, int, str], Path] = {}  # packs of this process where no cache can be written


class PackedFolder(NamedTuple):
    """A packed folder: what meta.json says, and where it lies."""

    place: Path
    revision: str  # short SHA-256 of all arrays and class names
    classes: tuple[str, ...]
    notes: dict[str, str]  # by domain
    skipped: dict[str, str]  # by file: why it cannot be used

    @classmethod
    def read(cls, place: Path) -> PackedFolder:
        """The pack in a folder; raises what a missing or damaged file raises."""
        meta = json.loads((place / "meta.json").read_bytes())
        told = (meta[name] for name in ("revision", "classes", "notes", "skipped"))
        revision, classes, notes, skipped = told
        return cls(place, str(revision), tuple(classes), dict(notes), dict(skipped))


def pack_folder(root: Path, side: int, fresh: bool = False) -> PackedFolder:
    """The pack of a folder at a size; made if there is none, or if a file has changed since."""
    return pack_layout(read_layout(root), root, side, fresh)


def pack_layout(found: FolderLayout, key: Path, side: int, fresh: bool = False) -> PackedFolder:
    """The pack of what was found, kept under a key of its own."""
    files = list(found.files())
    known_by = (key, side, _stamp(files, side))
    place = _place(*known_by)
    known = _kept.get(known_by) or place
    if known and not fresh:
        try:
            return PackedFolder.read(known)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, or damaged: made again
    made = _make(found, files, side)
    if place:
        try:
            return PackedFolder.read(_move(made, place))
        except OSError:
            pass  # a full or read-only disk
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _kept[known_by] = made  # this process keeps it for itself
    return PackedFolder.read(made)


def _place(key: Path, side: int, stamp: str) -> Path | None:
    """Where a pack is kept, in a folder of its own for each folder and size; None if nowhere."""
    home = f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}-{side}"
    try:
        return cache_folder() / "folders" / home / stamp[:16]
    except RuntimeError:  # a user without a home folder
        return None


def _stamp(files: Sequence[ImageFile], side: int) -> str:
    """What a quick look can tell: names, sizes and times, and who decodes them."""
    told = [RULE, version("pillow"), side, *((file.name, *file.stamp) for file in files)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _move(made: Path, place: Path) -> Path:
    """Bring a pack to its place in one step, and drop those of earlier states of the folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.move(made, beside)
        with suppress(OSError):  # another process was as quick; its pack is the same
            beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in place.parent.iterdir():
        if old != place and not old.name.startswith("."):
            shutil.rmtree(old, ignore_errors=True)
    return place


def _make(found: FolderLayout, files: Sequence[ImageFile], side: int) -> Path:
    """Decode and write everything into a folder of its own."""
    rows: dict[str, list[FolderRow]] = {domain: [] for domain in found.domains}
    skipped = {}
    for file, result in zip(files, decode_in_parallel(files, side, "packing images"), strict=True):
        name = display_path(file.name)
        if isinstance(result, str):
            skipped[name] = result
        else:
            rows[file.domain].append(FolderRow(name, file, result))
    parts = {d: split_folder_rows(d, mine, "test" in found.shelves[d]) for d, mine in rows.items()}
    made = Path(tempfile.mkdtemp(prefix="protofed-pack-"))
    try:
        _write(made, found, parts, skipped, side)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def _write(
    made: Path, found: FolderLayout, parts: Parts, skipped: dict[str, str], side: int
) -> None:
    """An .npz a domain as our archives have it, index.json with the files behind the rows, meta."""
    digest = hashlib.sha256(json.dumps([found.classes, side]).encode())
    sums, index = {}, {}
    for domain, halves in parts.items():
        arrays, file = rows_to_arrays(halves, found.classes), made / f"{domain}.npz"
        for key in sorted(arrays):
            digest.update(f"{domain}/{key} {arrays[key].shape}".encode() + arrays[key].tobytes())
        write_arrays(file, arrays)
        counts = {part: len(rows) for part, rows in halves.items()}
        sums[file.name] = {"sha256": file_sha256(file), **counts}
        index[domain] = {part: [row.to_list() for row in rows] for part, rows in halves.items()}
    atomic_write_json(made / "index.json", index)
    meta = {
        "revision": digest.hexdigest()[:12],
        "classes": found.classes,
        "side": side,
        "source": display_path(found.root),
        "notes": {domain: _note(found, domain, skipped) for domain in found.domains},
        "skipped": skipped,
        "files": sums,
    }
    atomic_write_json(made / "meta.json", meta)


def _note(found: FolderLayout, domain: str, skipped: dict[str, str]) -> str:
    """What a reader of a domain's scores must know."""
    mine = [
        f"{n} ({why})"
        for n, why in skipped.items()
        if n.startswith(f"{display_path(domain)}/")
    ]
    notes = [split_note(found, domain)]
    if mine:
        notes.append(f"{count_noun(len(mine), 'file')} skipped: {'; '.join(mine)}")
    return "; ".join(filter(None, notes))


def split_note(found: FolderLayout, domain: str) -> str:
    """How a domain's images came to be for training or for tests; names no file."""
    parts = found.shelves[domain]
    notes = []
    if "test" not in parts:
        notes.append(f"split by protofed, {TEST_SHARE:.0%} of each class to test")
    if "val" in parts:
        notes.append("its val images were added to its training images")
    return "; ".join(notes)
