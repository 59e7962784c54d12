"""Download public data sets and convert them into checked .npz files."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from protofed.core.training import STRICT
from protofed.data import benchmarks, raw_formats
from protofed.data.archive_extraction import extract_archive, is_archive
from protofed.data.http_download import (
    ROOM,
    RemoteFile,
    Watch,
    fetch_file,
    quarantine_file,
    verify_checksum,
)
from protofed.data.npz_store import DATA, ArchiveInfo, Arrays, is_archive_missing
from protofed.errors import ProtofedError, require_known_name
from protofed.runtime.atomic_io import (
    atomic_write_json,
    file_lock,
    file_sha256,
    rename_over,
    sync_directory,
)

MIRROR = "PROTOFED_MIRROR"
Reader = Callable[[Path, int], Iterator[tuple[str, Arrays]]]
READERS: dict[str, Reader] = {
    "cifar10": raw_formats.read_cifar10,
    "cifar100": raw_formats.read_cifar100,
    "idx": raw_formats.read_idx_files,
    "libsvm": raw_formats.read_libsvm,
    "matlab": raw_formats.read_matlab,
    "medmnist": raw_formats.read_medmnist,
    "mnistm": raw_formats.read_image_lists,
}
ARCHIVES = {
    archive.benchmark: archive
    for archive in (
        *(benchmarks.CIFAR10, benchmarks.CIFAR100, benchmarks.DIGITS, benchmarks.OFFICE),
        *(benchmarks.OFFICE_HOME, benchmarks.PACS, benchmarks.PATHMNIST, benchmarks.VLCS),
    )
}
ASSEMBLED = {archive.benchmark: archive for archive in (benchmarks.BLOODPBC, benchmarks.WBC)}
ALSO = {"mnist-m": "mnistm", "office-caltech10": "office-caltech", "officehome": "office-home"}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSource:
    """A public data set: the files to download, and the .npz files that they are converted to.

    The entries of ``sources.toml`` have this form. `reader` is a key of `READERS`, or "tree" for
    images in class folders.
    """

    archive: str  # the benchmark that it belongs to
    reader: str
    files: tuple[RemoteFile, ...]
    makes: Mapping[str, tuple[int, ...]]  # .npz -> images to train and to test, or in all
    licence: str
    citation: str
    side: int | None = None  # to which photographs are resized; None: they stay as they are
    folders: Mapping[str, str] = field(default_factory=dict)  # .npz -> the domain's folder
    also: Mapping[str, str] = field(default_factory=dict)  # class -> another name of its folder

    @property
    def home(self) -> ArchiveInfo:
        """The archive that its .npz files belong to, and so their folder below PROTOFED_DATA."""
        return ARCHIVES[self.archive]

    @property
    def size(self) -> int:
        """The bytes to download, approximately; 0 if the size of a file is unknown."""
        known = [file.size for file in self.files]
        return sum(known) if all(known) else 0

    @property
    def missing(self) -> bool:
        """Whether one of its .npz files is missing below PROTOFED_DATA."""
        return any(is_archive_missing(self.home, file) for file in self.makes)

    def read(self, folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
        """Convert the downloaded files in `folder`; yields the name and arrays of each .npz file.

        Archives must have been unpacked into ``folder/content``.
        """
        if self.reader != "tree":
            return READERS[self.reader](folder, side)
        tree = partial(raw_formats.read_image_tree, domains=self.folders, classes=self.home.classes)
        return tree(folder, side, also=self.also)


def source_files(name: str, source: DataSource) -> tuple[RemoteFile, ...]:
    """The files of a source with the addresses to download them from.

    With the environment variable PROTOFED_MIRROR, all addresses point there:
    ``MIRROR/SOURCE/FILE``.
    """
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    if not mirror:
        return source.files
    return tuple(file._replace(urls=(f"{mirror}/{name}/{file.name}",)) for file in source.files)


def sources_for(name: str) -> tuple[str, ...]:
    """The sources that a name stands for: all of a benchmark, or the one with this name.

    ``sources_for("digits")`` gives mnist, usps, svhn and mnistm. Unknown names raise.
    """
    name = ALSO.get(name, name)
    if name in ASSEMBLED:
        raise ProtofedError(f"'{name}' cannot be downloaded: {ASSEMBLED[name].remedy}")
    parts = tuple(part for part, source in SOURCES.items() if source.archive == name)
    return parts or (require_known_name("public set", name, [*SOURCES, "digits"]),)


def missing_sources(benchmark: str) -> tuple[str, ...]:
    """The names of a benchmark's sources whose files are missing below PROTOFED_DATA.

    A benchmark that cannot be downloaded is its own only source.
    """
    if benchmark in ASSEMBLED:
        files = [f"{domain}.npz" for domain in benchmarks.BENCHMARKS[benchmark].domains]
        missing = any(is_archive_missing(ASSEMBLED[benchmark], file) for file in files)
        return (benchmark,) if missing else ()
    return tuple(n for n, s in SOURCES.items() if s.archive == benchmark and s.missing)


def how_to_get(name: str) -> str:
    """The command that downloads a benchmark or source, or where it is told how to make it."""
    return "see docs/data.md" if name in ASSEMBLED else f"protofed data get {name}"


def unset_folder_notes() -> list[str]:
    """A line that says that PROTOFED_DATA is not set; no line if it is."""
    return [] if os.environ.get(DATA) else [f"{DATA} is not set: it names the folder of all images"]


class MissingImages(NamedTuple):
    """A public set whose images are not on this disk: where they belong, and how to get them.

    `folder` is below PROTOFED_DATA; its path begins with ``$PROTOFED_DATA`` if that is not set.
    """

    benchmark: str
    source: str  # the benchmark, or one of the digits' domains
    folder: str
    command: str

    def __str__(self) -> str:
        return f"{self.source} is missing in {self.folder}: {self.command}"


def missing_images(benchmark: str, domains: Sequence[str]) -> list[MissingImages]:
    """All sets that some domains of a benchmark need and that are missing on this disk.

    Only their presence is checked, not their content.
    """
    root = os.environ.get(DATA) or f"${DATA}"
    return [
        MissingImages(
            benchmark=benchmark,
            source=name,
            folder=f"{root}/{_home(name).folder}",
            command=how_to_get(name),
        )
        for name in missing_sources(benchmark)
        if name == benchmark or name in domains
    ]


def _home(name: str) -> ArchiveInfo:
    return ASSEMBLED[name] if name in ASSEMBLED else SOURCES[name].home


def _table() -> dict[str, DataSource]:
    text = files("protofed.data").joinpath("sources.toml").read_text("utf-8")
    return TypeAdapter(dict[str, DataSource]).validate_python(tomllib.loads(text), strict=False)


SOURCES = _table()


LOCK = "get.lock.json"  # sha256 of downloaded files without a published checksum
DISK = 4  # bytes of disk per byte downloaded: the file, its content, and the .npz
Say = Callable[[str], None]


class DownloadProgress(NamedTuple):
    """How a download reports its progress.

    `say` is called with lines of text. `begin` is called with each file and returns the callback
    that counts its bytes.
    """

    say: Say
    begin: Callable[[RemoteFile], Watch]


def download_benchmark(
    name: str, root: Path, follow: DownloadProgress, side: int | None = None, again: bool = False
) -> bool:
    """Download a source, check and convert it, and add its .npz files to the data folder `root`.

    Returns False if all files were there already. Photographs are stored at `side` pixels (the
    source's own default if None); `again` replaces existing files. The conversion happens in a work
    folder, and files are moved into place only when all of them are complete.
    """
    source = SOURCES[name]
    folder = root / source.home.folder
    state = _state(folder, source)
    if state == "there" and not again:
        _check_side(folder, source, side)
        return False
    if state == "damaged" and not again:
        raise ProtofedError(
            f"{folder} holds a file of {name} that is damaged or missing from its meta.json",
            hint="move the file away, or replace it with <again>",
        )
    work = folder / f".get-{name}"
    work.mkdir(parents=True, exist_ok=True)
    with file_lock(work / "lock", f"another process is downloading into {work}"):
        _check_disk(root, source)
        _fetch_all(name, source, root, work, follow)
        follow.say(f"{name}: checked; converting")
        with _doubted(source.files, work):
            made = dict(_convert(source, work, side or source.side or 0))
        with file_lock(root / ".get.lock"):  # the same files describe other sets
            _record(name, source, root / LOCK, work, follow.say)
            _place(source, folder, made, follow.say)
        shutil.rmtree(work)
    return True


def _state(folder: Path, source: DataSource) -> str:
    """Whether the set's files are "there", "absent", or "damaged"."""
    described = _meta(folder, source.home)["files"]
    present = [file for file in source.makes if (folder / file).exists()]
    for file in present:
        expected = described.get(file, {}).get("sha256")
        if not (folder / file).is_file() or file_sha256(folder / file) != expected:
            return "damaged"
    return "there" if len(present) == len(source.makes) else "absent"


def _check_side(folder: Path, source: DataSource, side: int | None) -> None:
    """Raise if the images exist in another size than requested."""
    described = _meta(folder, source.home)["files"]
    found = {described[file].get("side") for file in source.makes}
    if side and found != {side}:
        sizes = " or ".join(f"{n} pixels" if n else "an unknown size" for n in found)
        raise ProtofedError(
            f"{folder} holds these images in {sizes}, not {side}",
            hint=f"leave <side={side}> out, or replace the images with <again>",
        )


def _meta(folder: Path, archive: ArchiveInfo) -> dict[str, Any]:
    """The content of meta.json; raises for a broken one or one with other classes."""
    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_bytes())
        if not isinstance(meta["files"], dict) or tuple(meta["classes"]) != archive.classes:
            raise ValueError("other classes, or no list of files")
    except FileNotFoundError:
        return {"classes": list(archive.classes), "files": {}}
    except (ValueError, KeyError, TypeError) as fault:
        raise ProtofedError(f"{path} is broken ({fault}): fix it or move it away") from fault
    return dict(meta)


