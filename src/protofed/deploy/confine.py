"""What a process gives up for good, where Linux has Landlock: files it need not read, and TCP.

Rules hold for the process and all that it starts, and cannot be taken back. Files that are open
stay open. Elsewhere nothing is given up, and the caller is told so.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Numbers of the kernel's interface, the same on all processors since Linux 5.13.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READING = EXECUTE | READ_FILE | READ_DIR
ALL_TCP = 0b11  # bind and connect, since version 4
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}  # by version; 5: ioctl too
TCP_SINCE = 4
NEEDED = ("/etc", "/lib", "/lib64", "/usr", "/dev/null", "/dev/urandom", "/run/systemd/resolve")


class Ruleset(ctypes.Structure):
    """The rights that the rules are about."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class PathRule(ctypes.Structure):
    """Rights to a folder and all below it."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(CREATE_RULESET, None, 0, VERSION_FLAG))


def interpreter_folders() -> list[Path]:
    """What a Python process has to read to go on importing modules and finding hosts."""
    package = Path(__file__).resolve().parents[1]
    own = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent, package}
    return [*(path.resolve() for path in own), *map(Path, NEEDED)]


def read_only(folders: Iterable[Path]) -> bool:
    """Let this process read below some folders and write nowhere; whether that was possible."""
    version = landlock_version()
    if not version:
        return False
    rights = FILE_RIGHTS[min(version, 3)]
    return _restrict(Ruleset(rights, 0), ctypes.sizeof(ctypes.c_uint64), folders)


def no_tcp() -> bool:
    """Let this process neither call anybody nor listen; whether that was possible."""
    if landlock_version() < TCP_SINCE:
        return False
    return _restrict(Ruleset(0, ALL_TCP), ctypes.sizeof(Ruleset), ())


def _restrict(ruleset: Ruleset, size: int, folders: Iterable[Path]) -> bool:
    handle = _call(CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    if handle < 0:
        return False
    try:
        for folder in folders:
            _allow_reading(handle, folder)
        ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return _call(RESTRICT_SELF, handle, 0) == 0
    finally:
        os.close(handle)


def _allow_reading(ruleset: int, path: Path) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this machine
        return
    try:
        rights = READING if path.is_dir() else READ_FILE | (WRITE_FILE * (path.name == "null"))
        rule = PathRule(rights, folder)
        _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
