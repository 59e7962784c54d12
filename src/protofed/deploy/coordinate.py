"""The coordinator: asks the sites what they have, agrees with them, and plays the run."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from protofed.core.admission import FRAME
from protofed.core.allocator import tune_malloc
from protofed.core.errors import ProtofedError, printable_text
from protofed.core.pack import pack_tree
from protofed.core.threads import torch_threads
from protofed.deploy.job import JobListener, SubmittedJob
from protofed.deploy.judge import count_scores
from protofed.deploy.offers import parse_site_description
from protofed.deploy.roll import wait_for_sites
from protofed.engines.base import Engine
from protofed.engines.flower import FlowerEngine, RunInfo, SiteRoster
from protofed.engines.post import NoAnswer, OutgoingRequest, SiteMessenger
from protofed.engines.wire import SiteRequest
from protofed.experiment import records
from protofed.experiment.describe import describe_method
from protofed.experiment.federation import Federation
from protofed.experiment.remote import (
    SiteDescription,
    agreed_classes,
    remote_clients,
    remote_federation,
    run_description,
    test_sizes,
)
from protofed.experiment.rundir import RunDir
from protofed.experiment.runner import ExperimentRun, Note, Tell, default_folder
from protofed.experiment.spec import Experiment
from protofed.experiment.submitted import (
    FEDERATION,
    RECORD,
    recorded_descriptions,
    remote_experiment,
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

        def hire(tell: Tell, note: Note) -> Engine:
            return _engine(post, experiment, federation, fleet, told, job.deadline, note, tell)

        with closing(ExperimentRun(experiment, experiment.method, folder, federation, hire)) as run:
            run.play(listener.watch)
    return folder


def _engine(
    post: SiteMessenger,
    experiment: Experiment,
    federation: Federation,
    fleet: SiteRoster,
    told: RunInfo,
    deadline: float,
    note: Note,
    tell: Tell,
) -> FlowerEngine[Any, Any]:
    method, server, least = experiment.method, federation.server, experiment.min_clients
    return FlowerEngine(post, method, server, fleet, told, deadline, least, note, tell)


def _run_name(folder: RunDir, offers: Sequence[SiteDescription], digest: str) -> str:
    """The name under which the sites keep their states: made once for a run folder.

    It begins with the digest, so that a site's log and the coordinator speak of the same run.
    """
    record = folder.path / RECORD
    if folder.newest() is None or not record.exists():
        folder.write(RECORD, {"run": f"{digest[:12]}{secrets.token_hex(16)}", "offers": offers})
    return records.read_record_file(FEDERATION, record)["run"]


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
