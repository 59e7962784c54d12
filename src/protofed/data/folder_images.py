"""A folder of images as a data set: decoded once, split, checksummed, and kept in a cache."""

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
from protofed.data.benchmark_info import BenchmarkInfo, Domain
from protofed.data.folder_layout import FolderLayout, ImageFile, read_layout, single_domain_layout
from protofed.data.image_decoding import DecodedImage, decode_in_parallel
from protofed.data.npz_store import ArchiveInfo, Arrays, cache_folder, write_arrays
from protofed.data.partition import EqualPartition
from protofed.errors import ProtofedError, count_noun, display_path
from protofed.runtime.atomic_io import atomic_write_json, file_sha256, rename_over

TEST_SHARE = 0.2  # of each class, for domains without a split


class FolderRow(NamedTuple):
    """An image file that could be decoded, with its decoded pixels.

    `name` is the path below the root, safe to print.
    """

    name: str
    file: ImageFile
    image: DecodedImage

    def to_list(self) -> list[Any]:
        """The entry in index.json: file, SHA-256 of the pixels, perceptual hash, width, height."""
        _, digest, look, width, height = self.image
        return [self.name, digest, look.hex(), width, height]


def digests_to_test(digests: Sequence[str]) -> set[str]:
    """Of the digests of one class's examples, those of its test part: the smallest fifth.

    Fewer if the cut would separate examples with equal digests.
    """
    ranked = sorted(digests)
    cut = holdout_size(len(ranked), TEST_SHARE)
    return {digest for digest in ranked[:cut] if digest < ranked[cut]}


def split_folder_rows(
    domain: str, rows: Sequence[FolderRow], has_test: bool
) -> dict[str, list[FolderRow]]:
    """Split a domain's images into "train" and "test".

    If the domain has a test folder, that decides. Otherwise a fifth of each class becomes the test
    part: the images with the smallest SHA-256 of their pixels. So the split is the same in every
    run, does not depend on file names, and keeps copies of an image on one side.
    """
    test = [row for row in rows if row.file.part == "test"]
    train = [row for row in rows if row.file.part != "test"]
    if not has_test:
        digests: dict[str, list[str]] = {}
        for row in rows:
            digests.setdefault(row.file.label, []).append(row.image.sha256)
        chosen = {label: digests_to_test(mine) for label, mine in digests.items()}
        test = [row for row in rows if row.image.sha256 in chosen[row.file.label]]
        train = [row for row in rows if row.image.sha256 not in chosen[row.file.label]]
    for part, found in (("training", train), ("test", test)):
        if not found:
            raise ProtofedError(
                f"domain '{domain}' has no usable {part} image among {len(rows)}\n"
                "add images, or remove the domain's folder; see `protofed data doctor`"
            )
    return {"train": train, "test": test}