def _check_disk(root: Path, source: DataSource) -> None:
    """Raise before the first byte if the disk is too small."""
    need, free = DISK * source.size + ROOM, shutil.disk_usage(root).free
    if need > free:
        raise ProtofedError(
            f"{root} has {free / 1e9:.1f} GB free, and about {need / 1e9:.1f} GB are needed",
            hint="free some space, or choose another folder with <to>",
        )


def _fetch_all(
    name: str, source: DataSource, root: Path, work: Path, follow: DownloadProgress
) -> None:
    """Download and check every file, and unpack the archives into content/."""
    content = work / "content"
    shutil.rmtree(content, ignore_errors=True)
    for remote in source_files(name, source):
        target = work / remote.name
        if target.exists():
            verify_checksum(target, remote)  # from an earlier attempt
        else:
            fetch_file(remote, target, follow.begin(remote))
        if not remote.checksum:
            _compare(root / LOCK, f"{name}/{remote.name}", target)
    for remote in source.files:
        if is_archive(remote.name):
            with _doubted([remote], work):
                extract_archive(work / remote.name, content)


@contextmanager
def _doubted(files: Sequence[RemoteFile], work: Path) -> Iterator[None]:
    """If files turn out to be unusable, set aside those without a published checksum."""
    try:
        yield
    except ProtofedError as fault:
        asides = [str(quarantine_file(work / file.name)) for file in files if not file.checksum]
        if not asides:
            raise
        raise ProtofedError(
            f"{fault}\nthe host may have sent another file; set aside as {', '.join(asides)};"
            " nothing else was changed",
            hint="rerun the same command to download it again",
        ) from fault


