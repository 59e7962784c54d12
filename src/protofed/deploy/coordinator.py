"""The coordinator: asks the sites what they have, agrees with them, and runs the rounds."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from protofed.core.reply_validation import FRAME
from protofed.core.serialization import pack_tree
from protofed.core.training import torch_threads
from protofed.deploy.request_judge import count_scores
from protofed.deploy.serve import find_server
from protofed.deploy.site_descriptions import parse_site_description
from protofed.engines.flower_engine import (
    FlowerEngine,
    NoAnswer,
    OutgoingRequest,
    RunInfo,
    SiteMessenger,
    SiteRoster,
)
from protofed.engines.site_protocol import SiteRequest
from protofed.errors import ProtofedError, printable_text
from protofed.experiment import run_records
from protofed.experiment.remote_experiment import (
    FEDERATION,
    RECORD,
    recorded_descriptions,
    remote_experiment,
)
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import ExperimentRun, RunProgress, default_folder
from protofed.federation.build import Federation
from protofed.federation.remote_sites import (
    SiteDescription,
    agreed_classes,
    remote_clients,
    remote_federation,
    run_description,
    test_sizes,
)
from protofed.runtime.resources import tune_malloc
from protofed.spec.experiment_spec import Experiment, describe_method


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


LEAST_SECONDS = 5.0  # in which a site describes itself that came at the last moment


def coordinate_run(post: SiteMessenger, job: SubmittedJob, listener: JobListener) -> RunDir:
    """Ask the sites, then play the run with them, or go on with it; the folder of the run."""
    offers = gather_descriptions(post, job, listener.waiting)
    experiment = remote_experiment(job.spec, offers)
    folder = RunDir(Path(job.here) / (job.out or default_folder(experiment)))
    folder.check(experiment)
    done = folder.done.exists()
    begun = None if done else folder.newest()
    if begun and not job.resume:
        raise ProtofedError(
            f"{folder.path} holds a run that was begun and not finished\n"
            f"give --resume to go on with it, or another --out"
        )
    if done:
        listener.waiting(f"already finished, read from {folder.path}")
        return folder
    listener.begins(experiment, folder.path, begun.round if begun else 0)
    tune_malloc()
    federation = remote_federation(experiment, offers)
    with torch_threads(experiment.threads), folder.locked():
        folder.open(experiment)
        name = _run_name(folder, offers, experiment.digest)
        told = RunInfo(name, run_description(experiment, offers), experiment.rounds)
        fleet = SiteRoster(remote_clients(experiment), test_sizes(experiment, offers))
        engine = _engine(post, experiment, federation, fleet, told, job.deadline)
        made = ExperimentRun(experiment, experiment.method, folder, federation, engine)
        with closing(made) as run:
            run.play(listener.watch)
    return folder


def _engine(
    post: SiteMessenger,
    experiment: Experiment,
    federation: Federation,
    fleet: SiteRoster,
    told: RunInfo,
    deadline: float,
) -> FlowerEngine[Any, Any]:
    method, server, least = experiment.method, federation.server, experiment.min_clients
    return FlowerEngine(post, method, server, fleet, told, deadline, least)


def _run_name(folder: RunDir, offers: Sequence[SiteDescription], digest: str) -> str:
    """The name under which the sites keep their states: made once for a run folder.

    It begins with the digest, so that a site's log and the coordinator speak of the same run.
    """
    record = folder.path / RECORD
    if folder.newest() is None or not record.exists():
        folder.write(RECORD, {"run": f"{digest[:12]}{secrets.token_hex(16)}", "offers": offers})
    return run_records.read_record_file(FEDERATION, record)["run"]


def gather_descriptions(
    post: SiteMessenger, job: SubmittedJob, tell: Callable[[str], None]
) -> list[SiteDescription]:
    """What the sites offer, once all are there that must be; `tell` is told who is waited for.

    A run that goes on can do so without a site that was there before, while enough are left.
    """
    end = time.monotonic() + job.wait
    experiment, known = remote_experiment(job.spec), _known(job)
    names = wait_for_sites(post, job, known, experiment.min_clients, tell)
    tell(f"asking {', '.join(names)} what they hold")
    about = {
        "method": describe_method(experiment.method),
        "rounds": experiment.rounds,
        "scores": count_scores(experiment),
        "side": experiment.data.side,
    }
    ask = SiteRequest("describe", json.dumps(about), session=secrets.token_hex(8))
    seconds = max(end - time.monotonic(), LEAST_SECONDS)
    letter = OutgoingRequest(pack_tree(ask), 4 * FRAME)
    answers = post.ask(dict.fromkeys(names, letter), seconds, len(names))
    offers, faults = [], []
    for name in names:
        try:
            offers.append(parse_site_description(name, ask, answers[name]))
        except ProtofedError as fault:
            faults.append(printable_text(f"{name}: {fault}"))
    if faults:
        slow = any(isinstance(answer, NoAnswer) for answer in answers.values())
        hint = "\na site that reads many images for the first time needs a longer --wait" * slow
        raise ProtofedError("not every site can take part:\n" + "\n".join(faults) + hint)
    offers += [offer for name, offer in known.items() if name not in names]
    agreed_classes(offers)
    return sorted(offers)


def _known(job: SubmittedJob) -> dict[str, SiteDescription]:
    """What the sites of a run that goes on have offered before."""
    folder = Path(job.here) / job.out
    if not job.resume or not job.out or not (folder / RECORD).exists():
        return {}
    return {offer.site: offer for offer in recorded_descriptions(folder)}


def finished_run(job: SubmittedJob) -> RunDir | None:
    """The folder of a job whose run is finished: to read it, nobody has to be asked.

    The default folder's name depends on the sites' images, so that it is not known here.
    """
    folder = RunDir(Path(job.here) / job.out)
    if not job.out or not folder.done.exists() or not (folder.path / RECORD).exists():
        return None
    folder.check(remote_experiment(job.spec, recorded_descriptions(folder.path)))
    return folder


def submit_job(job: SubmittedJob, home: Path, listener: JobListener) -> RunDir:
    """Play a job with the server whose files are in `home`; the folder of its run.

    The run ends with this process: who wants it to outlive a terminal lets it run in a service.
    """
    server = find_server(home)
    if unknown := [name for name in job.sites if server.sites and name not in server.sites]:
        raise ProtofedError(
            f"--sites: the server has no key of {', '.join(unknown)}; it has those of "
            f"{', '.join(server.sites)}\n`protofed keys` adds sites"
        )
    if not job.sites and not job.count:
        job = replace(job, sites=server.sites)
    from protofed.deploy.run_channel import RunChannel  # Flower takes a second to load

    with RunChannel(server.url, server.secret, server.ca) as channel:
        return coordinate_run(SiteMessenger(channel), job, listener)
