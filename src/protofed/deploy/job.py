"""A run that `protofed submit` was asked for, and who hears how it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protofed.experiment.runner import RunProgress
from protofed.experiment.spec import Experiment


@dataclass(frozen=True)
class SubmittedJob:
    """A run to be played."""

    spec: dict[str, Any]
    here: str  # the folder in which `submit` was called
    out: str  # the run folder; "" for the default one
    sites: tuple[str, ...]  # who must take part; none for whoever is there
    count: int  # of sites that must be there
    deadline: float  # seconds for one exchange
    wait: float  # seconds for the sites to come online
    resume: bool


class JobListener(Protocol):
    """Who hears how a job goes."""

    def waiting(self, words: str) -> None:
        """Who or what is waited for."""

    def begins(self, experiment: Experiment, folder: Path, finished: int) -> None:
        """What the run is, where it goes, and how many rounds are behind it."""

    def watch(self, progress: RunProgress) -> None:
        """How far the run is."""