def _known(lock: Path) -> dict[str, str]:
    """The recorded sha256 of files without a published one."""
    try:
        return dict(json.loads(lock.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as fault:
        raise ProtofedError(f"{lock} is broken ({fault}): fix it or move it away") from fault


def _compare(lock: Path, key: str, path: Path) -> None:
    """Raise if a file without a published checksum differs from the first download."""
    first = _known(lock).get(key)
    if first is not None and first != (found := file_sha256(path)):
        raise ProtofedError(
            f"{key} differs from the file downloaded first: {lock} has sha256 {first}, found"
            f" {found}\nit was set aside as {quarantine_file(path)}; nothing else was changed",
            hint="if the new file is right, delete its line in the lock file and rerun the command",
        )


def _record(name: str, source: DataSource, lock: Path, work: Path, say: Say) -> None:
    """Record the checksums of files without a published one, once they were usable."""
    known = _known(lock)
    keys = {f"{name}/{file.name}": file for file in source.files if not file.checksum}
    new = {key: file_sha256(work / file.name) for key, file in keys.items() if key not in known}
    for key, found in new.items():
        say(f"{key}: no published checksum; recorded sha256 {found} in {lock}")
    if new:
        atomic_write_json(lock, {**known, **new})


def _convert(source: DataSource, work: Path, side: int) -> Iterator[tuple[str, tuple[Path, Any]]]:
    """Write the .npz files to the work folder; yields each with its entry for meta.json."""
    for file, arrays in source.read(work, side):
        path = work / f"made-{file}"
        with path.open("wb") as stream:
            # without allow_pickle, which versions before 2.1 would take for an array
            np.savez_compressed(stream, **cast(Any, arrays))
            stream.flush()
            os.fsync(stream.fileno())
        described = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        size = {"side": side} if side else {}
        yield file, (path, {**described, **size, **_counted(source, file, arrays)})


def _counted(source: DataSource, file: str, arrays: Arrays) -> dict[str, Any]:
    """The number of images of each class, and whether they are as many as were published."""
    keys = [key for key in ("y_train", "y_test", "y") if key in arrays]
    kinds = len(source.home.classes)
    for key in keys:
        if not len(arrays[key]) or int(np.max(arrays[key])) >= kinds:
            raise ProtofedError(f"{file}: {key} has no labels, or labels above {kinds - 1}")
    found = {key: np.bincount(arrays[key], minlength=kinds).tolist() for key in keys}
    counts = {f"{key[2:]}_per_class".lstrip("_"): number for key, number in found.items()}
    whole = tuple(len(arrays[key]) for key in keys) == tuple(source.makes[file])
    return {"counts": counts, "published": whole, "fetched": [f.name for f in source.files]}


def _place(
    source: DataSource, folder: Path, made: Mapping[str, tuple[Path, Any]], say: Say
) -> None:
    """Update meta.json, then move the files into place: every file there has an entry."""
    if made.keys() != source.makes.keys():
        raise ProtofedError(f"expected {', '.join(source.makes)}, made {', '.join(made)}")
    meta = _meta(folder, source.home)
    meta["files"] = {**meta["files"], **{file: entry for file, (_, entry) in made.items()}}
    atomic_write_json(folder / "meta.json", meta)
    for file, (path, entry) in made.items():
        rename_over(path, folder / file)
        if not entry["published"]:
            count = " + ".join(f"{n:,}" for n in source.makes[file])
            say(f"note: {folder / file} does not have the {count} images of the published set")
    sync_directory(folder)
