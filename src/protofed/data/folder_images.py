"""A folder of one's own images as a data set: decoded once, split, counted, checksummed, kept."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protofed.core.site import holdout_size
from protofed.data import npz_store
from protofed.data.benchmark import Domain
from protofed.data.benchmark_info import BenchmarkInfo
from protofed.data.folder_layout import FolderLayout, ImageFile, read_layout, single_domain_layout
from protofed.data.image_decoding import DecodedImage, decode_in_parallel
from protofed.data.npz_store import ArchiveInfo, Arrays, cache_folder, write_arrays
from protofed.data.partition import EqualPartition
from protofed.errors import ProtofedError, count_noun, display_path
from protofed.runtime.atomic_io import atomic_write_json, file_sha256, rename_over

TEST_SHARE = 0.2  # of each class of a domain that brings no split


class FolderRow(NamedTuple):
    """A file that holds a usable image."""

    name: str
    file: ImageFile
    image: DecodedImage

    def to_list(self) -> list[Any]:
        """For index.json: file, SHA-256 of its pixels, perceptual hash, width, height."""
        _, digest, look, width, height = self.image
        return [self.name, digest, look.hex(), width, height]


def split_folder_rows(
    domain: str, rows: Sequence[FolderRow], has_test: bool
) -> dict[str, list[FolderRow]]:
    """Rows for training and test: by the folder for tests if it has one, else a fifth of a class.

    Which fifth is decided by the pixels alone (the smallest SHA-256), so that it is the same in
    every run, whatever the files are called, and copies of one image stay on one side.
    """
    test = [row for row in rows if row.file.part == "test"]
    train = [row for row in rows if row.file.part != "test"]
    if not has_test:
        chosen: set[str] = set()
        for label in {row.file.label for row in rows}:
            ranked = sorted((r.image.sha256, r.name) for r in rows if r.file.label == label)
            cut = holdout_size(len(ranked), TEST_SHARE)
            while cut and ranked[cut - 1][0] == ranked[cut][0]:
                cut -= 1
            chosen |= {name for _, name in ranked[:cut]}
        test = [row for row in rows if row.name in chosen]
        train = [row for row in rows if row.name not in chosen]
    for part, found in (("training", train), ("test", test)):
        if not found:
            raise ProtofedError(
                f"domain '{domain}' has no {part} image that can be used, of {len(rows)} in all\n"
                "add images, or move the domain's folder away; `protofed data doctor` says more"
            )
    return {"train": train, "test": test}


def rows_to_arrays(parts: dict[str, list[FolderRow]], classes: Sequence[str]) -> Arrays:
    """The parts in our archives' form: x_train [N, side, side, 3], y_train [N], and for test."""
    numbers = {name: number for number, name in enumerate(classes)}
    arrays: Arrays = {}
    for part, rows in parts.items():
        arrays[f"x_{part}"] = np.stack([row.image.pixels for row in rows])
        arrays[f"y_{part}"] = np.array([numbers[row.file.label] for row in rows], dtype=np.int64)
    return arrays


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
            rename_over(beside, place)
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
        f"{n} ({why})" for n, why in skipped.items() if n.startswith(f"{display_path(domain)}/")
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


@dataclass(frozen=True, kw_only=True)
class FolderInfo(BenchmarkInfo):
    """A folder: its version is a digest of its images, which are packed when it is asked for."""

    root: Path
    strict: bool = False  # refuse it if a file cannot be used

    def pack(self, side: int, fresh: bool = False) -> PackedFolder:
        """The packed images; a strict entry wants every file to be among them."""
        pack = pack_folder(self.root, side, fresh)
        if self.strict and pack.skipped:
            lines = "\n".join(f"  {name}: {why}" for name, why in pack.skipped.items())
            raise ProtofedError(
                f"{self.root}: {count_noun(len(pack.skipped), 'file')} cannot be used:\n{lines}\n"
                "mend or remove them, or leave data.strict out to skip them"
            )
        return pack

    def data_version(self, side: int) -> int | str:
        """A short SHA-256 of classes, images and labels at this size."""
        return self.pack(side).revision

    def domain_reader(self, side: int) -> Callable[[str], Domain]:
        """What reads a domain from the pack; a pack that was damaged is made again."""
        pack = self.pack(side)

        def read(domain: str) -> Domain:
            try:
                found = _read(pack, domain)
            except ProtofedError:
                found = _read(self.pack(side, fresh=True), domain)
            return found._replace(
                note="; ".join(filter(None, [self.domain_note(domain), found.note]))
            )

        return read


def folder_info(root: Path, strict: bool = False) -> FolderInfo:
    """What a folder's sub-folders tell: domains, classes, and defaults for the rest."""
    found = read_layout(root.expanduser().resolve())
    return FolderInfo(
        name=str(found.root),
        summary=f"images in {found.root}",
        classes=found.classes,
        domains=found.domains,
        partition=one_client_per_domain(found.domains),
        notes=tuple(found.lacking()),
        needs_data=False,
        read=lambda domain: folder_info(root, strict).domain_reader(BenchmarkInfo.side)(domain),
        root=found.root,
        strict=strict,
    )


class OwnDomain(NamedTuple):
    """A folder that is one domain by itself; of the three, only `skipped` names files."""

    domain: Domain
    classes: tuple[str, ...]
    skipped: dict[str, str]  # by file: why it cannot be used


def read_site_domain(root: Path, name: str, side: int) -> OwnDomain:
    """A folder class/image.

    The images, their order and their split are those of that domain in a folder of several.
    """
    place = root.expanduser().resolve()
    found = single_domain_layout(place, name)

    def read(fresh: bool) -> OwnDomain:
        pack = pack_layout(found, place / f"domain={name}", side, fresh)
        domain = _read(pack, name)._replace(note=split_note(found, name))
        return OwnDomain(domain, found.classes, pack.skipped)

    try:
        return read(fresh=False)
    except ProtofedError:  # a damaged pack is made again; what is wrong with the images stays
        return read(fresh=True)


def one_client_per_domain(domains: Sequence[str]) -> EqualPartition:
    """The default partition: all images of a domain at one client."""
    return EqualPartition(clients=dict.fromkeys(domains, 1))


def folder_label(root: Path | str) -> str:
    """A path's last part as a name: letters, digits, and - _ . between them."""
    return re.sub(r"[^\w.-]+", "-", Path(root).name).strip("-.") or "images"


def _read(pack: PackedFolder, domain: str) -> Domain:
    source = ArchiveInfo(folder_label(pack.place), pack.place.name, pack.classes, pack.place.parent)
    train, test = npz_store.read_archive(source, f"{domain}.npz", ("train", "test"))
    return Domain(domain, train, test, pack.notes[domain])
