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
from protofed.deploy.serve import find_server
from protofed.engines.flower_engine import (
    FlowerEngine,
    NoAnswer,
    OutgoingRequest,
    RunInfo,
    SiteMessenger,
    SiteRoster,
)
from protofed.engines.site_protocol import SiteRequest
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.experiment.result import count_evaluations
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import FEDERATION_FILE, read_federation
from protofed.experiment.runner import ExperimentRun, default_folder
from protofed.experiment.stale_code import must_repeat
from protofed.federation.remote_sites import (
    SiteDescription,
    agreed_classes,
    parse_site_description,
    remote_clients,
    remote_experiment,
    remote_federation,
    remote_side,
    run_description,
    test_sizes,
)
from protofed.runtime.resources import tune_malloc
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import describe_method


@dataclass(frozen=True)
class SubmittedJob:
    """What `protofed submit` was asked to run.

    `sites` names the sites that must take part; if it is empty, `count` says how many of any name,
    and without either all registered sites take part.
    """

    spec: dict[str, Any]
    here: str  # the folder in which `submit` was called
    out: str  # the run folder; "" for the default one
    sites: tuple[str, ...]  # which must take part; empty for any that are online
    count: int  # of sites that must be there
    deadline: float  # seconds for one exchange
    wait: float  # seconds for the sites to come online
    resume: bool


class JobListener(Protocol):
    """Receives the progress of a job, in this order: waiting, begins, watch."""

    def waiting(self, words: str) -> None:
        """A line on what the job waits for, before and during its rounds."""

    def begins(self, experiment: Experiment, folder: Path, finished: int) -> None:
        """The experiment, the folder it goes to, and how many rounds are finished already."""

    def watch(self, report: RoundReport) -> None:
        """The progress after each round."""


PAUSE = 0.5  # seconds between two looks


class SitePresence(NamedTuple):
    """Which sites are online, and which of those that must be are not.

    `here` are all that are online, `there` those of them that take part, both sorted by name.
    """

    here: list[str]  # whether they are wanted or not
    there: list[str]  # those that take part, sorted by name
    missing: list[str]
    needed: int  # of whatever names
    nameless: int  # connected, but has not said its name yet

    @property
    def complete(self) -> bool:
        """Whether a run can begin."""
        return not self.missing and len(self.there) >= self.needed

    @property
    def seen(self) -> str:
        """Which sites are online, for people."""
        names = f"there: {', '.join(self.here) or 'none'}"
        if self.nameless == 1:
            return f"{names}; 1 more is connected but has not said its name yet"
        more = f"; {self.nameless} more are connected but have not said their names yet"
        return names + more * bool(self.nameless)


def look_for_sites(
    messenger: SiteMessenger, job: SubmittedJob, known: Collection[str]
) -> SitePresence:
    """Look once at which sites are online.

    A resumed run needs the sites that it has `known`; a new one those that its job names, or any.
    """
    here = sorted(messenger.online())
    wanted = sorted(known or job.sites or here)
    there = [name for name in wanted if name in here]
    missing = [name for name in wanted if name not in here]
    return SitePresence(here, there, missing, max(1, job.count), messenger.nameless)


def wait_for_sites(
    messenger: SiteMessenger,
    job: SubmittedJob,
    known: Collection[str],
    least: int,
    tell: Callable[[str], None],
) -> list[str]:
    """Wait until all sites that a run needs are online; return their names, sorted.

    Reports through `tell` which sites are missing, whenever that changes. A resumed run needs only
    `least` of the sites it knows: it waits half of the job's time for the others, which may be gone
    for good, and leaves the rest of the time for the sites to describe themselves.
    """
    began, reported = time.monotonic(), ""
    while not (presence := look_for_sites(messenger, job, known)).complete:
        enough = bool(known) and len(presence.there) >= least
        if time.monotonic() - began > job.wait / (2 if enough else 1):
            return _without(presence, enough, job.wait)
        awaited = ", ".join(presence.missing) or count_noun(presence.needed, "site")
        words = f"waiting for {awaited} ({presence.seen})"
        if words != reported:
            tell(words)
        reported = words
        time.sleep(PAUSE)
    return presence.there


def _without(presence: SitePresence, enough: bool, seconds: float) -> list[str]:
    """The sites that came online in time, if a run can continue with them."""
    if enough:
        return presence.there
    missing = ", ".join(presence.missing)
    lacking = f"missing: {missing}" if missing else f"{presence.needed} are needed"
    raise ProtofedError(
        f"not all sites came online within {seconds:g} s; {presence.seen}; {lacking}",
        hint="start `protofed join` there, or name the sites that take part with <sites>",
    )


LEAST_SECONDS = 5.0  # in which a site describes itself that came at the last moment


