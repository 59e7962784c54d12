"""A full disk, a folder that is read-only or taken, bits that flipped."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from faults import forks
from faults.work import Work, differences, figures, state, unbroken
from protofed.experiment.checkpoint import MANIFEST, checkpoint_folder
from protofed.experiment.run_folder import RunDir

WORK = Work("scaffold")
FLIPS, RESUMED = 1000, 20  # flips that are looked for, and more of them that a run goes on after


@contextmanager
def mounted(place: Path, size: int) -> Iterator[bool]:
    """A small file system in memory, where this process may mount one; else only a folder."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    try:
        able = not subprocess.run(command, capture_output=True).returncode
    except FileNotFoundError:
        able = False
    try:
        yield able
    finally:
        if able:
            subprocess.run(["umount", str(place)], check=True)


def full(folder: Path, quick: bool) -> dict[str, Any]:
    """A disk that is full after the first rounds, in several sizes; then there is room again."""
    whole = unbroken(WORK, folder / "whole").folder
    files = [file.stat().st_size for file in (whole / "checkpoints").glob("*/*")]
    size = sum(files) // 2
    shares = (1.5, 2.5) if quick else (0.001, 0.5, 1.2, 1.5, 1.8, 2.2, 2.5, 2.8)  # of a checkpoint
    found = []
    for number, share in enumerate(shares):
        place, run = folder / f"small-{number}", folder / f"larger-{number}" / "run"
        with mounted(place, int(share * size)) as able:
            limit = int(share / 3 * max(files))  # without a mount: of the largest file
            prepare = forks.nothing if able else partial(at_most, limit)
            hit = forks.call(WORK.words(place / "run"), folder / "log", prepare)
            failures = refused(hit, place / "run", whole, f"{share} checkpoints")
            shutil.copytree(place / "run", run)
        ended = forks.call(WORK.words(run), folder / "log")
        found.append(failures + ends_equal(ended, run, whole))
    how = "a tmpfs" if able else "RLIMIT_FSIZE, as nothing can be mounted here"
    return figures(found, how=how)