def rows_to_arrays(parts: dict[str, list[FolderRow]], classes: Sequence[str]) -> Arrays:
    """One domain as the arrays of an .npz file.

    ``x_train`` is [N, side, side, 3] uint8, ``y_train`` [N] int64 with indices into `classes`; the
    same for test.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    arrays: Arrays = {}
    for part, rows in parts.items():
        arrays[f"x_{part}"] = np.stack([row.image.pixels for row in rows])
        arrays[f"y_{part}"] = np.array([numbers[row.file.label] for row in rows], dtype=np.int64)
    return arrays


Parts = dict[str, dict[str, list[FolderRow]]]  # by domain, then "train" and "test"
RULE = 2  # raise it whenever the same files would give other arrays
_kept: dict[tuple[Path, int, str], Path] = {}  # packs of this process, without a writable cache


class PackedFolder(NamedTuple):
    """A folder's images in the cache: one .npz file per domain, index.json and meta.json.

    index.json lists the file behind every row; these fields are those of meta.json.
    """

    place: Path
    revision: str  # short SHA-256 of all arrays and class names
    classes: tuple[str, ...]
    notes: dict[str, str]  # by domain
    skipped: dict[str, str]  # by file: why it cannot be used

    @classmethod
    def read(cls, place: Path) -> PackedFolder:
        """Read meta.json in a folder of the cache; raises if it is missing or damaged."""
        meta = json.loads((place / "meta.json").read_bytes())
        fields = (meta[name] for name in ("revision", "classes", "notes", "skipped"))
        revision, classes, notes, skipped = fields
        return cls(place, str(revision), tuple(classes), dict(notes), dict(skipped))


def pack_folder(root: Path, side: int, fresh: bool = False) -> PackedFolder:
    """Decode a folder of images into the cache, at `side` pixels, and return the result.

    An existing pack is reused as long as no file's name, size or time has changed; `fresh` forces a
    new one.
    """
    return pack_layout(read_layout(root), root, side, fresh)


def pack_layout(found: FolderLayout, key: Path, side: int, fresh: bool = False) -> PackedFolder:
    """Like `pack_folder`, for a layout that has been read already.

    `key` identifies the pack in the cache. Without a writable cache folder the pack is kept in a
    temporary folder until the process ends.
    """
    files = list(found.files())
    known_by = (key, side, _stamp(files, side))
    place = _place(*known_by)
    known = _kept.get(known_by) or place
    if known and not fresh:
        try:
            return PackedFolder.read(known)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # missing or damaged: pack again
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
    """The place of a pack in the cache, by folder and size; None without a cache."""
    home = f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}-{side}"
    try:
        return cache_folder() / "folders" / home / stamp[:16]
    except RuntimeError:  # a user without a home folder
        return None


def _stamp(files: Sequence[ImageFile], side: int) -> str:
    """A digest of names, sizes and times of all files, and of the version of the decoder."""
    parts = [RULE, version("pillow"), side, *((file.name, *file.stamp) for file in files)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _move(made: Path, place: Path) -> Path:
    """Move a pack into place in one step, and delete those of earlier states of the folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.move(made, beside)
        with suppress(OSError):  # another process was faster; its pack is the same
            rename_over(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in place.parent.iterdir():
        if old != place and not old.name.startswith("."):
            shutil.rmtree(old, ignore_errors=True)
    return place


def _make(found: FolderLayout, files: Sequence[ImageFile], side: int) -> Path:
    """Decode all images and write the pack to a temporary folder."""
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
    """Write an .npz file per domain, index.json with the files behind the rows, and meta.json."""
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
    """What a reader of a domain's scores must know; names files."""
    mine = [
        f"{n} ({why})" for n, why in skipped.items() if n.startswith(f"{display_path(domain)}/")
    ]
    notes = [split_note(found, domain)]
    if mine:
        notes.append(f"{count_noun(len(mine), 'file')} skipped: {'; '.join(mine)}")
    return "; ".join(filter(None, notes))


def split_note(found: FolderLayout, domain: str) -> str:
    """How a domain's images were split into training and test, in words; contains no file names."""
    parts = found.shelves[domain]
    notes = []
    if "test" not in parts:
        notes.append(f"split by protofed, {TEST_SHARE:.0%} of each class to test")
    if "val" in parts:
        notes.append("its val images were added to its training images")
    return "; ".join(notes)


@dataclass(frozen=True, kw_only=True)
class FolderInfo(BenchmarkInfo):
    """The `BenchmarkInfo` of a folder of images.

    Its `data_version` is a digest of the decoded images, so that another state of the folder is
    another experiment. Images are packed on first use.
    """

    root: Path
    strict: bool = False  # raise if a file cannot be used

    def pack(self, side: int, fresh: bool = False) -> PackedFolder:
        """The packed images at `side` pixels; if strict, raises if files had to be skipped."""
        pack = pack_folder(self.root, side, fresh)
        if self.strict and pack.skipped:
            lines = "\n".join(f"  {name}: {why}" for name, why in pack.skipped.items())
            raise ProtofedError(
                f"{self.root}: {count_noun(len(pack.skipped), 'file')} cannot be used:\n{lines}",
                hint="fix or remove them, or leave `data.strict` out to skip them",
            )
        return pack

    def data_version(self, side: int) -> int | str:
        """A short SHA-256 of classes, images and labels at this size."""
        return self.pack(side).revision

    def domain_reader(self, side: int) -> Callable[[str], Domain]:
        """A function that reads a domain from the pack; a damaged pack is made again."""
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
    """Describe a folder ``domain/class/image`` or ``domain/split/class/image`` by its sub-folders.

    Domains and classes are the names of the sub-folders; size, net and partition are the defaults
    of `BenchmarkInfo`. No image is read.
    """
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
    """The images of one site of a federation, read from a folder that is one domain.

    `skipped` is the only field that names files; it must not leave the site.
    """

    domain: Domain
    classes: tuple[str, ...]
    skipped: dict[str, str]  # by file: why it cannot be used


def read_site_domain(root: Path, name: str, side: int) -> OwnDomain:
    """Read a folder ``class/image`` as the domain `name`, at `side` pixels.

    Images, order and split are the same as for this domain in a folder with several. A run across
    machines can therefore repeat a local one bit for bit.
    """
    place = root.expanduser().resolve()
    found = single_domain_layout(place, name)

    def read(fresh: bool) -> OwnDomain:
        pack = pack_layout(found, place / f"domain={name}", side, fresh)
        domain = _read(pack, name)._replace(note=split_note(found, name))
        return OwnDomain(domain, found.classes, pack.skipped)

    try:
        return read(fresh=False)
    except ProtofedError:  # a damaged pack is made again; faults of the images recur
        return read(fresh=True)


def one_client_per_domain(domains: Sequence[str]) -> EqualPartition:
    """The default partition of a folder: one client per domain, with all of its training images."""
    return EqualPartition(clients=dict.fromkeys(domains, 1))


def folder_label(root: Path | str) -> str:
    """The last part of a path as a plain name: letters, digits, and ``- _ .`` between them."""
    return re.sub(r"[^\w.-]+", "-", Path(root).name).strip("-.") or "images"


def _read(pack: PackedFolder, domain: str) -> Domain:
    source = ArchiveInfo(folder_label(pack.place), pack.place.name, pack.classes, pack.place.parent)
    train, test = npz_store.read_archive(source, f"{domain}.npz", ("train", "test"))
    return Domain(domain, train, test, pack.notes[domain])
