"""Unpack downloaded archives safely: every member is checked before anything is written."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError

MOST_MEMBERS = 100_000
MOST_BYTES = 20 * 2**30
MOST_RATIO = 100  # bytes out per byte in
HARMLESS = 10 * 2**20  # bytes; below, ratios are not checked: tiny archives are mostly padding
ENDINGS = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst", ".jar", ".whl")
MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!")
Broken = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile)


class ArchiveMember(NamedTuple):
    """One entry of an archive, as its index describes it, with its first bytes.

    The size and kind come from the archive and may lie; `extract_archive` therefore also counts the
    bytes that really come out of a stream.
    """

    name: str
    size: int
    packed: int | None  # compressed bytes, where known
    kind: str  # "file", "folder", or what must not be there
    start: bytes


class UnsafeArchiveError(ProtofedError):
    """Raised for an archive that is damaged or dangerous. Nothing of it has been written."""


def is_archive(name: str) -> bool:
    """Whether a downloaded file has to be unpacked, judged by its name.

    True for ``.zip``, ``.tar.gz`` and ``.tgz``. A plain ``.gz`` or ``.bz2`` is false: the readers
    of raw formats open these themselves.
    """
    return name.endswith((".zip", ".tar.gz", ".tgz"))


def extract_archive(archive: Path, target: Path) -> None:
    """Unpack a .zip or .tar.gz file into `target`, which is created if needed.

    The archive is checked as a whole first (see `check_archive`), so a refused one leaves no file
    behind. Raises `UnsafeArchiveError` if it is refused or damaged.
    """
    try:
        check_archive(archive)
        target.mkdir(parents=True, exist_ok=True)
        _unzip(archive, target) if zipfile.is_zipfile(archive) else _untar(archive, target)
    except (*Broken, NotImplementedError, UnicodeError) as fault:
        raise UnsafeArchiveError(
            f"{archive} is not a complete .zip or .tar.gz file: {fault}"
        ) from fault


def check_archive(archive: Path) -> None:
    """Read through an archive without writing, and raise at the first unsafe member.

    Refused are absolute paths and ``..``, links and devices, encrypted members, duplicate names,
    archives within the archive, too many members, and sizes or compression ratios of a zip bomb
    (`MOST_MEMBERS`, `MOST_BYTES`, `MOST_RATIO`).
    """
    packed = archive.stat().st_size
    total, kinds = 0, dict[str, str]()
    for number, member in enumerate(_members(archive), 1):
        if number > MOST_MEMBERS:
            _refuse(archive, f"it has more than {MOST_MEMBERS:,} members")
        if member.kind not in ("file", "folder"):
            _refuse(archive, f"'{member.name}' is a {member.kind}")
        path = _safe_path(archive, member.name)
        if path in kinds and "file" in (kinds[path], member.kind):
            _refuse(archive, f"'{member.name}' occurs twice")
        kinds[path] = member.kind
        total += member.size
        _judge_size(archive, member, total, packed)
        if member.name.lower().endswith(ENDINGS) or member.start.startswith(MAGIC):
            _refuse(archive, f"'{member.name}' is an archive within the archive")
    for path in kinds:
        for parent in Path(path).parents:
            if kinds.get(parent.as_posix()) == "file":
                _refuse(archive, f"'{parent.as_posix()}' is both a file and a folder")


def _judge_size(archive: Path, member: ArchiveMember, total: int, packed: int) -> None:
    """Raise for too many bytes in total, or per byte stored."""
    if total > MOST_BYTES:
        _refuse(archive, f"it unpacks to more than {MOST_BYTES // 2**30} GB")
    if total > max(HARMLESS, MOST_RATIO * packed):
        _refuse(archive, f"it unpacks to more than {MOST_RATIO} times its size")
    if member.packed is not None and member.size > max(HARMLESS, MOST_RATIO * member.packed):
        _refuse(archive, f"'{member.name}' unpacks to more than {MOST_RATIO} times its size")


def _safe_path(archive: Path, name: str) -> str:
    """The name as a relative path of plain parts, as a file system will see it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    drive = len(name) > 1 and name[1] == ":"
    if name.startswith("/") or "\\" in name or drive:
        _refuse(archive, f"'{name}' is an absolute path or one with backslashes")
    if ".." in parts or not name.isprintable():
        _refuse(archive, f"{name!r} leaves the folder or contains unprintable characters")
    return "/".join(parts)


def _refuse(archive: Path, why: str) -> None:
    raise UnsafeArchiveError(f"{archive} was refused and nothing of it was written: {why}")


def _members(archive: Path) -> Iterator[ArchiveMember]:
    """Every member with its first bytes."""
    return _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)


def _zip_members(archive: Path) -> Iterator[ArchiveMember]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            kind, start = _zip_kind(info), b""
            if kind == "file":
                with packed.open(info) as stream:
                    start = stream.read(8)
            yield ArchiveMember(info.orig_filename, info.file_size, info.compress_size, kind, start)


def _tar_members(archive: Path) -> Iterator[ArchiveMember]:
    with gzip.open(archive) as plain, _stream(archive, plain) as packed:
        for info in packed:
            kind = _tar_kind(info)
            stream = packed.extractfile(info) if kind == "file" else None
            yield ArchiveMember(info.name, info.size, None, kind, stream.read(8) if stream else b"")


def _zip_kind(info: zipfile.ZipInfo) -> str:
    mode = info.external_attr >> 16
    if info.flag_bits & 1:
        return "encrypted file"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "link" if stat.S_ISLNK(mode) else "device"
    return "folder" if info.is_dir() else "file"


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "link"
    if info.isdir():
        return "folder"
    return "file" if info.isreg() and not info.issparse() else "device or other special file"


class _Measured(io.RawIOBase):
    """A stream that raises once more comes out than the archive may hold."""

    def __init__(self, archive: Path, stream: gzip.GzipFile):
        self.archive, self.stream = archive, stream
        self.left = min(MOST_BYTES, max(HARMLESS, MOST_RATIO * archive.stat().st_size)) + HARMLESS

    def read(self, size: int = -1) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            _refuse(self.archive, f"it unpacks to more than {MOST_RATIO} times its size")
        return block


def _stream(archive: Path, plain: gzip.GzipFile) -> tarfile.TarFile:
    """The tar file in a stream, read from front to back."""
    return tarfile.open(fileobj=_Measured(archive, plain), mode="r|")


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(target)


def _untar(archive: Path, target: Path) -> None:
    with gzip.open(archive) as plain, _stream(archive, plain) as packed:
        packed.extractall(target, filter="data")
