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
from protofed.core.allocator import keep_memory
from protofed.core.errors import ProtofedError, printable
from protofed.core.pack import pack
from protofed.core.threads import torch_threads
from protofed.deploy.job import Job, Listener
from protofed.deploy.judge import count_scores
from protofed.deploy.offers import offer_from
from protofed.deploy.roll import present
from protofed.engines.base import Engine
from protofed.engines.flower import Fleet, FlowerEngine, Told
from protofed.engines.post import Letter, Lost, Post
from protofed.engines.wire import Ask
from protofed.experiment import records
from protofed.experiment.describe import describe_method
from protofed.experiment.federation import Federation
from protofed.experiment.remote import (
    Offer,
    agreed_classes,
    brief_of,
    clients_of,
    coordinator,
    tests_of,
)
from protofed.experiment.rundir import RunDir
from protofed.experiment.runner import Note, Run, Tell, default_folder
from protofed.experiment.spec import Experiment
from protofed.experiment.submitted import FEDERATION, RECORD, experiment_of, offers_on_record

LEAST_SECONDS = 5.0  # in which a site describes itself that came at the last moment


def coordinate(post: Post, job: Job, listener: Listener) -> RunDir:
    """Ask the sites, then play the run with them, or go on with it; the folder of the run."""
    offers = gather(post, job, listener.waiting)
    experiment = experiment_of(job.spec, offers)
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
    keep_memory()
    federation = coordinator(experiment, offers)
    with torch_threads(experiment.threads), folder.locked():
        folder.open(experiment)
        name = _run_name(folder, offers, experiment.digest)
        told = Told(name, brief_of(experiment, offers), experiment.rounds)
        fleet = Fleet(clients_of(experiment), tests_of(experiment, offers))

        def hire(tell: Tell, note: Note) -> Engine:
            return _engine(post, experiment, federation, fleet, told, job.deadline, note, tell)

        with closing(Run(experiment, experiment.method, folder, federation, hire)) as run:
            run.play(listener.watch)
    return folder


def _engine(
    post: Post,
    experiment: Experiment,
    federation: Federation,
    fleet: Fleet,
    told: Told,
    deadline: float,
    note: Note,
    tell: Tell,
) -> FlowerEngine[Any, Any]:
    method, server, least = experiment.method, federation.server, experiment.min_clients
    return FlowerEngine(post, method, server, fleet, told, deadline, least, note, tell)


def _run_name(folder: RunDir, offers: Sequence[Offer], digest: str) -> str:
    """The name under which the sites keep their states: made once for a run folder.

    It begins with the digest, so that a site's log and the coordinator speak of the same run.
    """
    record = folder.path / RECORD
    if folder.newest() is None or not record.exists():
        folder.write(RECORD, {"run": f"{digest[:12]}{secrets.token_hex(16)}", "offers": offers})
    return records.read(FEDERATION, record)["run"]


def gather(post: Post, job: Job, tell: Callable[[str], None]) -> list[Offer]:
    """What the sites offer, once all are there that must be; `tell` is told who is waited for.

    A run that goes on can do so without a site that was there before, while enough are left.
    """
    end = time.monotonic() + job.wait
    experiment, known = experiment_of(job.spec), _known(job)
    names = present(post, job, known, experiment.min_clients, tell)
    tell(f"asking {', '.join(names)} what they hold")
    about = {
        "method": describe_method(experiment.method),
        "rounds": experiment.rounds,
        "scores": count_scores(experiment),
        "side": experiment.data.side,
    }
    ask = Ask("describe", json.dumps(about), session=secrets.token_hex(8))
    seconds = max(end - time.monotonic(), LEAST_SECONDS)
    letter = Letter(pack(ask), 4 * FRAME)
    answers = post.ask(dict.fromkeys(names, letter), seconds, len(names))
    offers, faults = [], []
    for name in names:
        try:
            offers.append(offer_from(name, ask, answers[name]))
        except ProtofedError as fault:
            faults.append(printable(f"{name}: {fault}"))
    if faults:
        slow = any(isinstance(answer, Lost) for answer in answers.values())
        hint = "\na site that reads many images for the first time needs a longer --wait" * slow
        raise ProtofedError("not every site can take part:\n" + "\n".join(faults) + hint)
    offers += [offer for name, offer in known.items() if name not in names]
    agreed_classes(offers)
    return sorted(offers)


def _known(job: Job) -> dict[str, Offer]:
    """What the sites of a run that goes on have offered before."""
    folder = Path(job.here) / job.out
    if not job.resume or not job.out or not (folder / RECORD).exists():
        return {}
    return {offer.site: offer for offer in offers_on_record(folder)}
