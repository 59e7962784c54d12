"""Writing so that a reader finds the old file or the new one, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, content: object) -> None:
    """Plain data as indented JSON with a last newline."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in a folder outlive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size(count: float) -> str:
    """A number of bytes for people, in steps of a thousand: ``1.52 MB``."""
    for unit in ("B", "kB", "MB"):
        if round(count, 2) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
