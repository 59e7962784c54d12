"""Who is there before a run begins, and who is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from protofed.core.errors import ProtofedError
from protofed.deploy.job import SubmittedJob
from protofed.engines.post import SiteMessenger

PAUSE = 0.5  # seconds between two looks


class SitePresence(NamedTuple):
    """Who is online, and who of those that must be is not."""

    here: list[str]  # whether they are wanted or not
    there: list[str]  # who takes part, in the order of their names
    missing: list[str]
    needed: int  # of whatever names
    nameless: int  # connected, but has not said its name yet

    @property
    def complete(self) -> bool:
        """Whether a run can begin."""
        return not self.missing and len(self.there) >= self.needed

    @property
    def seen(self) -> str:
        """Who is online, for people."""
        names = f"there: {', '.join(self.here) or 'none'}"
        if self.nameless == 1:
            return f"{names}; 1 more is connected but has not said its name yet"
        more = f"; {self.nameless} more are connected but have not said their names yet"
        return names + more * bool(self.nameless)


def look_for_sites(post: SiteMessenger, job: SubmittedJob, known: Collection[str]) -> SitePresence:
    """Look once; a run that goes on wants the sites that it knows."""
    here = sorted(post.online())
    wanted = sorted(known or job.sites or here)
    there = [name for name in wanted if name in here]
    missing = [name for name in wanted if name not in here]
    return SitePresence(here, there, missing, max(1, job.count), post.nameless)


def wait_for_sites(
    post: SiteMessenger,
    job: SubmittedJob,
    known: Collection[str],
    least: int,
    tell: Callable[[str], None],
) -> list[str]:
    """The sites that are there, in the order of their names; waits for those that must be.

    For those that may have gone for good, half of the time: the others need the rest.
    """
    began, told = time.monotonic(), ""
    while not (roll := look_for_sites(post, job, known)).complete:
        enough = bool(known) and len(roll.there) >= least
        if time.monotonic() - began > job.wait / (2 if enough else 1):
            return _without(roll, enough, job.wait)
        words = f"waiting for {', '.join(roll.missing) or f'{roll.needed} sites'} ({roll.seen})"
        if words != told:
            tell(words)
        told = words
        time.sleep(PAUSE)
    return roll.there


def _without(roll: SitePresence, enough: bool, seconds: float) -> list[str]:
    """Those that are there after all the waiting, if a run can go on with them."""
    if enough:
        return roll.there
    missing = ", ".join(roll.missing)
    lacking = f"missing: {missing}" if missing else f"{roll.needed} are needed"
    raise ProtofedError(
        f"not all sites came online within {seconds:g} s; {roll.seen}; {lacking}\n"
        f"let them run protofed join, or name those that shall take part with --sites"
    )
