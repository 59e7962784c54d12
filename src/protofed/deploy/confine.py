"""``python -m protofed.deploy.confine RULES -- MODULE ARGUMENTS``: a module that gives up rights.

Where Linux has Landlock, a process gives up for good the files it need not touch, or TCP, before it
loads anything: the rules hold for the thread that makes them and for all that it starts, so they
come before the first other thread. Elsewhere nothing is given up, and that is said.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import runpy
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
CANNOT = (
    "note: this system cannot shut the process that speaks with the server out of the images (that "
    "takes Linux with Landlock); that it does not read them rests on its code"
)
NEEDED = ("/etc", "/lib", "/lib64", "/usr", "/dev/null", "/dev/urandom", "/run/systemd/resolve")


class LandlockRuleset(ctypes.Structure):
    """The rights that a set of rules is about, as the kernel's structure has them.

    A right named here is given up, except where a rule grants it.
    """

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class LandlockPathRule(ctypes.Structure):
    """A rule of Landlock: rights to a folder and everything below it."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """The version of Landlock that this kernel offers; 0 for none.

    Version 1 restricts files (Linux 5.13), version 4 also TCP (Linux 6.7).
    """
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(CREATE_RULESET, None, 0, VERSION_FLAG))


def interpreter_folders() -> list[Path]:
    """What a Python process has to read to import more modules and to resolve host names.

    These are the interpreter, its packages, this package, and a few places of the system.
    """
    package = Path(__file__).resolve().parents[1]
    own = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent, package}
    return [*(path.resolve() for path in own), *map(Path, NEEDED)]


def restrict_files(readable: Iterable[Path], writable: Iterable[Path] = ()) -> bool:
    """Give up all files but those below some folders, for good; False if the kernel cannot.

    `readable` folders can be read, `writable` ones also written to. It holds for this thread and
    for everything it starts, so it must come before any other thread does.
    """
    version = landlock_version()
    if not version:
        return False
    every = FILE_RIGHTS[min(version, 3)]
    rules = [(path, READING) for path in readable] + [(path, every) for path in writable]
    return _restrict(LandlockRuleset(every, 0), ctypes.sizeof(ctypes.c_uint64), rules)


def forbid_tcp() -> bool:
    """Give up all TCP, calling as well as listening, for good; False if the kernel cannot.

    Unix sockets stay: the worker of a site answers at one.
    """
    if landlock_version() < TCP_SINCE:
        return False
    return _restrict(LandlockRuleset(0, ALL_TCP), ctypes.sizeof(LandlockRuleset), ())


def _restrict(ruleset: LandlockRuleset, size: int, rules: Iterable[tuple[Path, int]]) -> bool:
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("other threads would keep what this one gives up")
    handle = _call(CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    if handle < 0:
        return False
    try:
        for path, rights in rules:
            _allow(handle, path, rights)
        ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return _call(RESTRICT_SELF, handle, 0) == 0
    finally:
        os.close(handle)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this machine
        return
    try:
        if not path.is_dir():
            rights &= READ_FILE | WRITE_FILE
        if path == Path("/dev/null"):
            rights |= WRITE_FILE
        rule = LandlockPathRule(rights, place)
        _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def main() -> None:
    """Give up what the arguments say, then run the module that they name in this process.

    ``python -m protofed.deploy.confine --read=KEYS --write=OWN -- protofed.deploy.site_link ...``
    """
    parser = argparse.ArgumentParser()
    for name in ("read", "write"):
        parser.add_argument(f"--{name}", action="append", default=[], type=Path)
    parser.add_argument("--no-tcp", action="store_true")
    parser.add_argument("module", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    module, *arguments = [word for word in given.module if word != "--"]
    if given.no_tcp:
        forbid_tcp()
    if (given.read or given.write) and not restrict_files(
        [*interpreter_folders(), *given.read], given.write
    ):
        print(CANNOT, flush=True)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
