"""Whether the numbers in a run folder were made by the code of today, and what to do if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import read_world
from protofed.spec.code_fingerprint import (
    UNREADABLE,
    changed_files,
    code_digests,
    is_unreadable,
    set_at_run_time,
)
from protofed.spec.experiment_spec import Experiment, SiteData

StaleRule = Literal["refuse", "repeat", "accept"]  # what to do with a run made by other code
SHOWN = 4  # files that a message names


class StaleRunError(ProtofedError):
    """A run folder was made by other code than today's; nothing was read from it or written."""


def must_repeat(folder: RunDir, experiment: Experiment, rule: StaleRule) -> str:
    """Whether a run has to start over because of its code: the reason, or "" if not.

    Code that has changed raises, unless `rule` says otherwise: "repeat" starts over, "accept" takes
    a finished run as it is. An unfinished one is never continued with other code. Code that cannot
    be read, as in a notebook, is never taken for the same, so such a run always starts over.
    """
    if not _has_numbers(folder):
        return ""
    now = code_digests(experiment)
    changed = changed_files(recorded_code(folder), now)
    if not changed or (rule == "accept" and folder.done.exists()):
        return ""
    unread = [name for name, digest in now.items() if is_unreadable(digest)]
    if unread:
        return f"the source of {', '.join(unread)} cannot be read, so nothing is reused"
    if rule == "repeat":
        return f"made by other code, so it is repeated: {describe_files(changed)}"
    raise _stale(folder, changed, isinstance(experiment.data, SiteData))


def code_changes(folder: RunDir, experiment: Experiment) -> list[str]:
    """The files in which the code of today differs from what made a run's numbers.

    The list is empty for the same code and for a folder without any numbers.
    """
    if not _has_numbers(folder):
        return []
    return changed_files(recorded_code(folder), code_digests(experiment))


def changed_code_note(folder: RunDir, experiment: Experiment) -> str:
    """A line for whoever reads a run of other code all the same; "" if the code is the same.

    Code that cannot be read, as in a notebook, is not told: a run of it is as new as its table.
    """
    before, now = recorded_code(folder), code_digests(experiment)
    changed = [n for n in changed_files(before, now) if not is_unreadable(now.get(n, ""))]
    return f"read although code has changed since: {describe_files(changed)}" if changed else ""


def check_unchanged(experiment: Experiment, before: Mapping[str, str]) -> None:
    """Raise if code was changed since `before` was taken: a process started since runs other code.

    Code that cannot be read, as in a notebook, cannot be imported by another process either.
    """
    now = code_digests(experiment)
    if names := set_at_run_time(now):
        raise ProtofedError(
            f"set at run time: {describe_files(names)}, which other processes do not know"
        )
    changed = [n for n in now if now[n] != before.get(n) and not is_unreadable(now[n])]
    if changed:
        raise ProtofedError(f"edited since the run began: {describe_files(changed)}")


def recorded_code(folder: RunDir) -> Mapping[str, str]:
    """The digests of the code that made a run, by file, from its ``env.json``."""
    code = read_world(folder.path).get("code")
    return code if isinstance(code, dict) else {"its code is not on record": UNREADABLE}


def describe_files(names: list[str]) -> str:
    """The names of changed files for a message, some of them if there are many."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _has_numbers(folder: RunDir) -> bool:
    return folder.done.exists() or bool(folder.rounds_on_disk())


def _stale(folder: RunDir, changed: list[str], remote: bool) -> StaleRunError:
    files = describe_files(changed)
    if remote:
        return StaleRunError(
            f"{folder.path} was made by other code; changed since: {files}",
            hint="run it into another <out>, or restore the code",
        )
    if folder.done.exists():
        return StaleRunError(
            f"{folder.path} was made by other code; changed since: {files}",
            hint="repeat it with <again>, or read the old numbers with <stale=accept>",
        )
    return StaleRunError(
        f"{folder.path} was begun with other code; changed since: {files}\n"
        "to go on would mix the numbers of two programs",
        hint="start over with <again>, or restore the code",
    )