def at_most(size: int) -> None:
    """Let no file of this process become larger: the nearest to a full disk without a mount."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def refused(hit: forks.Ended, run: Path, whole: Path, what: str) -> list[str]:
    """What is wrong with how a run gave up on a disk: one clear line, the last state whole."""
    found, failures = RunDir(run).find(), []
    if (
        hit.code != 2
        or "Traceback" in hit.told
        or f"error: cannot write to {run}: " not in hit.told
    ):
        failures.append(f"{what}: ended with {hit.code}: {hit.told[-300:]}")
    if found.faults:
        failures.append(f"{what}: damaged {found.faults}")
    if found.round and (RunDir(run).rounds_on_disk()[-1] != found.round):
        failures.append(f"{what}: the newest checkpoint is not the last good one")
    if found.round and f"all rounds up to {found.round} are safe" not in hit.told:
        failures.append(f"{what}: does not say what is safe: {hit.told[-300:]}")
    if found.round == WORK.rounds and state(run, found.round) != state(whole, found.round):
        failures.append(f"{what}: another state")
    return failures


def ends_equal(ended: forks.Ended, run: Path, whole: Path) -> list[str]:
    """What is wrong with a run that was gone on with."""
    told = [f"going on ended with {ended.code}: {ended.told[-300:]}"] if ended.code else []
    return told + [f"other {name}" for name in differences(run, whole, WORK.rounds)]


def readonly(folder: Path, quick: bool) -> dict[str, Any]:
    """A run folder that turns read-only between two rounds; then it can be written again."""
    whole, place = unbroken(WORK, folder / "whole").folder, folder / "place"
    with mounted(place, 2**26) as able:
        if not able and not os.geteuid():
            return figures([], how="not tried: root may write anywhere, and may not mount here")
        run, log = place / "run", folder / "log"
        shutil.copytree(whole, run)
        (run / "done").unlink()
        shutil.rmtree(checkpoint_folder(run / "checkpoints", WORK.rounds))
        may_write(run, able, False)
        failures = refused(forks.call(WORK.again(run), log), run, whole, "read-only")
        may_write(run, able, True)
        failures += ends_equal(forks.call(WORK.again(run), log), run, whole)
    return figures([failures], how="a mount" if able else "the folder's mode")


def may_write(run: Path, mounted: bool, allowed: bool) -> None:
    """Allow or forbid to write to a run folder, by its mount or by its mode."""
    if mounted:
        mode = "remount,rw" if allowed else "remount,ro"
        subprocess.run(["mount", "-o", mode, run.parent], check=True)
    else:
        run.chmod(0o755 if allowed else 0o555)


def flips(folder: Path, quick: bool) -> dict[str, Any]:
    """One bit of the newest checkpoint flipped, anywhere in its files."""
    whole, draw = unbroken(WORK, folder / "whole").folder, random.Random(0)
    newest = checkpoint_folder(whole / "checkpoints", WORK.rounds)
    files = sorted(newest.iterdir())
    missed: list[str] = []
    tried = 100 if quick else FLIPS
    for number in range(tried):
        # Every tenth in the manifest, which is short, and some in each of the other files.
        file = newest / MANIFEST if number % 10 == 0 else files[number % len(files)]
        bit = draw.randrange(8 * file.stat().st_size)
        flip(file, bit)
        found = RunDir(whole).find()
        if found.round != WORK.rounds - 1 or list(found.faults) != [WORK.rounds]:
            missed.append(f"bit {bit} of {file.name}: {found}")
        flip(file, bit)
    resumed = range(2 if quick else RESUMED)
    ended = forks.spread(resumed, lambda n, own: one_flip(n, own, whole), folder / "cases")
    return flipped(tried, missed, ended)


def flipped(tried: int, missed: list[str], resumed: list[list[str]]) -> dict[str, Any]:
    """The figures of the flips that were looked for, and beside them those of the runs gone on."""
    gone_on = figures(resumed)
    return {
        "tried": tried,
        "held": tried - len(missed),
        "resumed": gone_on["tried"],
        "resumed_held": gone_on["held"],
        "failures": missed + gone_on["failures"],
    }


def flip(file: Path, bit: int) -> None:
    """Flip one bit of a file, in place."""
    with file.open("r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0]
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ (1 << bit % 8)]))


def one_flip(number: int, own: Path, whole: Path) -> list[str]:
    """Go on with a run whose newest checkpoint was damaged; every fourth time the older one too."""
    draw, run, all_bad = random.Random(number), own / "run", number % 4 == 3
    shutil.copytree(whole, run)
    (run / "done").unlink()
    for folder in sorted((run / "checkpoints").iterdir(), reverse=True)[: 2 if all_bad else 1]:
        file = draw.choice(sorted(folder.iterdir()))
        flip(file, draw.randrange(8 * file.stat().st_size))
    ended = forks.call(WORK.again(run), own / "log")
    where = "starting over" if all_bad else f"resuming after round {WORK.rounds - 1}"
    failures = ends_equal(ended, run, whole)
    events = (run / "events.jsonl").read_text() if (run / "events.jsonl").exists() else ""
    for shown in (ended.told, events):
        if f"the checkpoint of round {WORK.rounds} cannot be used: " not in shown:
            failures.append(f"not told: {shown[-300:]}")
        if where not in shown:
            failures.append(f"not told where it goes on: {shown[-300:]}")
    return failures


def taken(folder: Path, quick: bool) -> dict[str, Any]:
    """A second process on a folder is refused; the lock of a killed one binds nobody."""
    whole = unbroken(WORK, folder / "whole").folder
    return figures([one_taken(folder / f"run-{n}", whole) for n in range(1 if quick else 10)])


def one_taken(run: Path, whole: Path) -> list[str]:
    """Hold a folder with a process that stands still, try it with another, kill the first."""
    log, failures = run.with_suffix(".log"), []
    first = forks.start(WORK.words(run), run.with_suffix(".first"))
    while not (run / "rounds.jsonl").exists():
        time.sleep(0.01)
    os.kill(first, signal.SIGSTOP)
    second = forks.call(WORK.again(run), log)
    if second.code != 2 or f"error: another process is writing to {run}" not in second.told:
        failures.append(f"the second ended with {second.code}: {second.told[-300:]}")
    os.kill(first, signal.SIGKILL)
    if forks.wait(first) != -signal.SIGKILL:
        failures.append("the first had ended by itself")
    return failures + ends_equal(forks.call(WORK.again(run), log), run, whole)