def coordinate_run(messenger: SiteMessenger, job: SubmittedJob, listener: JobListener) -> RunDir:
    """Play a job from the sites' descriptions to the finished run; return its run folder.

    Asks the sites what they hold, agrees with them on an experiment, and runs or resumes it. A run
    that is finished already is returned as it is. `listener` follows the progress.
    """
    offers = gather_descriptions(messenger, job, listener.waiting)
    experiment = remote_experiment(job.spec, offers)
    folder = RunDir(Path(job.here) / (job.out or default_folder(experiment)))
    folder.check(experiment)
    done = folder.done.exists()
    begun = None if done else folder.newest()
    if begun and not job.resume:
        raise ProtofedError(
            f"{folder.path} holds a run that was begun and not finished",
            hint="use <resume> to continue it, or choose another <out>",
        )
    if done:
        must_repeat(folder, experiment, "refuse")
        listener.waiting(f"already finished, read from {folder.path}")
        return folder
    listener.begins(experiment, folder.path, begun.round if begun else 0)
    tune_malloc()
    federation = remote_federation(experiment, offers)
    with torch_threads(experiment.threads), folder.locked():
        folder.open(experiment)
        name = _run_name(folder, offers, experiment.digest)
        about = RunInfo(name, run_description(experiment, offers), experiment.rounds)
        roster = SiteRoster(remote_clients(experiment), test_sizes(experiment, offers))
        method, server, least = experiment.method, federation.server, experiment.min_clients
        where = messenger, method, server, roster, about
        engine: FlowerEngine[Any, Any] = FlowerEngine(*where, job.deadline, least)
        run = ExperimentRun(experiment, method, folder, federation, engine)
        with closing(run):
            run.play(listener.watch)
    return folder


def _run_name(folder: RunDir, offers: Sequence[SiteDescription], digest: str) -> str:
    """The name under which the sites keep their states: made once for a run folder.

    It begins with the digest, so it can be recognised in a site's log.
    """
    record = folder.path / FEDERATION_FILE
    if folder.newest() is None or not record.exists():
        name = f"{digest[:12]}{secrets.token_hex(16)}"
        folder.write(FEDERATION_FILE, {"run": name, "offers": offers})
    return read_federation(folder.path)["run"]


def gather_descriptions(
    messenger: SiteMessenger, job: SubmittedJob, tell: Callable[[str], None]
) -> list[SiteDescription]:
    """Wait for the sites of a job and return what they say of themselves, sorted by name.

    Every site must answer with a description that can be true, and all must have the same classes.
    A resumed run can continue without a site that it knew before, while `min_clients` are left; the
    earlier description then stands in. `tell` receives what is waited for.
    """
    end = time.monotonic() + job.wait
    experiment, known = remote_experiment(job.spec), _known(job)
    names = wait_for_sites(messenger, job, known, experiment.min_clients, tell)
    tell(f"asking {', '.join(names)} what they hold")
    about = {
        "method": describe_method(experiment.method),
        "rounds": experiment.rounds,
        "scores": count_evaluations(experiment.rounds, experiment.evaluate_every),
        "side": remote_side(experiment),
    }
    ask = SiteRequest("describe", json.dumps(about), session=secrets.token_hex(8))
    seconds = max(end - time.monotonic(), LEAST_SECONDS)
    request = OutgoingRequest(pack_tree(ask), 4 * FRAME)
    answers = messenger.ask(dict.fromkeys(names, request), seconds, len(names))
    offers, faults, hints = list[SiteDescription](), list[str](), list[str]()
    for name in names:
        try:
            offers.append(parse_site_description(name, ask, answers[name]))
        except ProtofedError as fault:
            faults.append(printable_text(f"{name}: {fault.args[0]}"))
            hints += [fault.hint] if fault.hint else []
    if faults:
        if any(isinstance(answer, NoAnswer) for answer in answers.values()):
            hints.append("a site that reads many images for the first time needs a longer <wait>")
        text = "\n".join(["not every site can take part:", *faults])
        raise ProtofedError(text, hint="\n".join(hints))
    offers += [offer for name, offer in known.items() if name not in names]
    agreed_classes(offers)
    return sorted(offers)


def _known(job: SubmittedJob) -> dict[str, SiteDescription]:
    """What the sites of a resumed run have described before, by name."""
    folder = Path(job.here) / job.out
    if not job.resume or not job.out or not (folder / FEDERATION_FILE).exists():
        return {}
    return {offer.site: offer for offer in read_federation(folder)["offers"]}


def finished_run(job: SubmittedJob) -> RunDir | None:
    """The folder of a job whose run is finished, if it is: no site is needed to read it.

    Only a folder that the job names can be found so: the name of the default folder depends on the
    sites' images, which are not known here.
    """
    folder = RunDir(Path(job.here) / job.out)
    if not job.out or not folder.done.exists() or not (folder.path / FEDERATION_FILE).exists():
        return None
    experiment = remote_experiment(job.spec, read_federation(folder.path)["offers"])
    folder.check(experiment)
    must_repeat(folder, experiment, "refuse")
    return folder


def submit_job(job: SubmittedJob, home: Path, listener: JobListener) -> RunDir:
    """Play a job with the server whose files are in `home`; return its run folder.

    The run ends with this process; to outlive a terminal it has to run in a service.
    """
    server = find_server(home)
    if unknown := [name for name in job.sites if server.sites and name not in server.sites]:
        raise ProtofedError(
            f"the server has no key of {', '.join(unknown)}; it has those of "
            f"{', '.join(server.sites)}",
            hint="name some of those with <sites>; `protofed keys` adds sites",
        )
    if not job.sites and not job.count:
        job = replace(job, sites=server.sites)
    from protofed.deploy.run_channel import RunChannel  # Flower takes a second to load

    with RunChannel(server.url, server.secret, server.ca) as channel:
        return coordinate_run(SiteMessenger(channel, listener.waiting), job, listener)
